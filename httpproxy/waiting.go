package httpproxy

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

// waiting is how a session waits for a connection to a server: for as long as its client stays. It is a pool.Parker of the session's
// fiber or goroutine.
type waiting struct {
	s       *session
	inner   pool.Parker
	granted atomic.Bool // Unpark came; inner is unparked for other reasons, too
	timer   *time.Timer // nil = none was needed yet
}

var _ pool.AffinityParker = (*waiting)(nil)

// leasing returns the context in which the session waits for a connection.
func (s *session) leasing() context.Context {
	if s.leases != nil {
		return s.leases
	}
	w := &waiting{s: s}
	if p := fiber.NewParker(); p != nil {
		w.inner = p
	} else {
		w.inner = make(goroutine, 1)
	}
	if st := s.stream; st != nil {
		st.h.locked(func() { st.waits = w })
	}
	s.leases = pool.WithParker(s.ctx, w)
	return s.leases
}

// Park implements pool.Parker. It gives up when the client has gone: a stream reports it, a connection is checked now
// and then.
func (w *waiting) Park(ctx context.Context) error {
	if w.s.stream == nil {
		w.lookSoon()
		defer w.timer.Stop()
	}
	for {
		err := w.inner.Park(ctx)
		switch {
		case w.granted.Swap(false):
			return nil
		case err != nil:
			return err
		case ctx.Done() == nil: // it is being granted
		case w.s.clientGone():
			return httppool.ErrClientGone
		case w.s.stream == nil:
			w.lookSoon()
		}
	}
}

// lookSoon has Park look once more.
func (w *waiting) lookSoon() {
	if w.timer == nil {
		w.timer = time.AfterFunc(lookInterval, w.inner.Unpark)
	} else {
		w.timer.Reset(lookInterval)
	}
}

// Unpark implements pool.Parker.
func (w *waiting) Unpark() {
	w.granted.Store(true)
	w.inner.Unpark()
}

// Affinity implements pool.AffinityParker.
func (w *waiting) Affinity() int {
	if p, ok := w.inner.(pool.AffinityParker); ok {
		return p.Affinity()
	}
	return 0
}

// goroutine is a pool.Parker of one.
type goroutine chan struct{}

func (g goroutine) Park(ctx context.Context) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g goroutine) Unpark() {
	select {
	case g <- struct{}{}:
	default:
	}
}

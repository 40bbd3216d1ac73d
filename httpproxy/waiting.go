package httpproxy

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

// waiting is the pool.Parker of a session's fiber or goroutine while it waits for a connection to a
// server. The wait ends when the client leaves. All sessions of an HTTP/2 stream share one.
type waiting struct {
	s       *session
	leases  context.Context // the context in which s waits
	granted atomic.Bool     // Unpark was called; inner is unparked for other reasons, too
	timer   *time.Timer     // nil = not needed yet

	mu    sync.Mutex  // held for a few instructions
	inner pool.Parker // of the waiting fiber; a stream's sessions have none unless they wait
}

var (
	_ pool.AffinityParker = (*waiting)(nil)
	_ pool.FlowParker     = (*waiting)(nil)
)

var flowSeed = maphash.MakeSeed()

// leasing returns the context in which the session waits for a connection.
func (s *session) leasing() context.Context {
	if s.leases != nil {
		return s.leases
	}
	if st := s.stream; st != nil {
		s.leases = st.leasing(s)
		return s.leases
	}
	w := &waiting{s: s, inner: newParker()}
	s.leases = pool.WithParker(s.ctx, w)
	return s.leases
}

// newParker returns a parker for the calling fiber or goroutine.
func newParker() pool.Parker {
	if p := fiber.NewParker(); p != nil {
		return p
	}
	return make(goroutine, 1)
}

// Park implements pool.Parker. It gives up when the client has left: a stream reports that, and a
// connection is checked at intervals.
func (w *waiting) Park(ctx context.Context) error {
	streams := w.s.stream != nil
	if streams {
		w.setInner(newParker()) // from here on Unpark and look have an effect
		defer w.setInner(nil)
	}
	w.checkSoon()
	defer w.timer.Stop()
	for first := true; ; first = false {
		switch {
		case w.granted.Swap(false):
			return nil
		case ctx.Done() != nil && (streams || !first) && w.s.clientGone(): // without Done the lease is being granted
			return httppool.ErrClientGone
		case !first && w.s.ex.queued: // for longer than checkInterval
			w.s.trimRequest()
		}
		switch err := w.inner.Park(ctx); {
		case w.granted.Swap(false):
			return nil
		case err != nil:
			return err
		case !streams && ctx.Done() != nil:
			w.checkSoon()
		}
	}
}

func (w *waiting) setInner(p pool.Parker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inner = p
}

// check makes a running Park check the client.
func (w *waiting) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inner != nil {
		w.inner.Unpark()
	}
}

// checkSoon makes Park look again after checkInterval: at the client, and for what the request does not need.
func (w *waiting) checkSoon() {
	if w.timer == nil {
		w.timer = time.AfterFunc(checkInterval, w.check)
	} else {
		w.timer.Reset(checkInterval)
	}
}

// Unpark implements pool.Parker.
func (w *waiting) Unpark() {
	w.granted.Store(true)
	w.check()
}

// Affinity implements pool.AffinityParker.
func (w *waiting) Affinity() int {
	if st := w.s.stream; st != nil {
		return st.Loop()
	}
	if p, ok := w.inner.(pool.AffinityParker); ok {
		return p.Affinity()
	}
	return 0
}

// Flow implements pool.FlowParker: clients take turns, and none waits beyond the exchange's time.
func (w *waiting) Flow() (flow uint64, until time.Time) {
	from := w.s.source().As16()
	return maphash.Bytes(flowSeed, from[:]), w.s.ex.until
}

// goroutine is the pool.Parker of a goroutine.
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

// late reports whether the exchange's deadline has passed.
func (x *exchange) late() bool { return !x.until.IsZero() && !time.Now().Before(x.until) }

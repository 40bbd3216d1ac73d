package tcpproxy

import (
	"context"
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
)

// watch calls look after a while and again after each duration look returns,
// until that is 0 or stop. It costs one timer and no goroutine.
type watch struct {
	mu    fiber.Mutex // look may make a trip to the loop of the fiber that stops it
	timer *time.Timer
	over  bool
}

func newWatch(first time.Duration, look func() time.Duration) *watch {
	w := &watch{}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(first, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.over {
			return
		}
		if next := look(); next > 0 {
			w.timer.Reset(next)
		}
	})
	return w
}

// stop returns when look does not run and never will again.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// lookInterval is how often a session that waits for an upstream connection
// looks whether its client is still there; most have one long before that.
var lookInterval = time.Second

// errClientGone ends the waiting for an upstream connection.
var errClientGone = errors.New("the client left while it waited for an upstream connection")

// whileClientStays returns a context that ends with errClientGone when the
// client has left. A reset is always that. A FIN is not when the client has sent
// something: it may be waiting for the answer. One that closes without a byte
// is taken for gone, once it has waited for a lookInterval.
func (s *session) whileClientStays(ctx context.Context, client *side) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	silent := s.cfg.TLS == nil && len(client.pending) == 0
	ended := func() bool { return !alive(s.client) }
	if e, ok := client.conn.(interface{ Ended() bool }); ok && s.client.Proxied() {
		ended = e.Ended // the engine may hold what the socket does not show any more
	}
	w := newWatch(lookInterval, func() time.Duration {
		if reset(s.client) || silent && ended() {
			cancel(errClientGone)
			return 0
		}
		return lookInterval
	})
	return ctx, func() {
		w.stop()
		cancel(nil)
	}
}

package tcpproxy

import (
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/idleconn"
)

// watch calls look after a while and again after each duration look returns,
// until that is 0 or stop. It costs one timer and no goroutine.
type watch struct {
	mu    fiber.Mutex // look may make a trip to the loop of the fiber that stops it
	timer *time.Timer
	look  func() time.Duration // nil = nothing is to be looked at
}

func newWatch(first time.Duration, look func() time.Duration) *watch {
	w := &watch{look: look}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(first, w.fire)
	return w
}

func (w *watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.look == nil {
		return
	}
	if next := w.look(); next > 0 {
		w.timer.Reset(next)
	}
}

// turnTo replaces what is looked at, and when next. It returns when what was looked at before never will be again.
func (w *watch) turnTo(first time.Duration, look func() time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look = look
	w.timer.Reset(first)
}

// stop returns when look does not run and never will again.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look = nil
	w.timer.Stop()
}

// lookInterval is how often a session that waits for an upstream connection
// looks whether its client is still there; most have one long before that.
var lookInterval = time.Second

// errClientGone ends the waiting for an upstream connection.
var errClientGone = errors.New("the client left while it waited for an upstream connection")

// watchClient calls gone when the client has left. A reset is always that. A FIN
// is not when the client has sent something: it may be waiting for the answer. One
// that closes without a byte is taken for gone, once it has waited for a lookInterval.
func (s *session) watchClient(client *side, gone func()) *watch {
	silent := s.cfg.TLS == nil && len(client.pending) == 0
	ended := func() bool { return idleconn.New(s.client).Look() == idleconn.Dead }
	if e, ok := client.conn.(interface{ Ended() bool }); ok && s.client.Proxied() {
		ended = e.Ended // the engine may hold what the socket does not show any more
	}
	return newWatch(lookInterval, func() time.Duration {
		if reset(s.client) || silent && ended() {
			gone()
			return 0
		}
		return lookInterval
	})
}

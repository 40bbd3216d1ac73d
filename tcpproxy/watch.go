package tcpproxy

import (
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
)

// watch calls its function look after a while, and again after each duration that look returns, until look returns 0 or
// stop is called. It costs one timer and no goroutine.
type watch struct {
	mu    fiber.Mutex // a fiber's, because look may make a trip to the loop of the fiber that stops the watch
	timer *time.Timer
	look  func() time.Duration // nil = none
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

// replace replaces the look function; the first call of the new one comes after first. When replace returns, the old
// one is not running and will not run again.
func (w *watch) replace(first time.Duration, look func() time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look = look
	w.timer.Reset(first)
}

// stop ends the watch. When it returns, look is not running and will not run again.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look = nil
	w.timer.Stop()
}

// lookInterval is how often a session that waits for an upstream connection checks whether its client is still
// connected; most waits are much shorter.
var lookInterval = time.Second

// errClientGone is returned when the client left before it had an upstream connection.
var errClientGone = errors.New("the client left while it waited for an upstream connection")

// watchClient calls gone when the client has left: it has reset the connection or, without TLS, sent a FIN and no byte
// before it. A client that sent data before its FIN may be waiting for the answer. The first check comes after
// lookInterval.
func (s *session) watchClient(client *side, gone func()) *watch {
	silent := s.cfg.TLS == nil
	return newWatch(lookInterval, func() time.Duration {
		if s.client.WasReset() || silent && client.conn.Ended() {
			gone()
			return 0
		}
		return lookInterval
	})
}

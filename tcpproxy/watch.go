package tcpproxy

import (
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
)

// looker checks something at intervals.
type looker interface {
	// look returns the time until the next check; 0 = none.
	look() (next time.Duration)
}

// watch calls the method look of its looker after a while, and again after each duration that look returns, until look
// returns 0 or stop is called. It costs one timer of the loop and no goroutine. The zero watch is stopped.
type watch struct {
	mu     fiber.Mutex // a fiber's, because look may make a trip to the loop of the fiber that stops the watch
	alarm  fiber.Alarm
	set    bool   // alarm was started once
	looker looker // nil = the watch is stopped
}

// watch starts the watch, or replaces its looker; the first look comes after first. When watch returns, the old looker
// is not looking and will not look again.
func (w *watch) watch(first time.Duration, l looker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looker = l
	if w.set {
		w.alarm.Reset(first)
		return
	}
	w.set = true
	w.alarm.Start(first, w)
}

// Ring implements fiber.Bell.
func (w *watch) Ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looker == nil {
		return
	}
	if next := w.looker.look(); next > 0 {
		w.alarm.Reset(next)
	}
}

// stop ends the watch. When it returns, its looker is not looking and will not look again.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looker != nil {
		w.looker = nil
		w.alarm.Stop()
	}
}

// lookInterval is how often a session that waits for an upstream connection checks whether its client is still
// connected; most waits are much shorter.
var lookInterval = time.Second

// errClientGone is returned when the client left before it had an upstream connection.
var errClientGone = errors.New("the client left while it waited for an upstream connection")

// waitingClient is a session that waits for its upstream connection. It checks whether its client has left: by a reset or,
// without TLS, by a FIN without a byte before it. A client that sent data before its FIN may be waiting for the answer.
type waitingClient session

func (c *waitingClient) look() (next time.Duration) {
	s := (*session)(c)
	if s.client.WasReset() || s.cfg.TLS == nil && s.waiting.Ended() {
		s.giveUp()
		return 0
	}
	return lookInterval
}

package tcpproxy

import (
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
)

// checker checks something at intervals.
type checker interface {
	// check returns the time until the next check; 0 = none.
	check() (next time.Duration)
}

// watch calls the method check of its checker after a while, and again after each duration that check returns, until
// check returns 0 or stop is called. It costs one timer of the loop and no goroutine. The zero watch is stopped.
type watch struct {
	mu      fiber.Mutex // a fiber's, because check may make a trip to the loop of the fiber that stops the watch
	alarm   fiber.Alarm
	set     bool    // alarm was started once
	checker checker // nil = the watch is stopped
}

// watch starts the watch, or replaces its checker; the first check comes after first. When watch returns, the old checker
// is not running and will not run again.
func (w *watch) watch(first time.Duration, c checker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checker = c
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
	if w.checker == nil {
		return
	}
	if next := w.checker.check(); next > 0 {
		w.alarm.Reset(next)
	}
}

// stop ends the watch. When it returns, its checker is not running and will not run again.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.checker != nil {
		w.checker = nil
		w.alarm.Stop()
	}
}

// checkInterval is how often a session that waits for an upstream connection checks whether its client is still
// connected; most waits are much shorter.
var checkInterval = time.Second

// errClientGone is returned when the client left before it had an upstream connection.
var errClientGone = errors.New("the client left while it waited for an upstream connection")

// waitingClient is a session that waits for its upstream connection. It checks whether its client has left: by a reset or,
// without TLS, by a FIN without a byte before it. A client that sent data before its FIN may be waiting for the answer.
type waitingClient session

func (c *waitingClient) check() (next time.Duration) {
	s := (*session)(c)
	if s.client.WasReset() || s.cfg.TLS == nil && s.waiting.Ended() {
		s.giveUp()
		return 0
	}
	return checkInterval
}

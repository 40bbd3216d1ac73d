package listener

import (
	"context"
	"fmt"
	"time"
)

// closeGrace is how long Drain and Close wait for sessions to return after
// their connections were closed under them.
const closeGrace = 2 * time.Second

// Drain stops accepting, closes Draining, rejects connections that wait for a
// place, and waits until every session is over. When ctx ends first, sessions'
// contexts are cancelled and their connections closed, and the error wraps
// ctx's and says how many there were. It may be called more than once.
func (s *Server) Drain(ctx context.Context) error {
	s.stop()
	select {
	case <-s.empty:
		s.cancel()
		return nil
	case <-ctx.Done():
	}
	n := s.closeSessions()
	if n == 0 {
		return nil
	}
	return fmt.Errorf("listener %q: drain: %d sessions cut off: %w", s.name, n, context.Cause(ctx))
}

// Close stops accepting and ends every session now.
func (s *Server) Close() {
	s.stop()
	s.closeSessions()
}

// stop ends accepting and begins the drain, once.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	close(s.draining)
	s.gate.close()
	for l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.conns {
		if !c.serving { // queued, or its PROXY header is being read
			_ = c.raw.Close()
		}
	}
	s.noteEmpty()
}

// closeSessions cuts off what still runs and returns how many that were.
func (s *Server) closeSessions() int {
	s.cancel()
	s.mu.Lock()
	n := len(s.conns)
	for c := range s.conns {
		_ = c.raw.Close()
	}
	s.mu.Unlock()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-s.empty:
	case <-timer.C:
		s.config().Logger.Error("sessions do not end although their connections are closed", "of", n)
	}
	return n
}

package listener

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"
)

const (
	// beginGrace is how long Drain waits for accepted connections to begin their sessions. Most do so within a tick. The
	// others wait for a PROXY header, or in the queue.
	beginGrace = 200 * time.Millisecond
	beginPause = time.Millisecond
	// cutGrace is how long sessions have to end by themselves, once their context is cancelled, before their connections are reset.
	cutGrace = 250 * time.Millisecond
	// closeGrace is how long Drain and Close wait for sessions to return after
	// that.
	closeGrace = 2 * time.Second
)

// Drain stops accepting, lets clients that were accepted begin their sessions, closes the channel of
// Draining, rejects queued connections, and waits until all sessions have ended. If ctx ends first,
// Drain cancels the sessions' contexts, and resets connections that are still open a moment later, so
// that an incomplete response does not look complete. The error then wraps ctx's and has the number
// of these sessions. Drain may be called more than once.
func (s *Server) Drain(ctx context.Context) error {
	s.closeListeners()
	s.awaitBegun(ctx)
	s.beginDrain()
	select {
	case <-s.empty:
		s.cancel()
		s.reports.end()
		return nil
	case <-ctx.Done():
	}
	n := s.closeSessions()
	if n == 0 {
		return nil
	}
	return fmt.Errorf("listener %q: drain: sessions cut off: %d: %w", s.name, n, context.Cause(ctx))
}

// Close stops accepting and ends every session now.
func (s *Server) Close() {
	s.closeListeners()
	s.beginDrain()
	s.closeSessions()
}

// closeListeners ends accepting, once.
func (s *Server) closeListeners() {
	s.mu.Lock()
	var all []*net.Listener
	if !s.closed {
		s.closed = true
		close(s.closing)
		all = slices.Collect(maps.Keys(s.listeners))
	}
	s.mu.Unlock()
	for _, l := range all {
		_ = (*l).Close() // without the lock: it may wait for a loop whose sessions wait for the lock
	}
}

// awaitBegun waits, for beginGrace at most, until the accept loops have ended and the clients that they accepted have
// begun their sessions. beginDrain would disconnect these clients, although another process or Server that accepts from
// the same socket could have served them.
func (s *Server) awaitBegun(ctx context.Context) {
	timeout, tick := time.NewTimer(beginGrace), time.NewTicker(beginPause)
	defer timeout.Stop()
	defer tick.Stop()
	for s.accepting.Load() > 0 || s.beginning() {
		select {
		case <-tick.C:
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		case <-s.draining:
			return
		}
	}
}

// beginning reports whether an accepted connection that is not queued has no session yet.
func (s *Server) beginning() bool {
	_, queued := s.connLimit.counts()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unbegun > queued
}

// beginDrain begins the drain, once.
func (s *Server) beginDrain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	close(s.draining)
	s.connLimit.close()
	for _, c := range s.conns {
		if !c.is(connServing) { // queued, or its PROXY header is being read
			_ = c.stream.Close()
		}
	}
	s.noteEmpty()
}

// closeSessions ends the sessions that still run and returns their number.
func (s *Server) closeSessions() int {
	defer s.reports.end()
	s.mu.Lock()
	n := len(s.conns) // before cancel ends some of them
	s.mu.Unlock()
	s.cancel()
	if s.emptyWithin(cutGrace) {
		return n
	}
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.SetLinger(0)
		_ = c.stream.Close()
	}
	s.mu.Unlock()
	if s.emptyWithin(closeGrace) {
		return n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config().Logger.Error("sessions do not end although their connections are closed", "sessions", len(s.conns))
	return n
}

// emptyWithin waits until every session is over, or for d.
func (s *Server) emptyWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.empty:
		return true
	case <-timer.C:
		return false
	}
}

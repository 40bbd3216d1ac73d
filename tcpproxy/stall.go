package tcpproxy

import (
	"errors"
	"sync/atomic"
	"time"
)

// errStalled is why a session ends whose server does not answer.
var errStalled = errors.New("the client has sent something and heard nothing for the stall time-out")

// stall finds out since when a client has waited for an answer, if it is looked at
// from time to time.
type stall struct {
	patience time.Duration // 0 = no check
	asked    atomic.Bool   // the last piece of data was the client's
	answered uint64        // at the last look
	since    time.Time     // the first look that saw the unanswered data; zero: none has
}

// moved records which side sent the last piece.
func (s *stall) moved(byClient bool) {
	if s.patience > 0 && s.asked.Load() != byClient {
		s.asked.Store(byClient)
	}
}

// step returns how long to wait between two looks.
func (s *stall) step() time.Duration {
	if s.patience <= 0 {
		return time.Hour // nobody looks
	}
	return max(s.patience/checksPerTimeout, 1)
}

// look takes a number that grows while the client is answered, and reports whether the time is over.
func (s *stall) look(answered uint64, now time.Time) bool {
	switch {
	case !s.asked.Load():
		s.since = time.Time{}
	case s.since.IsZero() || answered != s.answered: // answered, and asked again
		s.since = now
	}
	s.answered = answered
	return !s.since.IsZero() && now.Sub(s.since) >= s.patience
}

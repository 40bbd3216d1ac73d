package tcpproxy

import (
	"errors"
	"sync/atomic"
	"time"
)

// errStalled ends a session whose server does not answer.
var errStalled = errors.New("the client has sent something and heard nothing for the stall time-out")

// stall finds out since when a client has waited for an answer. It works by calls of look from time to time.
type stall struct {
	patience time.Duration // 0 = no check
	asked    atomic.Bool   // the client sent the last piece of data
	answered uint64        // as of the last look
	since    time.Time     // time of the first look that saw the unanswered data; zero: none has
}

// moving records which side sent the last piece. It is called before the piece is sent on: the other side's answer to it must be recorded
// afterwards. On a loop that copies both directions this is so after the sending, too.
func (s *stall) moving(byClient bool) {
	if s.patience > 0 && s.asked.Load() != byClient {
		s.asked.Store(byClient)
	}
}

// step returns the time between two looks.
func (s *stall) step() time.Duration {
	if s.patience <= 0 {
		return time.Hour // there is no check
	}
	return max(s.patience/checksPerTimeout, 1)
}

// look takes the result of relay.answered and reports whether the client has waited for patience.
func (s *stall) look(answered uint64, now time.Time) bool {
	switch {
	case !s.asked.Load():
		s.since = time.Time{}
	case s.since.IsZero() || answered != s.answered: // an answer has come, and the client has sent more
		s.since = now
	}
	s.answered = answered
	return !s.since.IsZero() && now.Sub(s.since) >= s.patience
}

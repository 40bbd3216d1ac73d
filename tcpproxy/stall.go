package tcpproxy

import (
	"errors"
	"sync/atomic"
	"time"
)

// errStalled ends a session whose server does not answer.
var errStalled = errors.New("the client has sent something and heard nothing for the stall time-out")

// stall determines since when a client has waited for an answer. check is called at intervals.
type stall struct {
	limit    time.Duration // 0 = no check
	asked    atomic.Bool   // the client sent the last piece of data
	answered uint64        // as of the last check
	since    time.Time     // time of the first check that saw the unanswered data; zero = none
}

// moving records which side sent the last piece. It is called before the piece is sent on, so that the answer to it is
// recorded later. A loop that copies both directions may also call it after sending.
func (s *stall) moving(byClient bool) {
	if s.limit > 0 && s.asked.Load() != byClient {
		s.asked.Store(byClient)
	}
}

// step returns the time between two checks.
func (s *stall) step() time.Duration {
	if s.limit <= 0 {
		return time.Hour // no check
	}
	return max(s.limit/checksPerTimeout, 1)
}

// check takes the result of relay.answered and reports whether the client has waited for the limit.
func (s *stall) check(answered uint64, now time.Time) bool {
	switch {
	case !s.asked.Load():
		s.since = time.Time{}
	case s.since.IsZero() || answered != s.answered: // the client has got an answer, and has sent more
		s.since = now
	}
	s.answered = answered
	return !s.since.IsZero() && now.Sub(s.since) >= s.limit
}

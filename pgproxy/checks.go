package pgproxy

import (
	"sync/atomic"
	"time"
)

// checks counts the transactions after which the gateway asked the server of a backend for session state of any kind, and a
// digest did not do. Such a check may take the server more than the transaction. If the functions that were called leave no state, it is for nothing.
type checks struct {
	n      atomic.Int64
	began  atomic.Int64 // when the first of the last checksToWarn was, by clock
	warned atomic.Bool
}

// After so many checks within a time the log says once what they come from.
const (
	checksToWarn = 1000
	checksWithin = time.Minute
)

// add counts a check, and reports whether to log that there are many.
func (c *checks) add(now time.Duration) (many bool) {
	switch n := c.n.Add(1); n % checksToWarn {
	case 1:
		c.began.Store(int64(now))
	case 0:
		return now-time.Duration(c.began.Load()) < checksWithin && !c.warned.Swap(true)
	}
	return false
}

// noteWholeCheck counts a check for state of any kind that follows a transaction of the session, for which a digest did not do.
func (s *session) noteWholeCheck() {
	if soon := s.b.tables.knowledge.want(); soon || !s.b.checks.add(clock()) {
		return
	}
	s.c.Logger().Warn("the server is asked after many transactions for the session state that they have left, which may take it more than the transactions do:"+
		" they call functions that may leave some, or use DO or EXECUTE", "upstream", s.b.cfg.Name, "database", s.c.Database)
}

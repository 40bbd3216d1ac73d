package pgproxy

import (
	"sync/atomic"
	"time"
)

// checks counts the transactions after which the gateway asked the server of a backend for session state of any kind. Such a
// check may take the server more than the transaction. If the functions that were called leave no state, it is for nothing.
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

// noteCheck counts a check for state of any kind that follows a transaction of the session.
func (s *session) noteCheck() {
	s.machine.rules.checks.Add(1)
	if !s.b.checks.add(clock()) {
		return
	}
	cfg := s.b.cfg
	if cfg.ReadCatalogs == CatalogsTrusted {
		return // it has left out what it can
	}
	s.c.Logger().Warn("the server is asked after many transactions for the session state that they have left, which may take it more than the transactions do:"+
		" they call functions that are not PostgreSQL's own, or use DO or EXECUTE; read_catalogs: true of the upstream leaves out functions that leave no state",
		"upstream", cfg.Name, "database", s.c.Database)
}

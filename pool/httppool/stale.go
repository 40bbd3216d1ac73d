package httppool

import (
	"fmt"
	"time"
)

const (
	maxStale = 256 // connections found dead at checkout before giving up: one restart may kill a whole pool's
	maxFresh = 2   // of them, those that were opened meanwhile: a server that hangs up at once will go on so
)

// Stale deals with the connections that one request finds dead at checkout (see Conn.Alive). The zero value
// is for a new request; it is not for concurrent use.
type Stale struct {
	first time.Time // when the first was found
	all   int
	fresh int // of connections opened since
}

// Next closes and discards the connection of l, after which another may be leased; or it returns why that is of no use:
// the *Error wraps ErrServerGone when the server hangs up on connections that were opened just for this
// request, which then counts against its endpoint, and ErrStale when too many were dead.
func (s *Stale) Next(l Lease) error {
	c := l.Value()
	_ = c.Close()
	if s.all++; s.all == 1 {
		s.first = time.Now()
	} else if c.opened.After(s.first) {
		s.fresh++
	}
	switch {
	case s.fresh == maxFresh:
		gone := &Error{Endpoint: l.Endpoint(), Step: "acquire", Err: fmt.Errorf("%w as soon as it was opened", ErrServerGone)}
		l.Fail(gone)
		return gone
	case s.all == maxStale:
		l.Discard()
		return &Error{Step: "acquire", Err: ErrStale}
	}
	l.Discard()
	return nil
}

package mux

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/headpond/headpond/mux/frame"
)

// One goroutine at a time reads from a link (link.reading). A lone receiver reads the link itself:
// its message arrives on its own goroutine, and no other one is woken, which is most of the cost of
// a round trip. All other callers wait for the session's reader. While receivers read, the
// session's reader stands by, and takes over when a caller waits that cannot read (for credit, for
// a channel, with a context that may end), or when nothing was read for a while.

// standby is how long a connection may go unread before the session's reader takes over, to answer
// pings and to notice the end of the connection. It doubles, up to standbyMost, each time that
// receivers have read meanwhile: a timer that fires makes the runtime wake an idle processor, which
// then waits for the socket beside the busy one, and each large message is received half there and
// half here.
const (
	standby     = 5 * time.Millisecond
	standbyMost = 8 * standby
)

// longAgo is a deadline that interrupts a Read.
var longAgo = time.Unix(1, 0)

// read is l's reader, the session's reader goroutine. It waits only for bytes and for readersTurn.
func (s *Session) read(l *link) {
	defer close(l.readerDone)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.releaseLink(l)
	for l.ended == nil {
		for l.ended == nil && !s.readersTurn(l) {
			s.mu.Unlock()
			<-l.wake
			s.mu.Lock()
		}
		if l.ended == nil {
			s.readOnce(l, nil, nil)
			s.mu.Unlock()
			runtime.Gosched() // woken goroutines answer before the next read
			s.mu.Lock()
		}
	}
	for _, timer := range []*time.Timer{l.idle, l.grace} {
		if timer != nil {
			timer.Stop()
		}
	}
	s.drop(l.in)
	s.ended(l, l.ended)
}

// readersTurn reports whether the session's reader should read. mu is held.
func (s *Session) readersTurn(l *link) bool {
	if l.reading {
		return false
	}
	if l.raw == nil || l.overdue || l.lost || l.broken || s.core.err != nil || s.waiting > 0 || !s.patient {
		l.overdue = false
		return true
	}
	s.watch(l)
	return false
}

// watch makes the session's reader take over if no receiver reads for l.standby. mu is held.
func (s *Session) watch(l *link) {
	l.gaps++
	if l.watched {
		return
	}
	l.watched, l.seen = true, l.gaps
	if l.idle == nil {
		l.idle, l.standby = time.AfterFunc(standby, func() { s.standbyOver(l) }), standby
		return
	}
	l.idle.Reset(l.standby)
}

func (s *Session) standbyOver(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.watched = false
	switch {
	case l.reading || l.ended != nil:
	case l.gaps != l.seen:
		l.standby = min(2*l.standby, standbyMost)
		s.watch(l)
	default:
		l.standby = standby
		l.overdue = true
		l.wakeReader()
	}
}

// readOnce reads the next input and handles it. w, and alarm if not nil, are the
// waiters of a calling receiver: waking them interrupts the read. mu is held, and
// released while reading.
func (s *Session) readOnce(l *link, w, alarm *waiter) {
	l.reading = true
	l.users++
	if b := l.in.to.b; b != nil && b.owner != nil && b.owner != w {
		s.recall(l.in.to.ch, b)
	}
	var err error
	if !l.in.more {
		w.reads(l)
		alarm.reads(l)
		s.mu.Unlock()
		err = l.in.fetch()
		s.mu.Lock()
		w.reads(nil)
		alarm.reads(nil)
	}
	if l.raw != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		l.conn.SetReadDeadline(time.Time{})
		err = nil
	} else if err == nil {
		err = s.parse(l.in)
	}
	if err == nil && l.lost {
		err = net.ErrClosed // the other side sends again what was not handled; a receiver does not read here again
	}
	l.reading = false
	s.releaseLink(l)
	if err != nil {
		l.ended = err
		l.wakeReader()
	}
}

// recall moves the message being assembled in a receiver's own memory b to a buffer.
// No goroutine is reading. mu is held.
func (s *Session) recall(ch *channel, b *buffer) {
	if in := s.last.in; in.big && in.to.b == b {
		in.rest = s.core.recall(ch, b, &in.to, in.rest)
		return
	}
	s.core.recall(ch, b, nil, nil)
}

// readHere reads on the goroutine of ch's receiver, if it waits alone, until data
// has arrived, which may be in the receiver's own memory then. It reports false if the
// receiver must wait for the session's reader. mu is held, and released while reading.
func (s *Session) readHere(ch *channel, w, alarm *waiter) bool {
	l := s.link
	if l == nil || l.raw == nil || l.reading || l.ended != nil || s.waiting > 0 {
		return false
	}
	s.core.eager, s.core.receiver = ch, w
	s.readOnce(l, w, alarm)
	s.core.eager, s.core.receiver = nil, nil
	return l.ended == nil
}

// doneReading is called by a receiver that has finished reading the link. mu is held.
func (s *Session) doneReading() {
	l := s.link
	switch {
	case l == nil || l.reading:
	case s.waiting > 0 || l.broken || s.core.err != nil:
		l.wakeReader()
	default:
		s.watch(l)
	}
}

func (l *link) wakeReader() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// ended handles the end of the connection's input. mu is held.
func (s *Session) ended(l *link, err error) {
	var bye *GoAwayError
	switch {
	case l.lost: // lose has been called
	case s.core.err != nil && !s.dead && !s.closing:
		s.fail(err)
	case errors.Is(err, errFlood):
		s.finish(fmt.Errorf("%w: %w", ErrSessionLost, err), frame.CodeFlood, err.Error())
	case errors.Is(err, ErrProtocol) && !errors.As(err, &bye):
		s.finish(fmt.Errorf("%w: %w", ErrSessionLost, err), frame.CodeProtocol, err.Error())
	case errors.As(err, &bye):
		s.fail(bye)
	case s.closing:
		s.over(err) // Close, or the writer, closes the connection
	default:
		s.lose(l, lost(err))
	}
}

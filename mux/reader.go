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

// Who reads: one goroutine at a time, link.reading. A receiver that nobody else
// waits beside reads itself: its message comes on its own goroutine, without
// waking another one, which is most of what a round trip costs. Everybody else
// waits for the session's reader. While receivers read for themselves that one
// stands by, and takes over when somebody waits who cannot read (for credit, for
// a channel, with a context that may end), or when nobody has read for a while.

// standby is how long a connection may go unread: what answers pings, and finds
// the end of the connection, when the application does something else. It doubles,
// up to standbyMost, each time that receivers turn out to have read meanwhile: a
// timer that fires has the runtime wake an idle processor, which then waits for the
// socket beside the one that works, and each large message is half received there
// while it is half sent here.
const (
	standby     = 5 * time.Millisecond
	standbyMost = 8 * standby
)

// longAgo is a deadline that interrupts a Read.
var longAgo = time.Unix(1, 0)

// read is l's reader. It never waits for anything but bytes and its turn.
func (s *Session) read(l *link) {
	defer close(l.readerDone)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.leave(l)
	for l.ended == nil {
		for l.ended == nil && !s.readersTurn(l) {
			s.mu.Unlock()
			<-l.turn
			s.mu.Lock()
		}
		if l.ended == nil {
			s.readOnce(l, nil, nil)
			s.mu.Unlock()
			runtime.Gosched() // whoever was woken answers before the next look at the socket
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

// readersTurn tells whether it is for the session's reader to read. mu is held.
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

// watch makes the reader take over if nobody else reads. mu is held.
func (s *Session) watch(l *link) {
	l.turns++
	if l.watched {
		return
	}
	l.watched, l.seen = true, l.turns
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
	case l.turns != l.seen:
		l.standby = min(2*l.standby, standbyMost)
		s.watch(l)
	default:
		l.standby = standby
		l.overdue = true
		l.wakeReader()
	}
}

// readOnce reads what comes next and takes it. w, and alarm if not nil, are the
// caller's if it is a receiver: waking them interrupts. mu is held, and given up
// while reading.
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
		err = net.ErrClosed // what was read and not taken comes again; a receiver does not read here again
	}
	l.reading = false
	s.leave(l)
	if err != nil {
		l.ended = err
		l.wakeReader()
	}
}

// recall moves what is put together in a receiver's own memory b to a buffer.
// Nobody reads. mu is held.
func (s *Session) recall(ch *channel, b *buffer) {
	if in := s.last.in; in.big && in.to.b == b {
		in.rest = s.core.recall(ch, b, &in.to, in.rest)
		return
	}
	s.core.recall(ch, b, nil, nil)
}

// lead reads on the goroutine of ch's receiver, if it is alone: until it has
// something, which may be in its own buffer then. It reports false when it must
// wait for another. mu is held, and given up while reading.
func (s *Session) lead(ch *channel, w, alarm *waiter) bool {
	l := s.link
	if l == nil || l.raw == nil || l.reading || l.ended != nil || s.waiting > 0 {
		return false
	}
	s.core.eager, s.core.receiver = ch, w
	s.readOnce(l, w, alarm)
	s.core.eager, s.core.receiver = nil, nil
	return l.ended == nil
}

// led is called by a receiver that has read and goes. mu is held.
func (s *Session) led() {
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
	case l.turn <- struct{}{}:
	default:
	}
}

// ended deals with the end of the connection's input. mu is held.
func (s *Session) ended(l *link, err error) {
	var bye *GoAwayError
	switch {
	case l.lost: // whoever found out has done what there is to do
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

package httpproxy

import (
	"bytes"
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// A session rests while an answer pauses, such as a stream of events: it has neither a stack nor buffers meanwhile, because there may be very
// many such sessions. fromServer finds the pause and returns errRests, and all functions return up to forwarded. beginRest registers what
// continues the session: more from the server, its end, or the end of its time; and for HTTP/1.1 anything that the client sends, or its end.
// The reset of a stream of HTTP/2 closes the connection to the server.
//
// A session keeps its stack where the body of the request is still being sent, the answer is compressed, has a length or comes by HTTP/2, or
// the two connections do not live on one loop.

// errRests: the session can rest.
var errRests = errors.New("the answer pauses")

// resting is what an exchange knows of its rests.
type resting struct {
	never bool      // the session cannot rest
	again bool      // the next wait for the server continues the one before the rest
	until time.Time // the end of that wait; zero = never
}

// within returns the deadline of a wait for the server that begins or continues now.
func (r *resting) within(s *session) time.Time {
	if r.again {
		r.again = false
		return r.until
	}
	return s.within()
}

// mayRest reports whether the exchange is one in which the session can rest.
func (s *session) mayRest() bool {
	x := &s.ex
	return !x.rest.never && x.squeeze.by == nil && (x.up == nil || x.up.sent())
}

// canRest reports whether the session can rest now, after a read from the server that has found nothing.
func (s *session) canRest() bool {
	loop := s.client.conn.Loop()
	if s.stream != nil {
		loop = s.stream.home()
	}
	if loop == 0 || s.server.conn.Loop() != loop {
		s.ex.rest.never = true
		return false
	}
	// Unread bytes of the client would end the rest at once. Its end may be a half-close: what comes before the next look still goes to it.
	return s.server.r == s.server.w && s.client.conn.State() == fiber.Silent
}

// forwarded ends an exchange with the outcome err, or has the session rest. It returns false if the session ends, or rests.
func (s *session) forwarded(err error) bool {
	for errors.Is(err, errRests) {
		if s.beginRest() {
			return false
		}
		err = s.continueBody()
	}
	again := s.finish(err)
	s.served = true
	return again
}

// beginRest frees the session's buffers and registers what continues it. Then the fiber must return at once, and not use the session any
// more. It returns false where the session cannot rest.
func (s *session) beginRest() bool {
	s.slim()
	s.ex.rest.again = true
	_ = s.server.conn.SetReadDeadline(s.ex.rest.until)
	if s.stream != nil {
		s.rests = s.server.conn.OnReadable(s.stream.resumes())
	} else {
		s.rests = s.suspend()
	}
	s.ex.rest.never = s.ex.rest.never || !s.rests
	return s.rests
}

// suspend suspends the session until one of its connections can be read.
func (s *session) suspend() bool {
	resume := s.lc.SuspendUntil()
	if resume == nil {
		return false
	}
	s.leases = nil // it belongs to the fiber
	client, server := s.client.conn, s.server.conn
	_ = client.SetReadDeadline(time.Time{}) // that of the request's head may still be there
	woken := false                          // only fibers of this loop use it
	wake := func() {
		if woken {
			return
		}
		woken = true
		server.OnReadable(nil)
		client.OnReadable(nil)
		resume()
	}
	if !server.OnReadable(wake) || !client.OnReadable(wake) {
		s.ex.rest.never = true
		wake()
	}
	return true
}

// endRest continues the exchange after a rest. It returns false if the session ends, or rests again.
func (s *session) endRest() bool {
	s.rests = false
	return s.forwarded(s.continueBody())
}

// continueBody does what exchange has left to do after a rest.
func (s *session) continueBody() error {
	settled := false
	defer func() {
		if !settled { // a panic
			_ = s.fail("", httppool.ErrClientGone)
		}
	}()
	err := s.restOfBody()
	settled = true
	return err
}

// restOfBody passes the rest of the body on, and ends the lease unless the session can rest again.
func (s *session) restOfBody() (err error) {
	switch {
	case s.clientGone():
		err = httppool.ErrClientGone
	case s.resp.Length == httpwire.Chunked:
		err = s.moreOfChunks(s.outgoing())
	default:
		err = s.moreUnframed(s.outgoing())
	}
	switch {
	case err == nil:
		return s.endLease()
	case errors.Is(err, errRests):
		return err
	}
	return s.fail("body", err)
}

// slim gives back the buffers that the rest of the answer does not need. The request's head has been sent, but logs need it: it moves to a
// buffer of its size.
func (s *session) slim() {
	x := &s.ex
	s.releaseOut()
	s.resp.Fields, s.resp.Reason = nil, nil // they refer to the server's buffer
	switch n := len(s.client.bytes()); {
	case n == 0 || len(s.client.buf) == x.size, x.inline && n > x.size+int(x.body): // nothing to gain, or the next request is there
		return
	case s.stream != nil: // whose head came as fields
		s.client.drop()
	default:
		x.id, x.raw = bytes.Clone(x.id), nil
		s.client.w = s.client.r + x.size
		s.client.shrink()
		closes, continues := s.req.Close, s.req.Continue
		_, _ = s.req.Parse(s.client.bytes()) // it has been parsed before
		_, _, _ = s.canonical()
		s.req.Close, s.req.Continue = closes, continues
	}
	x.body = 0
}

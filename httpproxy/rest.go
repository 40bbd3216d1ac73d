package httpproxy

import (
	"bytes"
	"errors"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// A session rests while an answer pauses, such as a stream of events. Meanwhile it has neither a stack nor buffers, since
// there may be many such sessions. fromServer detects the pause and returns errRests, and all functions return up to
// forwarded. beginRest registers the events that continue the session: data or the end from the server, and the end of the
// time limit; for HTTP/1.1 also data or the end from the client. The reset of an HTTP/2 stream closes the connection to
// the server.
//
// A session keeps its stack while it sends the request's body, if the answer is compressed, has a length or comes by
// HTTP/2, and if its two connections do not live on one loop.

// errRests: the session can rest.
var errRests = errors.New("the answer pauses")

// resting is the state of an exchange with regard to rests.
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

// mayRest reports whether the session may rest during this exchange.
func (s *session) mayRest() bool {
	x := &s.ex
	return !x.rest.never && x.compression.by == nil && (x.up == nil || x.up.sent())
}

// canRest reports whether the session can rest now, after a read from the server found nothing.
func (s *session) canRest() bool {
	loop := s.client.conn.Loop()
	if loop == 0 || s.server.conn.Loop() != loop {
		s.ex.rest.never = true
		return false
	}
	// Unread bytes of the client would end the rest at once. The client's end may be a half-close: data
	// that the server sends before the next check is still sent to the client.
	return s.server.r == s.server.w && s.client.conn.State() == fiber.Silent
}

// forwarded ends an exchange with the outcome err, or makes the session rest. It returns false if the session ends or
// rests.
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

// beginRest frees the session's buffers and registers the events that continue it. The fiber must then
// return at once, and not use the session any more. It returns false if the session cannot rest.
func (s *session) beginRest() bool {
	if s.ex.upgraded {
		return s.restInTunnel()
	}
	s.trimBuffers()
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
	_ = client.SetReadDeadline(time.Time{}) // the deadline of the request's head may still be set
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

// endRest continues the exchange after a rest. It returns false if the session ends or rests again.
func (s *session) endRest() bool {
	s.rests = false
	return s.forwarded(s.continueBody())
}

// continueBody does the remaining work of exchange after a rest.
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

// restOfBody passes on the rest of the body. It ends the lease, unless the session can rest again.
func (s *session) restOfBody() (err error) {
	switch {
	case s.ex.upgraded:
		return s.endTunnel()
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

// trimBuffers frees the buffers that the rest of the answer does not need. The request's head has been sent, but logs need
// it, so it moves to a buffer of its size.
func (s *session) trimBuffers() {
	x := &s.ex
	s.releaseOut()
	s.resp.Fields, s.resp.Reason = nil, nil // they refer to the server's buffer
	switch n := len(s.client.bytes()); {
	case n == 0 || len(s.client.buf) == x.size, x.inline && n > x.size+int(x.body): // nothing to gain, or the next request has arrived
		return
	case s.stream != nil: // the head came as fields
		s.client.drop()
	default:
		x.id, x.raw = bytes.Clone(x.id), nil
		s.client.w = s.client.r + x.size
		s.client.shrink()
		closes, continues := s.req.Close, s.req.Continue
		_, _ = s.req.Parse(s.client.bytes()) // no error: the same head was parsed before
		_, _, _ = s.canonical()
		s.req.Close, s.req.Continue = closes, continues
	}
	x.body = 0
}

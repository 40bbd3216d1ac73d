package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// responseHead reads the head of a response and returns its size in the server's buffer.
func (s *session) responseHead() (int, error) {
	for {
		n, there, err := s.nextHead()
		if there || err != nil {
			s.ex.rest.again = false // a place may have the head right after a rest
			return n, err
		}
		err = s.awaitServer()
		switch {
		case err == nil:
		case !errors.Is(err, errFull):
			return 0, err
		case !s.server.grow(maxResponseHead):
			return 0, fmt.Errorf("%w: head longer than %d bytes", httpwire.ErrMalformed, maxResponseHead)
		}
	}
}

// nextHead parses the head of a response if it has arrived, and returns its size in the server's buffer.
func (s *session) nextHead() (n int, there bool, err error) {
	x := &s.ex
	if p := s.place(); p != nil {
		if there, err = p.takeHead(&s.resp, &s.respText); there {
			x.answered = true
		}
		if there && err == nil && s.resp.Status >= 200 && p.hasContent() { // the content behind an interim head is that of a later one
			_, err = s.server.fill() // now, so that head and content are sent together
		}
		return 0, there, err
	}
	if s.server.r == s.server.w {
		return 0, false, nil
	}
	x.answered = true
	n, err = s.parseResponse(s.asksHead())
	if errors.Is(err, httpwire.ErrIncomplete) {
		return 0, false, nil
	}
	return n, true, err
}

// parseResponse reads a response's head at the start of the server's data.
func (s *session) parseResponse(head bool) (int, error) {
	if s.ex.target.route.StrictBackend {
		return s.resp.Parse(s.server.bytes(), head)
	}
	return s.resp.ParseLenient(s.server.bytes(), head)
}

// awaitServer reads once from the server, within the response time-out and only while the client stays. It returns errRests
// if the session can rest; continueExchange continues it then.
func (s *session) awaitServer() error {
	until := s.answerBy()
	look := s.ex.sent.Add(checkInterval)
	if s.ex.rest.again {
		s.ex.rest.again = false
		if s.clientGone() {
			return httppool.ErrClientGone
		}
		look = time.Now().Add(checkInterval)
	}
	if s.ex.up != nil {
		s.awaiting.Store(true)
		defer s.awaiting.Store(false)
	}
	for {
		next := look
		if !until.IsZero() && until.Before(look) {
			next = until
		}
		s.deadline = true
		_ = s.server.conn.SetReadDeadline(next)
		err := s.moreOfHead()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		now := time.Now()
		until = s.answerBy() // the upload may have ended
		if err := s.proceed(); err != nil {
			return err
		}
		switch {
		case s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		case s.clientGone():
			return httppool.ErrClientGone
		case !until.IsZero() && !now.Before(until):
			return err
		case now.Before(look) || !s.waitsOnly(): // before look, the upload has ended, and the answer may follow at once
		case s.mayRestForHead():
			s.ex.rest.head, s.ex.rest.until = true, until
			return errRests
		default:
			s.trimRequest()
		}
		look = now.Add(checkInterval)
	}
}

// answerBy returns the deadline of the response's head; zero = none, or none as long as the request's body is being sent.
func (s *session) answerBy() time.Time {
	x, limit := &s.ex, s.responseLimit()
	switch {
	case limit <= 0:
		return x.until
	case x.up == nil:
		return x.earlier(x.sent.Add(limit))
	case x.up.ended():
		return x.earlier(x.up.time(x.up.at.Load()).Add(limit))
	}
	return x.until
}

// moreOfHead reads once from the server; with HTTP/2 it waits for a whole head.
func (s *session) moreOfHead() error {
	if p := s.place(); p != nil {
		return p.WaitReadable()
	}
	_, err := s.server.fill()
	return err
}

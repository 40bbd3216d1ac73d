package httpproxy

import (
	"errors"
	"net/http"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// maxSkipped bounds the body of a request that the proxy answers itself, and reads for nothing so that the client can use
// its connection again: for a longer one a new connection costs less.
const maxSkipped = 64 << 10

// skips reports whether the connection of a request that gets an answer of the proxy with that status can go on after its
// body. Otherwise it ends, as the remainder of the body would be taken for a request. The end of a stream ends no connection.
func (s *session) skips(status int) bool {
	length, come := s.req.Length, int64(len(s.client.bytes())-s.ex.size)
	switch {
	case length == 0:
		return true
	case s.stream != nil:
		return false
	case s.req.Demands || s.req.Expects() && !s.ex.clientContinues: // the client may not send its body
		return false
	}
	switch status {
	case http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge:
		return false
	}
	return length-come <= maxSkipped // or it is in chunks
}

// skipBody reads the request's body, whose head was taken, for up to lingerTime. It reports false if the body has not come
// by then, is malformed, or is longer than skips allows.
func (s *session) skipBody() bool {
	_ = s.client.conn.SetReadDeadline(time.Now().Add(lingerTime))
	if s.req.Length == httpwire.Chunked {
		return s.skipChunks()
	}
	for left := s.req.Length; ; {
		n := s.client.upTo(int(min(left, bufferSize)))
		left -= int64(len(n))
		if s.client.take(len(n)); left == 0 {
			return true
		}
		if len(n) == 0 && !s.moreToSkip() {
			return false
		}
	}
}

func (s *session) skipChunks() bool {
	s.upChunks.Reset(nil) // a stream's body is not skipped
	for skipped := 0; skipped <= maxSkipped; {
		_, n, done, err := s.upChunks.Next(s.client.bytes())
		switch {
		case errors.Is(err, httpwire.ErrIncomplete):
			if !s.moreToSkip() {
				return false
			}
			continue
		case err != nil:
			return false
		}
		skipped += n
		if s.client.take(n); done {
			return true
		}
	}
	return false
}

// moreToSkip reads once from the client.
func (s *session) moreToSkip() bool {
	n, err := s.client.fill()
	s.count(n, 0)
	return err == nil
}

package httpproxy

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/listener"
)

// DefaultPeekBytes is the default of Config.PeekBytes: clients put the model at the top, and most requests are shorter.
const DefaultPeekBytes = 64 << 10

// MaxPeekBytes bounds Config.PeekBytes, because each request with a peeked body may hold so much memory.
const MaxPeekBytes = 16 << 20

// peek parses the beginning of a request's body in the client's buffer, where the body stays until it is sent.
type peek struct {
	scanner jsonfield.Scanner
	verdict jsonfield.Verdict
	chunks  decoder
	off     int  // bytes of the body parsed, framing included
	whole   bool // the body ends there
	full    bool // as much of the body has come as may be read
	toEnd   bool // the body is read to its end, not only that of the object
	beyond  bool // the object continues beyond the limit
	lacks   bool // a field that a route looks at was not found within the limit
}

var peeks = sync.Pool{New: func() any { return new(peek) }}

// noFields is the peek at a body that is not parsed.
var noFields = &peek{verdict: jsonfield.Malformed}

// holds reports whether the body meets a condition.
func (p *peek) holds(c *condition) bool {
	text, found := p.field(c.field)
	return found && (c.any || len(text) <= maxMatchBytes && c.holds(text))
}

// field returns a field of the body. For an object, an array or a text that is too long it returns noText.
func (p *peek) field(i int) (text string, found bool) {
	switch {
	case p.verdict != jsonfield.Complete && !p.beyond:
		return "", false
	case !p.scanner.Found(i):
		p.lacks = p.lacks || p.beyond
		return "", false
	}
	if text, ok := p.scanner.Text(i); ok {
		return text, true
	}
	return noText, true
}

// noText equals no value of a configuration, because it is longer than they may be.
var noText = strings.Repeat(" ", maxMatchBytes+1)

// routeByBody finds the route of a request by its body. status is that of a refusal, or 0. The head may move, so slices
// of it are invalid afterwards.
func (s *session) routeByBody(t *table, path string) (status int, reason, why string) {
	x := &s.ex
	if !s.hasJSON() {
		x.finding = t.find(&s.req, path, noFields)
		return 0, "", ""
	}
	p := peeks.Get().(*peek)
	defer func() {
		p.chunks = decoder{} // its trailers refer to the buffer
		peeks.Put(p)
	}()
	*p = peek{scanner: p.scanner, chunks: decoder{carrier: s.stream}}
	p.scanner.Reset(t.plan)
	p.toEnd = t.asks && s.req.Length == httpwire.Chunked && strings.HasSuffix(path, completions) // see askForUsage
	if status, reason, why = s.peekBody(t, p); status != 0 {
		return status, reason, why
	}
	if x.clientContinues { // the body is here, so the server is not asked for 100 Continue
		s.req.Continue = false
	}
	path, _, _ = s.path() // the head may have moved
	x.finding = t.find(&s.req, path, p)
	if x.target != nil {
		x.peeked = true
		s.findAffinityKey(p)
		if x.target.llm != nil {
			s.noteModel(p)
			s.askForUsage(p, path)
		}
	}
	switch {
	case p.verdict == jsonfield.Ambiguous:
		return http.StatusBadRequest, listener.ReasonProtocol, "the body has a field that routes look at twice"
	case p.lacks && t.refuse:
		return http.StatusRequestEntityTooLarge, listener.ReasonProtocol, "no field that routes look at is at the beginning of the body"
	}
	return 0, "", ""
}

// hasJSON reports whether the request has a body that may be JSON. A body without a type, or with curl's default type,
// may be.
func (s *session) hasJSON() bool {
	if s.req.Length == 0 {
		return false
	}
	for i := range s.req.Fields {
		f := &s.req.Fields[i]
		switch {
		case httpwire.EqualFold(f.Name, "content-type"):
			if !isJSON(view(f.Value)) {
				return false
			}
		case httpwire.EqualFold(f.Name, "content-encoding"):
			return false
		}
	}
	return true
}

func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "application/json" || media == "application/x-www-form-urlencoded" || strings.HasSuffix(media, "+json")
}

// peekBody reads until the object ends or the limit is reached. status is that of a refusal, or 0.
func (s *session) peekBody(t *table, p *peek) (status int, reason, why string) {
	x := &s.ex
	_ = s.client.conn.SetReadDeadline(time.Now().Add(s.p.limits.Load().readHeader)) // for the whole of peekBody
	for {
		err := p.parse(s, t.peek)
		switch {
		case err != nil:
			return http.StatusBadRequest, listener.ReasonProtocol, "the body's framing is malformed"
		case p.done():
			return 0, "", ""
		case s.req.Expects() && !x.clientContinues && len(s.client.bytes()) == x.size:
			x.clientContinues = true
			_ = s.client.conn.SetWriteDeadline(time.Now().Add(s.p.limits.Load().readHeader))
			if s.sayContinue() != nil {
				return http.StatusBadRequest, listener.ReasonClientGone, "the client has gone"
			}
		}
		switch err := s.moreToPeek(x.size + t.peek); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return http.StatusRequestTimeout, listener.ReasonClientGone, "the body did not arrive in time"
		case err != nil:
			return http.StatusBadRequest, listener.ReasonClientGone, "the body is not whole"
		}
	}
}

// moreToPeek reads once into the client's buffer, which may grow to limit. If the buffer has moved, it parses the head
// again.
func (s *session) moreToPeek(limit int) error {
	moved := s.client.r > 0
	n, err := s.client.fill()
	s.count(n, 0)
	if errors.Is(err, errFull) && s.client.grow(limit) {
		moved, err = true, nil
	}
	if moved {
		s.parseAgain()
	}
	return err
}

// parseAgain parses the request's head again, which has moved.
func (s *session) parseAgain() {
	if s.stream == nil { // otherwise it came as fields
		_, _ = s.req.Parse(s.client.bytes()) // no error, as the same head was parsed before
		_, _, _ = s.canonical()
	}
}

// done reports whether enough of the body was read.
func (p *peek) done() bool {
	if p.whole || p.full || p.scanner.Enough() {
		return true
	}
	return p.verdict != jsonfield.More && !p.goesOn()
}

// goesOn reports whether the object is complete, and the end of the body is wanted.
func (p *peek) goesOn() bool { return p.toEnd && p.verdict == jsonfield.Complete }

// parse parses more of the received body, up to limit.
func (p *peek) parse(s *session, limit int) error {
	b := s.client.bytes()[s.ex.size:]
	if p.full = len(b) >= limit; p.full {
		b = b[:limit]
	}
	if s.req.Length != httpwire.Chunked {
		b = b[:min(int64(len(b)), s.req.Length)]
		p.verdict = p.scanner.Feed(b[p.off:])
		p.off = len(b)
		p.whole = int64(p.off) == s.req.Length
	} else if err := p.parseChunks(b); err != nil {
		return err
	}
	p.beyond = p.verdict == jsonfield.More && !p.whole && p.full
	return nil
}

func (p *peek) parseChunks(b []byte) error {
	for (p.verdict == jsonfield.More || p.goesOn()) && !p.whole {
		if p.full && p.off == len(b) { // more may have been read
			return nil
		}
		content, n, done, err := p.chunks.Next(b[p.off:])
		switch {
		case errors.Is(err, httpwire.ErrIncomplete):
			return nil
		case err != nil:
			return err
		}
		p.off += n
		p.whole = done
		p.verdict = p.scanner.Feed(content)
	}
	return nil
}

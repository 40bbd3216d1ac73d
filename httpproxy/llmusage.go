package httpproxy

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/internal/llmusage"
)

// Names of fields of a request's body by which OpenAI's API tells whether a streamed answer has the usage.
const (
	streamField  = "stream"
	optionsField = "stream_options"
	usageField   = "stream_options.include_usage"
)

// completions is the end of the paths whose requests have these fields. Other APIs, such as OpenAI's responses and
// Anthropic's messages, refuse them, and always tell the usage.
const completions = "/completions"

// usageFields are the indexes of these fields in a table's plan.
type usageFields struct{ stream, options, usage int }

func newUsageFields(fields []string) *usageFields {
	return &usageFields{slices.Index(fields, streamField), slices.Index(fields, optionsField), slices.Index(fields, usageField)}
}

// splice replaces the bytes of a body from an offset up to another one.
type splice struct {
	from, to int
	with     string
}

// ask returns the change by which a body asks for the usage. ok is false if it asks already, does not ask for a stream, or
// is not valid.
func (u *usageFields) ask(p *peek) (c splice, ok bool) {
	usage, options := p.scanner.Found(u.usage), p.scanner.Found(u.options)
	if !p.is(u.stream, "true") || usage && !p.is(u.usage, "false") && !p.is(u.usage, "null") {
		return c, false
	}
	_, scalar := p.scanner.Text(u.options)
	at, _ := p.scanner.Place(u.options)
	switch {
	case usage:
		at, _ = p.scanner.Place(u.usage)
		return splice{at.From, at.To, "true"}, true
	case !options:
		at := p.scanner.Start() + 1
		return splice{at, at, `"stream_options":{"include_usage":true},`}, true
	case p.is(u.options, "null"):
		return splice{at.From, at.To, `{"include_usage":true}`}, true
	case scalar || at.To != at.From+1: // or a text that is too long
		return c, false
	case p.scanner.Empty(u.options):
		return splice{at.To, at.To, `"include_usage":true`}, true
	}
	return splice{at.To, at.To, `"include_usage":true,`}, true
}

// is reports whether field i of the body is a literal such as true, and not the string of the same text.
func (p *peek) is(i int, literal string) bool {
	text, _ := p.scanner.Text(i)
	at, _ := p.scanner.Place(i)
	return text == literal && at.To-at.From == len(literal)
}

// askForUsage makes the request ask for the usage if it is one for a streamed answer and does not. Its whole object must be
// in the client's buffer. The head may move.
func (s *session) askForUsage(p *peek, path string) {
	u := s.ex.target.llm.ask
	if u == nil || p.verdict != jsonfield.Complete || !strings.HasSuffix(path, completions) || isSigned(s.req.Fields) {
		return
	}
	chunked := s.req.Length == httpwire.Chunked
	if chunked && (!p.whole || len(p.chunks.Trailer) > 0) {
		return
	}
	c, ok := u.ask(p)
	if !ok || !s.makeRoom(len(c.with)) {
		return
	}
	k, b := s.takeTokens(), &s.client
	body := b.r + s.ex.size
	if chunked {
		n := p.off
		if s.stream == nil {
			n = unchunk(b.buf[body : body+p.off])
		}
		b.w = body + n + copy(b.buf[body+n:], b.buf[body+p.off:b.w])
		s.req.Length = int64(n)
	}
	if c.from == c.to && b.buf[body+c.from-1] == '[' { // the options are an array
		return
	}
	tail := b.buf[body+c.to : b.w]
	copy(b.buf[body+c.from+len(c.with):cap(b.buf)], tail)
	copy(b.buf[body+c.from:], c.with)
	more := len(c.with) - (c.to - c.from)
	b.w += more
	s.req.Length += int64(more)
	k.asked, k.added = true, int64(more)
}

// makeRoom makes room for n more bytes in the client's buffer. It reports false if the connection has no memory for them.
func (s *session) makeRoom(n int) bool {
	b := &s.client
	if b.w+n <= len(b.buf) {
		return true
	}
	if _, ok := s.claim(2 * len(b.buf)); !ok {
		return false
	}
	length, continues := s.req.Length, s.req.Continue
	if !b.grow(math.MaxInt) {
		return false
	}
	s.parseAgain()
	s.req.Length, s.req.Continue = length, continues
	return true
}

// unchunk decodes a whole body in chunks in place, and returns the length of its content.
func unchunk(b []byte) (n int) {
	var c httpwire.Chunks
	for at := 0; ; {
		content, size, done, err := c.Next(b[at:])
		n += copy(b[n:], content)
		if at += size; done || err != nil { // an error is impossible: the same bytes were decoded before
			return n
		}
	}
}

// signatures are the fields of requests with which a body must not change.
var signatures = []string{"content-md5", "digest", "repr-digest", "content-digest", "signature-input", "x-amz-content-sha256"}

func isSigned(fields []httpwire.Field) bool {
	for i := range fields {
		f := &fields[i]
		if slices.ContainsFunc(signatures, func(name string) bool { return httpwire.EqualFold(f.Name, name) }) {
			return true
		}
		if f.Known == httpwire.Authorization && bytes.HasPrefix(f.Value, []byte("AWS4-")) {
			return true
		}
	}
	return false
}

// addition returns the bytes that the proxy has added to the request's body. k may be nil.
func (k *tokens) addition() int64 {
	if k == nil {
		return 0
	}
	return k.added
}

// overhead bounds what goes to the client besides a piece of content: framing, and what pass has kept. k may be nil.
func (k *tokens) overhead() int {
	if k == nil || !k.asked {
		return chunkOverhead
	}
	return llmusage.MaxHeld + 2*chunkOverhead
}

// pass reads content of the answer and returns what of it goes to the client, in two pieces: see
// llmusage.Reader.Filter. k may be nil.
func (k *tokens) pass(content []byte) (first, last []byte) {
	switch {
	case !k.reading():
		return nil, content
	case !k.asked || !k.events:
		k.read(content)
		return nil, content
	}
	first, last = k.reader.Filter(content)
	k.begin()
	return first, last
}

// end returns what pass has kept, at the end of the answer. k may be nil.
func (k *tokens) end() []byte {
	if !k.reading() || !k.asked {
		return nil
	}
	return k.reader.Flush()
}

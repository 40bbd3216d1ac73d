package httpwire

import (
	"bytes"
	"fmt"
)

// Request is the head of a request. It may be reused for the next one, which invalidates the fields of
// the former.
type Request struct {
	Method []byte
	Target []byte // as it was written: origin-form, absolute-form, * …
	Minor  int    // of the version: HTTP/1.0 or HTTP/1.1, which HTTP/1.2 and so on count as
	Fields []Field

	Host   []byte // nil = none
	Hosts  int    // how many Host fields there are
	Length int64  // of the body in bytes, or Chunked; 0 = none; a Content-Length may be repeated
	// HasLength: there is a Content-Length field, which matters where it says 0.
	HasLength bool
	// Close: the connection ends with this request, because the client says so or speaks HTTP/1.0 without keep-alive.
	Close bool
	// Upgrade are the protocols to which the client wants to change, as Upgrade lists them; nil = none, or
	// Connection does not list Upgrade (RFC 9110, section 7.8).
	Upgrade []byte
	// Trailers: the client accepts trailers ("TE: trailers", RFC 9110, section 10.1.4; Firefox sends it always).
	Trailers bool
	// Continue: the client may wait for "100 Continue" before it sends the body ("Expect: 100-continue").
	// HTTP/1.0 does not have it.
	Continue bool
	// Demands: the client expects something else, which is refused with 417 (RFC 9110, section 10.1.1).
	Demands bool
	// ConnectionAuth: the credentials log in the connection (NTLM, Negotiate), so that no other client
	// may use it.
	ConnectionAuth bool
	others         bool
}

// Parse reads a request's head at the start of b and returns the bytes it takes. The error is
// ErrIncomplete or wraps ErrMalformed.
func (r *Request) Parse(b []byte) (int, error) {
	*r = Request{Fields: r.Fields[:0]}
	line, n, err := nextLine(b)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, r.early(b)
	}
	if err := r.parseLine(line); err != nil {
		return 0, err
	}
	var size int
	r.Fields, size, err = ParseFields(r.Fields, b[n:])
	if err != nil {
		return 0, err
	}
	return n + size, r.judge()
}

// early refuses input that cannot be a request before its first line is complete: its sender may never
// end the line.
func (r *Request) early(b []byte) error {
	if i := bytes.IndexByte(b, ' '); i == 0 || len(b) > 0 && !ValidToken(b[:max(i, 1)]) {
		return fmt.Errorf("%w: request line %.60q", ErrMalformed, b)
	}
	return ErrIncomplete
}

// parseLine reads "METHOD target HTTP/1.x" (RFC 9112, section 3).
func (r *Request) parseLine(line []byte) error {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	target, version, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 {
		return fmt.Errorf("%w: request line %.60q", ErrMalformed, line)
	}
	if r.Minor, ok = minorOf(version); !ok {
		if isVersion(version) {
			return fmt.Errorf("%w: %s", ErrVersion, version)
		}
		return fmt.Errorf("%w: version %.20q", ErrMalformed, version)
	}
	r.Method, r.Target = method, target
	return r.checkLine()
}

// checkLine refuses a method or a target that would be read differently as part of a line.
func (r *Request) checkLine() error {
	if !ValidToken(r.Method) || len(r.Target) == 0 {
		return fmt.Errorf("%w: request line %.30q %.30q", ErrMalformed, r.Method, r.Target)
	}
	for _, c := range r.Target {
		if c <= ' ' || c >= 0x7f {
			return fmt.Errorf("%w: request target %.60q", ErrMalformed, r.Target)
		}
	}
	return nil
}

// Complete is Parse for a head that did not come as text: the caller has set Method, Target, Minor and
// Fields, each with its Known, and nothing else. Names and values must be valid (ValidToken,
// ValidValue). Complete sets the other members, and keeps the slices. The error wraps ErrMalformed.
func (r *Request) Complete() error {
	if len(r.Fields) > MaxFields {
		return ErrTooMany
	}
	if err := r.checkLine(); err != nil {
		return err
	}
	return r.judge()
}

// judge sets the members that follow from the fields.
func (r *Request) judge() error {
	f := framing{rules: framingRules{oneFraming: true}}
	var c connection
	upgrades := 0
	for i := range r.Fields {
		field := &r.Fields[i]
		switch field.Known {
		case Other:
		case ContentLength, TransferEncoding:
			if err := f.add(field); err != nil {
				return err
			}
		case Host:
			r.Host = field.Value
			r.Hosts++
		case Connection:
			c.add(field.Value)
		case Expect:
			r.expect(field.Value)
		case TE:
			r.Trailers = r.Trailers || HasItem(field.Value, "trailers")
		case Upgrade:
			r.Upgrade = field.Value
			upgrades++
		case Authorization:
			r.ConnectionAuth = r.ConnectionAuth || ConnectionAuth(field.Value)
		}
	}
	r.HasLength, r.Length = f.lengths > 0, f.length
	if f.chunked && r.Minor == 0 {
		return fmt.Errorf("%w: Transfer-Encoding in an HTTP/1.0 request", ErrMalformed)
	}
	if f.chunked {
		r.Length = Chunked
	}
	r.Close = c.close || r.Minor == 0 && !c.keepAlive
	if !c.upgrade || upgrades > 1 || r.Minor == 0 {
		r.Upgrade = nil
	}
	r.others = c.others
	return nil
}

// Listed reports whether a Connection field names the field, which must not be forwarded then.
func (r *Request) Listed(f *Field) bool { return r.others && listed(r.Fields, f.Name) }

// expect handles an Expect field.
func (r *Request) expect(list []byte) {
	for len(list) > 0 {
		var item []byte
		switch item, list = nextItem(list); {
		case EqualFold(item, "100-continue"):
			r.Continue = r.Minor > 0
		case len(item) > 0:
			r.Demands = r.Minor > 0
		}
	}
}

// Idempotent reports whether sending the request twice has the same effect as sending it once: by its
// method, or because the sender has set an Idempotency-Key.
func (r *Request) Idempotent() bool {
	if Idempotent(r.Method) {
		return true
	}
	for i := range r.Fields {
		if f := &r.Fields[i]; f.Known == Other && MakesIdempotent(f.Name) {
			return true
		}
	}
	return false
}

// ValidHost refuses characters that would end a Host line or change its meaning; it does not judge
// names.
func ValidHost[S ~string | ~[]byte](s S) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c <= ' ' || c >= 0x7f, c == '/', c == '@', c == ',', c == '?', c == '#', c == '\\', c == '"':
			return false
		}
	}
	return len(s) > 0
}

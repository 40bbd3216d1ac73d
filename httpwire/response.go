package httpwire

import (
	"bytes"
	"fmt"
	"slices"
)

// Response is the head of a response. It may be reused for the next one, which invalidates the fields of
// the former.
type Response struct {
	Status int
	Reason []byte // "200 OK", as it was written
	Minor  int    // of the version: HTTP/1.0 or HTTP/1.1
	Fields []Field

	Length int64 // of the body that follows, in bytes, or Chunked, or Unframed
	// Reusable: this head alone allows another exchange on the connection. HTTP/1.0's never does:
	// its keep-alive is an extension that proxies and servers understood differently.
	Reusable bool
	HasDate  bool
	// Upgrades: Connection lists Upgrade, as it must in a 101 response (RFC 9110, section 7.8).
	Upgrades bool
	others   bool
}

// Parse reads a response's head at the start of b and returns the bytes it takes. head says that it
// answers a HEAD request, so that no body follows. The error is ErrIncomplete or wraps ErrMalformed.
func (r *Response) Parse(b []byte, head bool) (int, error) {
	return r.parse(b, head, framingRules{oneLength: true, oneFraming: true})
}

// ParseLenient is Parse, except that it accepts two framings of a body that have one safe meaning: a
// repeated Content-Length of the same value, and a Content-Length beside "Transfer-Encoding: chunked".
// The latter is ignored, and the response is not Reusable (RFC 9112, section 6.3). Fields has only the
// framing that counts.
func (r *Response) ParseLenient(b []byte, head bool) (int, error) {
	return r.parse(b, head, framingRules{})
}

func (r *Response) parse(b []byte, head bool, rules framingRules) (int, error) {
	*r = Response{Fields: r.Fields[:0]}
	const start = "HTTP/1."
	if k := min(len(b), len(start)); string(b[:k]) != start[:k] {
		return 0, fmt.Errorf("%w: not an HTTP/1 response: %.20q", ErrMalformed, b)
	}
	line, n, err := nextLine(b)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, ErrIncomplete
	}
	if err := r.parseLine(line); err != nil {
		return 0, err
	}
	var size int
	r.Fields, size, err = ParseFields(r.Fields, b[n:])
	if err != nil {
		return 0, err
	}
	return n + size, r.judge(head, rules)
}

// Complete is Parse for a head that did not come as text: the caller has set Status, Reason, Minor and
// Fields, each with its Known, and nothing else. Names and values must be valid (ValidToken,
// ValidValue). Complete sets the other members, and keeps the slices. The error wraps ErrMalformed.
func (r *Response) Complete(head bool) error {
	if len(r.Fields) > MaxFields {
		return ErrTooMany
	}
	return r.judge(head, framingRules{oneLength: true, oneFraming: true})
}

// parseLine reads "HTTP/1.x 200 reason" (RFC 9112, section 4).
func (r *Response) parseLine(line []byte) error {
	version, reason, ok := bytes.Cut(line, []byte(" "))
	switch {
	case ok && string(version) == "HTTP/1.1":
		r.Minor = 1
	case ok && string(version) == "HTTP/1.0":
	default:
		return fmt.Errorf("%w: status line %.60q", ErrMalformed, line)
	}
	if len(reason) < 3 || len(reason) > 3 && reason[3] != ' ' || !ValidValue(reason) {
		return fmt.Errorf("%w: status line %.60q", ErrMalformed, line)
	}
	for _, c := range reason[:3] {
		if c < '0' || c > '9' {
			return fmt.Errorf("%w: status line %.60q", ErrMalformed, line)
		}
		r.Status = r.Status*10 + int(c-'0')
	}
	if r.Status < 100 {
		return fmt.Errorf("%w: status line %.60q", ErrMalformed, line)
	}
	r.Reason = reason
	return nil
}

// judge sets the members that follow from the fields (RFC 9112, section 6.3).
func (r *Response) judge(head bool, rules framingRules) error {
	f := framing{rules: rules}
	var c connection
	auth := false
	for i := range r.Fields {
		field := &r.Fields[i]
		switch field.Known {
		case Other:
		case ContentLength, TransferEncoding:
			if err := f.add(field); err != nil {
				return err
			}
		case Connection:
			c.add(field.Value)
		case Challenge, HopByHop: // Proxy-Authenticate is among them
			auth = auth || ConnectionAuth(field.Value)
		case Date:
			r.HasDate = true
		}
	}
	if f.chunked && r.Minor == 0 {
		return fmt.Errorf("%w: Transfer-Encoding in an HTTP/1.0 response", ErrMalformed)
	}
	switch {
	case head || r.Status < 200 || r.Status == 204 || r.Status == 304:
		r.Length = 0
	case f.chunked:
		r.Length = Chunked
	case f.lengths > 0:
		r.Length = f.length
	default:
		r.Length = Unframed
	}
	r.Reusable = r.Minor == 1 && r.Length != Unframed && r.Status != 101 && !c.close && !auth
	if r.Status == 204 && (f.chunked || f.length > 0) { // the server may send a body
		r.Reusable = false
	}
	if f.lengths > 1 || f.both() {
		r.frameOnce(f.chunked)
		r.Reusable = r.Reusable && !f.both()
	}
	r.Upgrades, r.others = c.upgrade, c.others
	return nil
}

// frameOnce removes the Content-Length fields that do not count from Fields: all of them if there is a
// coding, else all but the first.
func (r *Response) frameOnce(chunked bool) {
	seen := chunked
	r.Fields = slices.DeleteFunc(r.Fields, func(f Field) bool {
		again := f.Known == ContentLength && seen
		seen = seen || f.Known == ContentLength
		return again
	})
}

// Listed reports whether a Connection field names the field, which must not be forwarded then. Content-Length is never
// listed: it frames the message.
func (r *Response) Listed(f *Field) bool {
	return r.others && f.Known != ContentLength && listed(r.Fields, f.Name)
}

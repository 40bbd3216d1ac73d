package httpwire

import (
	"bytes"
	"errors"
	"fmt"
)

// Errors of parsing. Those about malformed messages wrap ErrMalformed and name the problem.
var (
	// ErrIncomplete: the head, or the piece of framing, has not arrived whole.
	ErrIncomplete = errors.New("httpwire: incomplete")
	// ErrMalformed: not HTTP/1, or input that parsers read differently.
	ErrMalformed = errors.New("httpwire: malformed")
	// ErrTooMany: more than MaxFields header fields. It wraps ErrMalformed.
	ErrTooMany = fmt.Errorf("%w: more than %d header fields", ErrMalformed, MaxFields)
	// ErrVersion: a version of HTTP other than 1.x in a request's line. It wraps ErrMalformed.
	ErrVersion = fmt.Errorf("%w: the version is not HTTP/1.1", ErrMalformed)
	// ErrBothFramings: Content-Length beside Transfer-Encoding. It wraps ErrMalformed.
	ErrBothFramings = fmt.Errorf("%w: both Content-Length and Transfer-Encoding", ErrMalformed)
)

// MaxFields bounds the fields of a head. Real heads have a few dozen.
const MaxFields = 256

// Values for the length of a body that are not a number of bytes.
const (
	Chunked  = -2 // in the chunked coding
	Unframed = -1 // up to the end of the connection; responses only
)

// Field is one line of a head. Its bytes are those of the message.
type Field struct {
	Name, Value []byte
	Known       Known
}

// isToken[c] says whether c may stand in a method or a field name (RFC 9110, section 5.6.2).
var isToken = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

// ValidToken reports whether s is a token (RFC 9110, section 5.6.2).
func ValidToken[S ~string | ~[]byte](s S) bool {
	for i := range len(s) {
		if !isToken[s[i]] {
			return false
		}
	}
	return len(s) > 0
}

// ValidValue reports whether s may be a field's value: no control character except HTAB
// (RFC 9110, section 5.5).
func ValidValue[S ~string | ~[]byte](s S) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// nextLine returns the first line of b without its CRLF, and the bytes it takes. n == 0 means that
// it has not arrived whole.
func nextLine(b []byte) (line []byte, n int, err error) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return nil, 0, nil
	}
	if i == 0 || b[i-1] != '\r' {
		return nil, 0, fmt.Errorf("%w: a line ends in LF without CR", ErrMalformed)
	}
	return b[:i-1], i + 1, nil
}

// ParseFields appends the fields of the lines at b up to the empty one, and returns the bytes they take. The error is
// ErrIncomplete or wraps ErrMalformed.
func ParseFields(fields []Field, b []byte) ([]Field, int, error) {
	total := 0
	for {
		line, n, err := nextLine(b[total:])
		if err != nil {
			return fields, 0, err
		}
		if n == 0 {
			return fields, 0, ErrIncomplete
		}
		total += n
		if len(line) == 0 {
			return fields, total, nil
		}
		if len(fields) == MaxFields {
			return fields, 0, ErrTooMany
		}
		f, err := parseField(line)
		if err != nil {
			return fields, 0, err
		}
		fields = append(fields, f)
	}
}

// minorOf returns the minor version of "HTTP/1.x"; those above 1 count as 1, the highest that is known (RFC 9110, section 2.5).
func minorOf(version []byte) (minor int, ok bool) {
	if !isVersion(version) || version[5] != '1' {
		return 0, false
	}
	return min(int(version[7]-'0'), 1), true
}

// isVersion reports whether version is that of a request line (RFC 9112, section 2.3).
func isVersion(version []byte) bool {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	return len(version) == len("HTTP/1.1") && string(version[:5]) == "HTTP/" && digit(version[5]) && version[6] == '.' && digit(version[7])
}

func parseField(line []byte) (Field, error) {
	i := bytes.IndexByte(line, ':')
	switch {
	case line[0] == ' ' || line[0] == '\t':
		return Field{}, fmt.Errorf("%w: folded header line: %.60q", ErrMalformed, line)
	case i < 0:
		return Field{}, fmt.Errorf("%w: header line without a colon: %.60q", ErrMalformed, line)
	case !ValidToken(line[:i]):
		return Field{}, fmt.Errorf("%w: header name: %.60q", ErrMalformed, line[:i])
	}
	value := trimSpace(line[i+1:])
	if !ValidValue(value) {
		return Field{}, fmt.Errorf("%w: control character in the value of %s", ErrMalformed, line[:i])
	}
	return Field{Name: line[:i], Value: value, Known: knownField(line[:i])}, nil
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// parseLength reads a Content-Length: digits only, below 2^63.
func parseLength(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return int64(n), n < 1<<63
}

// framing gathers the fields of a head that frame its body.
type framing struct {
	length  int64 // Content-Length
	lengths int
	codings int
	chunked bool // the last coding seen is chunked
	rules   framingRules
}

// framingRules say which heads that frame their body more than once are refused.
type framingRules struct {
	oneLength  bool // a repeated Content-Length, also of the same value
	oneFraming bool // Content-Length beside Transfer-Encoding
}

func (f *framing) add(field *Field) error {
	switch field.Known {
	case ContentLength:
		length, ok := parseLength(field.Value)
		if !ok {
			return fmt.Errorf("%w: Content-Length %.60q", ErrMalformed, field.Value)
		}
		if f.lengths > 0 && (f.rules.oneLength || length != f.length) {
			return fmt.Errorf("%w: repeated Content-Length", ErrMalformed)
		}
		f.length = length
		f.lengths++
	case TransferEncoding:
		f.chunked = EqualFold(field.Value, "chunked")
		if f.codings++; f.codings > 1 || !f.chunked {
			return fmt.Errorf("%w: unsupported Transfer-Encoding %.60q", ErrMalformed, field.Value)
		}
	}
	if f.rules.oneFraming && f.both() {
		return ErrBothFramings
	}
	return nil
}

// both reports whether the head has a Content-Length beside a Transfer-Encoding.
func (f *framing) both() bool { return f.lengths > 0 && f.codings > 0 }

// EqualFold reports whether b is lower, which has no upper-case letters, in any case.
func EqualFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// nextItem cuts the first element off a comma-separated list.
func nextItem(list []byte) (item, rest []byte) {
	i := bytes.IndexByte(list, ',')
	if i < 0 {
		return trimSpace(list), nil
	}
	return trimSpace(list[:i]), list[i+1:]
}

// HasItem reports whether the list of an Upgrade field and the like has an element, in any case.
func HasItem(list []byte, element string) bool {
	for len(list) > 0 {
		var item []byte
		if item, list = nextItem(list); bytes.EqualFold(item, []byte(element)) {
			return true
		}
	}
	return false
}

// connection gathers the elements of the Connection fields.
type connection struct {
	close     bool
	keepAlive bool
	upgrade   bool
	others    bool // something besides these and TE
}

func (c *connection) add(list []byte) {
	for len(list) > 0 {
		var item []byte
		item, list = nextItem(list)
		switch {
		case len(item) == 0 || EqualFold(item, "te"):
		case EqualFold(item, "keep-alive"):
			c.keepAlive = true
		case EqualFold(item, "upgrade"):
			c.upgrade = true
		case EqualFold(item, "close"):
			c.close = true
		default:
			c.others = true
		}
	}
}

// listed reports whether a Connection field among fields names the field.
func listed(fields []Field, name []byte) bool {
	for i := range fields {
		if fields[i].Known != Connection {
			continue
		}
		for list := fields[i].Value; len(list) > 0; {
			var item []byte
			if item, list = nextItem(list); bytes.EqualFold(item, name) {
				return true
			}
		}
	}
	return false
}

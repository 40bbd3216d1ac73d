package httpproxy

import (
	"bytes"
	"strconv"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpwire"
)

// fieldOverhead is the size that a field counts besides its bytes (RFC 9113, section 6.5.2).
const fieldOverhead = 32

// h2Head gathers the fields of one block and translates them to HTTP/1.1 (RFC 9113, sections 8.2 and 8.3).
type h2Head struct {
	limit   int // of bytes, each field with its overhead
	size    int
	large   bool   // more than that
	bad     bool   // malformed
	trailer bool   // it comes after a body
	fields  []byte // lines
	cookie  []byte

	method, scheme, path, authority, host string
	regular                               bool          // a field has come that is no pseudo field
	length                                int64         // Content-Length; -1 = none
	timeout                               time.Duration // of gRPC; 0 = none
}

func (b *h2Head) reset(trailer bool) {
	*b = h2Head{limit: b.limit, fields: b.fields[:0], cookie: b.cookie[:0], trailer: trailer, length: -1}
}

// field takes the next field of the block.
func (b *h2Head) field(f hpack.HeaderField) {
	b.size += len(f.Name) + len(f.Value) + fieldOverhead
	b.large = b.large || b.size > b.limit
	switch {
	case b.large || b.bad:
	case !validH2Value(f.Value):
		b.bad = true
	case len(f.Name) > 0 && f.Name[0] == ':':
		b.pseudo(f.Name, f.Value)
	case !validH2Name(f.Name):
		b.bad = true
	default:
		b.regular = true
		b.plain(f.Name, f.Value)
	}
}

func (b *h2Head) pseudo(name, value string) {
	var into *string
	switch name {
	case ":method":
		into = &b.method
	case ":scheme":
		into = &b.scheme
	case ":path":
		into = &b.path
	case ":authority":
		into = &b.authority
	}
	if into == nil || *into != "" || value == "" || b.regular || b.trailer {
		b.bad = true
		return
	}
	*into = value
}

func (b *h2Head) plain(name, value string) {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade": // belong to HTTP/1.1
		b.bad = true
		return
	case "te":
		b.bad = b.bad || value != "trailers"
	case "host":
		b.bad = b.bad || b.host != "" || value == "" || b.trailer
		b.host = value
		return
	case "content-length":
		n, err := strconv.ParseUint(value, 10, 62)
		b.bad = b.bad || err != nil || b.length >= 0 || b.trailer
		b.length = int64(n)
		return
	case "cookie": // which may come in pieces (section 8.2.3)
		if len(b.cookie) > 0 {
			b.cookie = append(b.cookie, "; "...)
		}
		b.cookie = append(b.cookie, value...)
		return
	case grpcTimeoutField:
		b.timeout = grpcTimeout(value)
	}
	b.fields = appendLine(b.fields, name, value)
}

func appendLine(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, crlf...)
}

// appendHTTP1 appends the request's head in HTTP/1.1; false = it is malformed. Heads that the session refuses, such as
// one with a target that is no path, are left to it.
func (b *h2Head) appendHTTP1(dst []byte, ends bool) ([]byte, bool) {
	target := b.path
	if b.method == "CONNECT" {
		if target != "" || b.scheme != "" {
			return dst, false
		}
		target = b.authority
	} else if b.scheme == "" || target == "" || target[0] != '/' && (target != "*" || b.method != "OPTIONS") {
		return dst, false
	}
	if b.authority != "" && b.host != "" && b.authority != b.host || ends && b.length > 0 || !plainText(b.method) || !plainText(target) {
		return dst, false
	}
	dst = append(dst, b.method...)
	dst = append(dst, ' ')
	dst = append(dst, target...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	if b.authority != "" {
		dst = appendLine(dst, "Host", b.authority)
	} else if b.host != "" {
		dst = appendLine(dst, "Host", b.host)
	}
	dst = append(dst, b.fields...)
	if len(b.cookie) > 0 {
		dst = append(append(append(dst, "Cookie: "...), b.cookie...), crlf...)
	}
	switch {
	case b.length >= 0:
		dst = append(strconv.AppendInt(append(dst, "Content-Length: "...), b.length, 10), crlf...)
	case !ends:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return append(dst, crlf...), true
}

// plainText reports whether s can be a word of a request line.
func plainText(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != ""
}

// validH2Name reports whether a name is a token without capitals (RFC 9113, section 8.2.1).
func validH2Name(s string) bool {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return false
		}
	}
	return httpwire.ValidToken([]byte(s))
}

// validH2Value reports whether a value is one line without blanks around it.
func validH2Value(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return s == "" || !bytes.ContainsAny([]byte{s[0], s[len(s)-1]}, " \t")
}

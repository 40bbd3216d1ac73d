package httpproxy

import (
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpwire"
)

// h2Answer gathers the fields of one block of a server, a response's head or trailers, and makes of them what HTTP/1.1 has in their
// stead (RFC 9113, sections 8.2 and 8.3).
type h2Answer struct {
	size     int
	large    bool // more than maxResponseHead, each field with its overhead
	bad      bool // malformed
	status   int  // 0 = none
	regular  bool // a field has come that is no pseudo field
	length   int64
	trailing bool   // it speaks of trailers, or is gRPC's
	fields   []byte // lines
}

func (b *h2Answer) reset() { *b = h2Answer{fields: b.fields[:0], length: -1} }

// field takes the next field of the block.
func (b *h2Answer) field(f hpack.HeaderField) {
	b.size += len(f.Name) + len(f.Value) + fieldOverhead
	b.large = b.large || b.size > maxResponseHead
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

func (b *h2Answer) pseudo(name, value string) {
	n, err := strconv.ParseUint(value, 10, 16)
	if name != ":status" || b.status != 0 || b.regular || len(value) != 3 || err != nil || n < 100 || n == 101 {
		b.bad = true
		return
	}
	b.status = int(n)
}

func (b *h2Answer) plain(name, value string) {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade": // belong to HTTP/1.1
		b.bad = true
		return
	case "content-length":
		n, err := strconv.ParseUint(value, 10, 62)
		b.bad = b.bad || err != nil || b.length >= 0 && b.length != int64(n)
		b.length = int64(n)
		return
	case "trailer":
		b.trailing = true
		return
	case contentType:
		b.trailing = b.trailing || isGRPC(value)
	}
	b.fields = appendLine(b.fields, name, value)
}

const contentType = "content-type"

// isGRPC reports whether a Content-Type is one of gRPC's.
func isGRPC(value string) bool {
	rest, ok := strings.CutPrefix(value, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';' || rest[0] == ' ')
}

// appendHTTP1 appends the head as HTTP/1.1 has it. ends says that no body follows, head that none would in any case. Trailers need a body
// without a length.
func (b *h2Answer) appendHTTP1(dst []byte, ends, head bool) (text []byte, chunked bool) {
	dst = strconv.AppendInt(append(dst, "HTTP/1.1 "...), int64(b.status), 10)
	dst = append(append(append(dst, ' '), http.StatusText(b.status)...), crlf...)
	dst = append(dst, b.fields...)
	switch {
	case b.status < 200:
	case b.length >= 0 && (ends || head || !b.trailing):
		dst = append(strconv.AppendInt(append(dst, "Content-Length: "...), b.length, 10), crlf...)
	case head || b.status == http.StatusNoContent || b.status == http.StatusNotModified:
	case ends:
		dst = append(dst, "Content-Length: 0\r\n"...)
	default:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
		chunked = true
	}
	return append(dst, crlf...), chunked
}

// Indices of fields of the static table (RFC 7541, appendix A).
const (
	nameAuthority = 1
	nameMethod    = 2
	methodGET     = 2
	methodPOST    = 3
	namePath      = 4
	pathRoot      = 4
	schemeHTTP    = 6
	schemeHTTPS   = 7
	indexed       = 0x80
)

// appendRequestHead appends the fields of a request that is written in HTTP/1.1, less what is about its connection.
func appendRequestHead(dst []byte, r *httpwire.Request, scheme byte) []byte {
	switch string(r.Method) {
	case http.MethodGet:
		dst = append(dst, indexed|methodGET)
	case http.MethodPost:
		dst = append(dst, indexed|methodPOST)
	default:
		dst = appendNamed(dst, nameMethod, r.Method)
	}
	dst = append(dst, indexed|scheme)
	if string(r.Target) == "/" {
		dst = append(dst, indexed|pathRoot)
	} else {
		dst = appendNamed(dst, namePath, r.Target)
	}
	dst = appendNamed(dst, nameAuthority, r.Host)
	for i := range r.Fields {
		f := &r.Fields[i]
		if f.Known == httpwire.Trailer || !f.Known.Connectional() && f.Known != httpwire.Host { // net/http takes no others than Trailer names
			dst = appendCoded(dst, f)
		}
	}
	if r.Trailers {
		dst = append(dst, "\x00\x02te\x08trailers"...)
	}
	return dst
}

// appendNamed appends a field that nothing remembers, whose name has an index below 15.
func appendNamed(dst []byte, name byte, value []byte) []byte {
	return append(appendInteger(append(dst, name), len(value)), value...)
}

package httpproxy

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/headpond/headpond/httpwire"
)

// keptCookie is how much memory is kept for the next request's cookies.
const keptCookie = 4 << 10

// fieldOverhead is what each field adds to the size of a head besides its bytes (RFC 9113, section 6.5.2).
const fieldOverhead = 32

// h2Head collects the fields of one block and makes a head from them, with the framing of HTTP/1.1 (RFC 9113, sections 8.2
// and 8.3).
type h2Head struct {
	ofServer bool // it reads responses
	limit    int  // of bytes, each field with its overhead

	fields []httpwire.Field // the regular ones, without Content-Length and those below; their bytes must not be changed
	text   []byte           // of the strings that are not in the decoder's tables; passed on to the user of the fields
	cookie []byte           // of a request
	h2Block
}

// h2Block is the remainder of an h2Head's state for one block.
type h2Block struct {
	size    int
	large   bool   // larger than limit
	bad     bool   // malformed
	trailer bool   // it follows a body
	regular bool   // a regular field has been read
	length  int64  // Content-Length; -1 = none
	digits  string // its digits

	// Of a request's block.
	method, scheme, path, authority, host string
	protocol                              string        // of an extended CONNECT (RFC 8441)
	timeout                               time.Duration // grpc-timeout; 0 = none

	// Of a response's block.
	status   int  // 0 = none
	trailing bool // it announces trailers, or is gRPC
}

// reset discards the last block.
func (b *h2Head) reset(trailer bool) {
	clear(b.fields)
	if cap(b.fields) > keptFields {
		b.fields = nil
	}
	if cap(b.cookie) > keptCookie {
		b.cookie = nil
	}
	b.fields, b.cookie, b.text = b.fields[:0], b.cookie[:0], emptiedText(b.text)
	b.h2Block = h2Block{trailer: trailer, length: -1}
}

// keptText is how much memory is kept for the text of the next head.
const keptText = 4 << 10

// emptiedText returns the memory of an unused text, unless it is large.
func emptiedText(text []byte) []byte {
	if cap(text) > keptText {
		return nil
	}
	return text[:0]
}

// giveText moves the text of b's fields to *to. b takes over the former memory of *to, which must be unused.
func (b *h2Head) giveText(to *[]byte) { *to, b.text = b.text, emptiedText(*to) }

// field adds the next field of the block.
func (b *h2Head) field(f *hpackField) {
	b.size += f.weight()
	b.large = b.large || b.size > b.limit
	switch {
	case b.large || b.bad:
	case f.badValue || f.badName:
		b.bad = true
	case f.pseudo && b.ofServer:
		b.statusField(f.name, f.value)
	case f.pseudo:
		b.pseudo(f.name, f.value)
	default:
		b.regular = true
		b.plain(f.name, f.value, f.known)
	}
}

// pseudo adds a pseudo-header field of a request.
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
	case ":protocol":
		into = &b.protocol
	}
	if into == nil || *into != "" || value == "" || b.regular || b.trailer {
		b.bad = true
		return
	}
	*into = value
}

// statusField adds the pseudo-header field of a response; :status is the only one.
func (b *h2Head) statusField(name, value string) {
	n, err := strconv.ParseUint(value, 10, 16)
	if name != ":status" || b.status != 0 || b.regular || len(value) != 3 || err != nil || n < 100 || n == 101 {
		b.bad = true
		return
	}
	b.status = int(n)
}

// plain adds a regular field.
func (b *h2Head) plain(name, value string, known httpwire.Known) {
	switch {
	case known == httpwire.Connection, known == httpwire.KeepAlive, known == httpwire.TransferEncoding, known == httpwire.Upgrade,
		name == "proxy-connection": // belong to HTTP/1.1
		b.bad = true
		return
	case known == httpwire.ContentLength:
		b.contentLength(value)
		return
	case b.ofServer:
		b.trailing = b.trailing || known == httpwire.Trailer || name == contentType && isGRPC(value)
	case known == httpwire.TE:
		b.bad = b.bad || value != "trailers"
	case known == httpwire.Host:
		b.bad = b.bad || b.host != "" || value == "" || b.trailer
		b.host = value
		return
	case name == "cookie": // may come in several fields (section 8.2.3)
		if len(b.cookie) > 0 {
			b.cookie = append(b.cookie, "; "...)
		}
		b.cookie = append(b.cookie, value...)
		return
	case name == grpcTimeoutField:
		b.timeout = grpcTimeout(value)
	}
	b.fields = append(b.fields, httpwire.Field{Name: bytesOf(name), Value: bytesOf(value), Known: known})
}

func (b *h2Head) contentLength(value string) {
	n, err := strconv.ParseUint(value, 10, 62)
	again := b.length >= 0 && (!b.ofServer || b.length != int64(n))
	b.bad = b.bad || err != nil || again || b.trailer
	b.length, b.digits = int64(n), value
}

const contentType = "content-type"

// isGRPC reports whether a Content-Type is one of gRPC's.
func isGRPC(value string) bool {
	tail, ok := strings.CutPrefix(value, "application/grpc")
	return ok && (tail == "" || tail[0] == '+' || tail[0] == ';' || tail[0] == ' ')
}

// bytesOf returns the bytes of a string. They must not be changed. An append moves them.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// request makes the head of a request, and reports whether that is possible. ends: no body follows. The caller completes
// r, whose memory of fields is reused. The text of the fields is then in *text; b reuses its former memory.
//
// An extended CONNECT becomes the request for an upgrade that it stands for (RFC 8441, section 5). What the client sends
// on its stream is not the body, but for after the upgrade.
func (b *h2Head) request(r *httpwire.Request, text *[]byte, ends bool) bool {
	method, target := b.method, b.path
	if b.protocol != "" {
		if method != http.MethodConnect || b.length >= 0 || cmp.Or(b.authority, b.host) == "" || !httpwire.ValidToken(b.protocol) {
			return false
		}
		method = http.MethodGet
	}
	if method == http.MethodConnect {
		if target != "" || b.scheme != "" {
			return false
		}
		target = b.authority
	} else if b.scheme == "" || target == "" || target[0] != '/' && (target != "*" || method != http.MethodOptions) {
		return false
	}
	if b.authority != "" && b.host != "" && b.authority != b.host || ends && b.length > 0 || !plainText(method) || !plainText(target) {
		return false
	}
	fields := r.Fields[:0]
	if host := cmp.Or(b.authority, b.host); host != "" {
		fields = append(fields, httpwire.Field{Name: hostName, Value: bytesOf(host), Known: httpwire.Host})
	}
	fields = append(fields, b.fields...)
	if len(b.cookie) > 0 {
		n := len(b.text)
		b.text = append(b.text, b.cookie...)
		fields = append(fields, httpwire.Field{Name: cookieName, Value: b.text[n:len(b.text):len(b.text)]})
	}
	switch {
	case b.protocol != "":
		fields = append(fields, upgradesField, httpwire.Field{Name: upgradeName, Value: bytesOf(b.protocol), Known: httpwire.Upgrade})
	case b.length >= 0:
		fields = append(fields, lengthField(b.digits))
	case !ends:
		fields = append(fields, chunkedField)
	}
	*r = httpwire.Request{Method: bytesOf(method), Target: bytesOf(target), Minor: 1, Fields: fields}
	b.giveText(text)
	return true
}

// response makes the head of a response; the caller completes it. ends: no body follows. head: the response has none in
// any case. Trailers need a body without a length; lengthless reports that it has none. r and text are used as by request.
func (b *h2Head) response(r *httpwire.Response, text *[]byte, ends, head bool) (lengthless bool) {
	fields := append(r.Fields[:0], b.fields...) //nolint:gocritic // r gets them below
	switch {
	case b.status < 200:
	case b.length >= 0 && (ends || head || !b.trailing):
		fields = append(fields, lengthField(b.digits))
	case head || b.status == http.StatusNoContent || b.status == http.StatusNotModified:
	case ends:
		fields = append(fields, lengthField("0"))
	default:
		fields = append(fields, chunkedField)
		lengthless = true
	}
	*r = httpwire.Response{Status: b.status, Reason: reasonOfStatus(b.status), Minor: 1, Fields: fields}
	b.giveText(text)
	return lengthless
}

// Fields that frame a message, and their names. They must not be changed.
var (
	hostName     = []byte("Host")
	cookieName   = []byte("Cookie")
	lengthName   = []byte("Content-Length")
	upgradeName  = []byte("Upgrade")
	chunkedField = httpwire.Field{Name: []byte("Transfer-Encoding"), Value: []byte("chunked"), Known: httpwire.TransferEncoding}

	upgradesField = httpwire.Field{Name: []byte("Connection"), Value: upgradeName, Known: httpwire.Connection}
)

func lengthField(digits string) httpwire.Field {
	return httpwire.Field{Name: lengthName, Value: bytesOf(digits), Known: httpwire.ContentLength}
}

// reasons are the status lines of HTTP/1.1 for statuses from 100 to 599, without the version.
var reasons = func() (all [500][]byte) {
	for i := range all {
		all[i] = []byte(strconv.Itoa(100+i) + " " + http.StatusText(100+i))
	}
	return all
}()

func reasonOfStatus(status int) []byte {
	if i := status - 100; i < len(reasons) {
		return reasons[i]
	}
	return []byte(strconv.Itoa(status) + " ")
}

// appendLines appends fields as lines.
func appendLines(dst []byte, fields []httpwire.Field) []byte {
	for i := range fields {
		dst = appendField(dst, &fields[i])
	}
	return dst
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
	return httpwire.ValidToken(s)
}

// validH2Value reports whether a value is one line without blanks around it.
func validH2Value(s string) bool {
	return httpwire.ValidValue(s) && (s == "" || !isBlank(s[0]) && !isBlank(s[len(s)-1]))
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

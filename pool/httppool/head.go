package httppool

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// maxHeaderFields bounds the fields of a response head and, apart from them, of its trailers. Real heads have a few
// dozen; each field costs a map entry.
const maxHeaderFields = 256

// unframed is the length of a body that only the end of the connection ends; chunkedLength one sent in chunks.
const (
	unframed      = -1
	chunkedLength = -2
)

// head is a parsed response head: the pure half of the response parser.
type head struct {
	status    int
	reason    string // "200 OK"
	minor     int    // of the HTTP/1 version
	header    http.Header
	trailer   http.Header // announced names, without values
	length    int64       // of the body that follows: >= 0, unframed or chunkedLength
	declared  int64       // what Content-Length says, -1 without; differs from length when there is no body
	keepAlive bool        // the response allows another exchange on this connection
}

// parseHead reads a response head as reader.block returns it; method is the request's, because the answer to a HEAD
// has no body. What it refuses is what lets two readers of one byte stream disagree about where a message ends
// (RFC 9112, sections 2.2, 5.1, 5.2, 6.1 and 6.3).
func parseHead(block []byte, method string) (head, error) {
	text := string(block) // the one copy; everything below is a part of it
	line, rest, _ := strings.Cut(text, "\r\n")
	h, err := parseStatusLine(line)
	if err != nil {
		return head{}, err
	}
	h.header, err = parseFields(rest)
	if err != nil {
		return head{}, err
	}
	if err := h.frame(method); err != nil {
		return head{}, err
	}
	h.keepAlive = h.reusable()
	return h, nil
}

func parseStatusLine(line string) (head, error) {
	version, reason, ok := strings.Cut(line, " ")
	if !ok || (version != "HTTP/1.1" && version != "HTTP/1.0") {
		return head{}, fmt.Errorf("not an HTTP/1.0 or HTTP/1.1 status line: %.60q", line)
	}
	code := reason
	if len(reason) > 3 {
		if reason[3] != ' ' {
			return head{}, fmt.Errorf("malformed status code: %.60q", line)
		}
		code = reason[:3]
	}
	status, err := strconv.ParseUint(code, 10, 16)
	if err != nil || len(code) != 3 || status < 100 {
		return head{}, fmt.Errorf("malformed status code: %.60q", line)
	}
	if !validValue(reason) {
		return head{}, errors.New("control character in the status line")
	}
	return head{status: int(status), reason: reason, minor: int(version[7] - '0')}, nil
}

// parseFields reads "name: value" lines up to the empty one. Names are made canonical; values share text's memory.
func parseFields(text string) (http.Header, error) {
	n := strings.Count(text, "\n") - 1
	if n > maxHeaderFields {
		return nil, fmt.Errorf("more than %d header fields", maxHeaderFields)
	}
	header := make(http.Header, n)
	values := make([]string, max(n, 0))
	for {
		line, rest, _ := strings.Cut(text, "\r\n")
		if line == "" {
			return header, nil
		}
		text = rest
		name, value, err := parseField(line)
		if err != nil {
			return nil, err
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if old := header[name]; old != nil {
			header[name] = append(old, value)
			continue
		}
		values[0] = value
		header[name] = values[:1:1]
		values = values[1:]
	}
}

func parseField(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	switch {
	case line[0] == ' ' || line[0] == '\t':
		return "", "", fmt.Errorf("folded header line: %.60q", line)
	case !ok:
		return "", "", fmt.Errorf("header line without a colon: %.60q", line)
	case !validToken(name):
		return "", "", fmt.Errorf("malformed header name: %.60q", name)
	}
	value = strings.Trim(value, " \t")
	if !validValue(value) {
		return "", "", fmt.Errorf("control character in the value of %s", name)
	}
	return name, value, nil
}

// frame decides how the body is delimited (RFC 9112, section 6.3).
func (h *head) frame(method string) error {
	coded, err := h.chunked()
	if err != nil {
		return err
	}
	h.declared, err = contentLength(h.header["Content-Length"])
	if err != nil {
		return err
	}
	if coded && h.declared >= 0 {
		return errors.New("both Content-Length and Transfer-Encoding")
	}
	h.announceTrailers()
	switch {
	case method == http.MethodHead || h.status < 200 || h.status == 204 || h.status == 304:
		h.length = 0
	case coded:
		h.length = chunkedLength
	case h.declared >= 0:
		h.length = h.declared
	default:
		h.length = unframed
	}
	return nil
}

// chunked takes Transfer-Encoding off the header. Only a single "chunked", and only from HTTP/1.1, is understood.
func (h *head) chunked() (bool, error) {
	te, ok := h.header["Transfer-Encoding"]
	if !ok {
		return false, nil
	}
	delete(h.header, "Transfer-Encoding")
	switch {
	case h.minor == 0:
		return false, errors.New("Transfer-Encoding in an HTTP/1.0 response")
	case len(te) != 1 || !strings.EqualFold(te[0], "chunked"):
		return false, fmt.Errorf("unsupported Transfer-Encoding %.60q", te)
	}
	return true, nil
}

// contentLength reads the field's values: -1 without one, an error for more than one even if they agree.
func contentLength(values []string) (int64, error) {
	if len(values) == 0 {
		return -1, nil
	}
	if len(values) > 1 {
		return 0, fmt.Errorf("repeated Content-Length %.60q", values)
	}
	n, err := strconv.ParseUint(values[0], 10, 63) // refuses signs, spaces, lists and overflow
	if err != nil {
		return 0, fmt.Errorf("malformed Content-Length %.60q", values[0])
	}
	return int64(n), nil
}

func (h *head) announceTrailers() {
	names, ok := h.header["Trailer"]
	if !ok {
		return
	}
	delete(h.header, "Trailer")
	tokens(names, func(name string) bool {
		if name = textproto.CanonicalMIMEHeaderKey(name); validToken(name) && !forbiddenTrailer(name) {
			if h.trailer == nil {
				h.trailer = http.Header{}
			}
			h.trailer[name] = nil
		}
		return len(h.trailer) < maxHeaderFields
	})
}

// forbiddenTrailer names the fields that frame, route or secure a message and so must not come after it
// (RFC 9110, section 6.5.1). name is canonical.
func forbiddenTrailer(name string) bool {
	switch name {
	case "Transfer-Encoding", "Content-Length", "Trailer", "Host", "Connection", "Keep-Alive", "Proxy-Connection",
		"Te", "Upgrade", "Authorization", "Proxy-Authorization", "Proxy-Authenticate", "Www-Authenticate",
		"Set-Cookie", "Cookie", "Expect", "Content-Encoding", "Content-Type", "Content-Range", "Max-Forwards":
		return true
	}
	return false
}

// reusable says whether this head alone allows another exchange afterwards. HTTP/1.0's keep-alive is an extension
// that proxies and servers understood differently, so such a connection is never used again. NTLM and Negotiate log a
// connection in, not a request (RFC 4559), so it must not serve anybody else.
func (h *head) reusable() bool {
	return h.minor == 1 && h.length != unframed && h.status != http.StatusSwitchingProtocols &&
		!hasToken(h.header["Connection"], "close") &&
		!connectionAuth(h.header["Www-Authenticate"]) && !connectionAuth(h.header["Proxy-Authenticate"])
}

// connectionAuth says whether a credential or challenge uses a scheme that authenticates the connection.
func connectionAuth(values []string) bool {
	for _, v := range values {
		scheme, _, _ := strings.Cut(v, " ")
		if scheme = strings.TrimRight(scheme, ","); strings.EqualFold(scheme, "NTLM") || strings.EqualFold(scheme, "Negotiate") {
			return true
		}
	}
	return false
}

// parseTrailers reads the lines after the last chunk into fields, leaving out what may not be there.
func parseTrailers(block []byte) (http.Header, error) {
	if bytes.Equal(block, crlf) {
		return nil, nil
	}
	fields, err := parseFields(string(block))
	if err != nil {
		return nil, fmt.Errorf("trailers: %w", err)
	}
	for name := range fields {
		if forbiddenTrailer(name) {
			delete(fields, name)
		}
	}
	return fields, nil
}

var crlf = []byte("\r\n")

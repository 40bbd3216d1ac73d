package httppool

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"

	"github.com/headpond/headpond/httpwire"
)

// appendRequest appends req's head in the form for an origin server (RFC 9112, section 3) and returns the framing of its
// body: its length, httpwire.Chunked, or 0 without one. It refuses values that would become headers.
//
// Fields of the connection are written from req's own fields, never copied from req.Header: Host, Content-Length,
// Transfer-Encoding, Trailer, Connection, Keep-Alive, Proxy-Connection and Upgrade. As with net/http, "Connection:
// Upgrade" and an Upgrade field in the header ask for an upgrade. For a forwarded request, p decides about upgrades.
func appendRequest(dst []byte, req *http.Request, p *passage) ([]byte, int64, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	if !httpwire.ValidToken(method) || method == http.MethodConnect {
		return dst, 0, fmt.Errorf("%w: method %.40q", ErrInvalidRequest, req.Method)
	}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	target := req.URL.RequestURI()
	if !validTarget(target) || !httpwire.ValidHost(host) {
		return dst, 0, fmt.Errorf("%w: target %.80q of host %.80q", ErrInvalidRequest, target, host)
	}
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, target...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, host...)
	dst = append(dst, crlf...)
	var err error
	if p != nil {
		dst, err = p.appendFields(dst)
	} else {
		dst, err = appendFields(dst, req.Header, connectionField)
	}
	if err != nil {
		return dst, 0, err
	}
	dst, length := appendFraming(dst, req)
	dst, err = appendConnection(dst, askedFor(req, p), p == nil && wantsClose(req))
	return append(dst, crlf...), length, err
}

// appendFields appends every field that skip does not name.
func appendFields(dst []byte, header http.Header, skip func(string) bool) ([]byte, error) {
	for name, values := range header {
		if skip(name) {
			continue
		}
		var err error
		if dst, err = appendField(dst, name, values); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// appendField appends a line for each value.
func appendField(dst []byte, name string, values []string) ([]byte, error) {
	if !httpwire.ValidToken(name) {
		return dst, fmt.Errorf("%w: header name %.60q", ErrInvalidRequest, name)
	}
	for _, v := range values {
		if !httpwire.ValidValue(v) {
			return dst, fmt.Errorf("%w: control character in the value of %s", ErrInvalidRequest, name)
		}
		dst = append(dst, name...)
		dst = append(dst, ": "...)
		dst = append(dst, v...)
		dst = append(dst, crlf...)
	}
	return dst, nil
}

// connectionField names the fields that appendRequest writes itself, ignoring case: a header map may hold any spelling.
func connectionField(name string) bool {
	switch len(name) {
	case len("Host"), len("Connection"), len("Transfer-Encoding"), len("Content-Length"), len("Proxy-Connection"),
		len("Trailer"): // also "Upgrade"; Keep-Alive is as long as Connection
	default:
		return false
	}
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Keep-Alive", "Proxy-Connection",
		"Upgrade":
		return true
	}
	return false
}

func appendFraming(dst []byte, req *http.Request) ([]byte, int64) {
	length := req.ContentLength
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		length = 0
	case length <= 0 || len(req.Trailer) > 0:
		length = httpwire.Chunked
	}
	switch {
	case length == httpwire.Chunked:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
		if names := trailerNames(req.Trailer); len(names) > 0 {
			dst = append(dst, "Trailer: "...)
			for i, name := range names {
				if i > 0 {
					dst = append(dst, ", "...)
				}
				dst = append(dst, name...)
			}
			dst = append(dst, crlf...)
		}
	case length > 0 || httpwire.StatesLength(req.Method):
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, length, 10)
		dst = append(dst, crlf...)
	}
	return dst, length
}

// trailerNames lists the trailers that may be sent, sorted.
func trailerNames(trailer http.Header) []string {
	var names []string
	for name := range trailer {
		if httpwire.ValidToken(name) && !httpwire.ForbiddenTrailer(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func appendConnection(dst []byte, proto string, closes bool) ([]byte, error) {
	if proto != "" {
		if !httpwire.ValidValue(proto) {
			return dst, fmt.Errorf("%w: Upgrade %.60q", ErrInvalidRequest, proto)
		}
		dst = append(dst, "Connection: Upgrade\r\nUpgrade: "...)
		dst = append(dst, proto...)
		return append(dst, crlf...), nil
	}
	if closes {
		dst = append(dst, "Connection: close\r\n"...)
	}
	return dst, nil
}

// askedFor returns the protocol that the request asks to switch to; "" = none.
func askedFor(req *http.Request, p *passage) string {
	if p != nil {
		return p.upgradeTo
	}
	return upgradeOf(req.Header)
}

func wantsClose(req *http.Request) bool {
	return req.Close || hasToken(req.Header["Connection"], "close")
}

// upgradeOf returns the protocol that a header asks or agrees to switch to; "" = none.
func upgradeOf(header http.Header) string {
	if up := header["Upgrade"]; len(up) == 1 && hasToken(header["Connection"], "upgrade") {
		return up[0]
	}
	return ""
}

func validTarget(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return s != "" && (s[0] == '/' || s == "*")
}

// idempotent reports whether req may be sent again although a server may have seen it.
func idempotent(req *http.Request) bool {
	if req.Method == "" || httpwire.Idempotent(req.Method) {
		return true
	}
	for name := range req.Header {
		if httpwire.MakesIdempotent(name) {
			return true
		}
	}
	return false
}

var errRequestNil = errors.New("nil URL")

func checkRequest(req *http.Request) error {
	if req.URL == nil {
		return fmt.Errorf("%w: %w", ErrInvalidRequest, errRequestNil)
	}
	return nil
}

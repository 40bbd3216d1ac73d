package httppool

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"sync"

	"github.com/headpond/headpond/httpwire"
)

// requests are the memory of describe.
var requests = sync.Pool{New: func() any { return &httpwire.Request{} }}

// describe reads what req, which came by HTTP/1 in that minor version or later, asks for, by the rules of package httpwire.
// The result's Fields have those that httpwire knows, without the body's framing; its Target is not req's. freeRequest takes
// it back.
func describe(req *http.Request, minor int) (*httpwire.Request, error) {
	r := requests.Get().(*httpwire.Request)
	method := cmp.Or(req.Method, http.MethodGet)
	*r = httpwire.Request{Method: bytesOf(method), Target: bytesOf("/"), Minor: minor, Fields: r.Fields[:0]}
	for name, values := range req.Header {
		switch known := httpwire.Classify(name); {
		case known == httpwire.Host, known == httpwire.ContentLength, known == httpwire.TransferEncoding:
		case known == httpwire.Other && !httpwire.MakesIdempotent(name):
		default:
			for _, v := range values {
				r.Fields = append(r.Fields, httpwire.Field{Name: bytesOf(name), Value: bytesOf(v), Known: known})
			}
		}
	}
	if err := r.Complete(); err != nil {
		freeRequest(r)
		return nil, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	switch r.Length = req.ContentLength; {
	case req.Body == nil || req.Body == http.NoBody:
		r.Length = 0
	case r.Length <= 0 || len(req.Trailer) > 0:
		r.Length = httpwire.Chunked
	}
	return r, nil
}

// freeRequest takes the memory of describe back; nil = none.
func freeRequest(r *httpwire.Request) {
	if r != nil {
		clear(r.Fields)
		requests.Put(r)
	}
}

// asks is what the exchange keeps of a described request.
type asks struct {
	upgrade    string // the protocols to which the server may switch; "" = none
	closes     bool   // the connection ends with the response
	waits      bool   // for "100 Continue", before the body
	auth       bool   // it logs in the connection
	idempotent bool   // it may be sent again although a server may have seen it
}

// asks returns what the exchange must know of its request, which r describes. A forwarder decides itself about the
// connection to the server, and withholds fields about it.
func (x *exchange) asks(r *httpwire.Request) asks {
	a := asks{waits: r.Expects(), auth: r.ConnectionAuth, idempotent: r.Idempotent()}
	if x.p != nil {
		a.upgrade = x.p.upgradeTo()
		return a
	}
	a.upgrade, a.closes = view(r.Upgrade), r.Close || x.req.Close
	a.auth = a.auth || slices.ContainsFunc(x.req.Header["Proxy-Authorization"], httpwire.ConnectionAuth[string])
	return a
}

// appendRequest appends the exchange's request head in the form for an origin server (RFC 9112, section 3). It refuses
// values that would become headers.
//
// Fields of the connection are written from r, which describes the request, and never copied from its Header: Host,
// Content-Length, Transfer-Encoding, Trailer, Connection, Keep-Alive, Proxy-Connection, TE and Upgrade. As with net/http,
// "Connection: Upgrade" and an Upgrade field in the header ask for an upgrade.
func (x *exchange) appendRequest(dst []byte, r *httpwire.Request) ([]byte, error) {
	req := x.req
	host := cmp.Or(req.Host, req.URL.Host)
	target := req.URL.RequestURI()
	switch {
	case string(r.Method) == http.MethodConnect:
		return dst, fmt.Errorf("%w: method CONNECT", ErrInvalidRequest)
	case !validTarget(target) || !httpwire.ValidHost(host):
		return dst, fmt.Errorf("%w: target %.80q of host %.80q", ErrInvalidRequest, target, host)
	}
	dst = append(dst, r.Method...)
	dst = append(dst, ' ')
	dst = append(dst, target...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, host...)
	dst = append(dst, crlf...)
	var err error
	if x.p != nil {
		dst, err = x.p.appendFields(dst)
	} else {
		dst, err = appendFields(dst, req.Header, connectionField)
	}
	if err == nil && !httpwire.ValidValue(x.asked.upgrade) {
		err = fmt.Errorf("%w: Upgrade %.60q", ErrInvalidRequest, x.asked.upgrade)
	}
	if err != nil {
		return dst, err
	}
	dst = appendFraming(dst, r, req.Trailer)
	dst = httpwire.AppendConnection(dst, r.Trailers, x.asked.upgrade, x.asked.closes)
	return append(dst, crlf...), nil
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
	case len("Te"), len("Host"), len("Connection"), len("Transfer-Encoding"), len("Content-Length"), len("Proxy-Connection"),
		len("Trailer"): // also "Upgrade"; Keep-Alive is as long as Connection
	default:
		return false
	}
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Keep-Alive", "Proxy-Connection",
		"Te", "Upgrade":
		return true
	}
	return false
}

// appendFraming appends the fields that delimit the body, and the names of the trailers.
func appendFraming(dst []byte, r *httpwire.Request, trailer http.Header) []byte {
	switch {
	case r.Length == httpwire.Chunked:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
		for i, name := range trailerNames(trailer) {
			if i == 0 {
				dst = append(dst, "Trailer: "...)
			} else {
				dst = append(dst[:len(dst)-len(crlf)], ", "...)
			}
			dst = append(append(dst, name...), crlf...)
		}
	case r.Length > 0 || httpwire.StatesLength(r.Method):
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, r.Length, 10)
		dst = append(dst, crlf...)
	}
	return dst
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

// upgradeOf returns the protocol that a response agrees to switch to; "" = none.
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

var errRequestNil = errors.New("nil URL")

func checkRequest(req *http.Request) error {
	if req.URL == nil {
		return fmt.Errorf("%w: %w", ErrInvalidRequest, errRequestNil)
	}
	return nil
}

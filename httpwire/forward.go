package httpwire

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// The rules of forwarding that do not depend on how messages are moved: package httpproxy applies them
// on fibers, pool/httppool with net/http.

// MaxInterim bounds the 1xx responses before the final one: enough for one a second through a long wait.
const MaxInterim = 1000

// MaxRequestID bounds the id that a client may choose for its request, in bytes: it goes into logs.
const MaxRequestID = 128

// ValidRequestID reports whether a forwarder keeps a request id that a client has chosen.
func ValidRequestID[S ~string | ~[]byte](id S) bool { return len(id) <= MaxRequestID && ValidToken(id) }

// EndToEnd reports whether a field of the response goes beyond the next hop (RFC 9110, section 7.6.1).
func (r *Response) EndToEnd(f *Field) bool { return !f.Known.Connectional() && !r.Listed(f) }

// Expects reports whether a forwarder tells the server that the client may wait for "100 Continue": not without a body (RFC
// 9110, section 10.1.1).
func (r *Request) Expects() bool { return r.Continue && r.Length != 0 }

// Switches returns the protocols to which a forwarder lets the client change; nil = none. A request with a body cannot
// change: one of the sides might take the body for the new protocol.
func (r *Request) Switches() []byte {
	if r.Length == 0 && !CarriesRequests(r.Upgrade) {
		return r.Upgrade
	}
	return nil
}

// Prior is what earlier forwarders say about a request, in fields that this one extends. Trusted, RFC and Named are set
// before the first call of Passes, which sets the others.
type Prior struct {
	Trusted bool // the peer's fields about its own clients are true
	RFC     bool // Forwarded is extended (RFC 7239)
	Named   bool // Via is extended

	XFF, Forwarded, Via []byte // values to be extended, with a comma between fields; nil = none
	Host, Proto         bool   // the request says these of its client, so that they are not set
}

// Passes reports whether a field of the request that Connection does not list is passed on as it is. Others belong to the
// connection, are written anew, or are about the client: a server may believe one that this forwarder does not set, so
// that those of an untrusted peer go no further.
func (p *Prior) Passes(f *Field) bool {
	switch f.Known {
	case XForwardedFor, XForwardedHost, XForwardedProto, Forwarded, ForwardedRFC:
		return p.Trusted && !p.extends(f)
	case Via:
		if p.Named {
			p.Via = AppendJoined(p.Via, f.Value)
		}
		return !p.Named
	case Host, ContentLength, Expect:
		return false
	}
	return !f.Known.Connectional()
}

// extends collects a field that is extended; others pass.
func (p *Prior) extends(f *Field) bool {
	switch f.Known {
	case XForwardedFor:
		p.XFF = AppendJoined(p.XFF, f.Value)
		return true
	case ForwardedRFC:
		if p.RFC {
			p.Forwarded = AppendJoined(p.Forwarded, f.Value)
		}
		return p.RFC
	case XForwardedHost:
		p.Host = true
	case XForwardedProto:
		p.Proto = true
	}
	return false
}

// AppendJoined appends a value to a list of values.
func AppendJoined(list, value []byte) []byte {
	if len(list) > 0 {
		list = append(list, ", "...)
	}
	return append(list, value...)
}

// AppendConnection appends the fields about the next connection: whether trailers are accepted, the protocols to change to,
// if any, and whether the connection ends. Connection lists each of them (RFC 9110, section 7.6.1).
func AppendConnection(dst []byte, trailers bool, upgrade string, closes bool) []byte {
	start := len(dst)
	for _, option := range [...]struct {
		name string
		is   bool
	}{{"close", closes}, {"TE", trailers}, {"Upgrade", upgrade != ""}} {
		switch {
		case !option.is:
			continue
		case len(dst) == start:
			dst = append(dst, "Connection: "...)
		default:
			dst = append(dst, ", "...)
		}
		dst = append(dst, option.name...)
	}
	if len(dst) == start {
		return dst
	}
	if trailers {
		dst = append(dst, "\r\nTE: trailers"...)
	}
	if upgrade != "" {
		dst = append(append(dst, "\r\nUpgrade: "...), upgrade...)
	}
	return append(dst, "\r\n"...)
}

// Idempotent reports whether sending a request of the method twice has the same effect as sending it
// once (RFC 9110, section 9.2.2).
func Idempotent[S ~string | ~[]byte](method S) bool {
	switch string(method) {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// MakesIdempotent reports whether the field with a name, in any case, means that the server recognizes
// a request that it gets twice.
func MakesIdempotent[S ~string | ~[]byte](name S) bool {
	b := []byte(name)
	return EqualFold(b, "idempotency-key") || EqualFold(b, "x-idempotency-key")
}

// StatesLength reports whether a request of the method says "Content-Length: 0" if it has no body (RFC 9110, section 8.6).
func StatesLength[S ~string | ~[]byte](method S) bool {
	switch string(method) {
	case "POST", "PUT", "PATCH":
		return true
	}
	return false
}

// ConnectionAuth reports whether a credential or challenge uses a scheme that authenticates the
// connection and not the request (RFC 4559): NTLM, Negotiate. No other client may use the connection
// afterwards.
func ConnectionAuth[S ~string | ~[]byte](value S) bool {
	var head [16]byte // longer than both; a whole credential would be copied to the heap
	scheme, _, _ := bytes.Cut(head[:copy(head[:], value)], []byte(" "))
	scheme = bytes.TrimRight(scheme, ",")
	return EqualFold(scheme, "ntlm") || EqualFold(scheme, "negotiate")
}

// CarriesRequests reports whether a protocol in the list of an Upgrade field could carry HTTP requests
// past a forwarder's rules. Such upgrades are not passed on, nor are upgrades of a request with a
// body: one side alone could take the body for the new protocol.
func CarriesRequests[S ~string | ~[]byte](list S) bool {
	for rest := []byte(list); len(rest) > 0; {
		var item []byte
		item, rest = nextItem(rest)
		name, _, _ := bytes.Cut(item, []byte("/"))
		if len(name) >= 2 && EqualFold(name[:2], "h2") || EqualFold(name, "http") || EqualFold(name, "tls") {
			return true
		}
	}
	return false
}

// CheckSwitch returns why a 101 response must not be passed on, nil if it may be. asked is the list of
// protocols in the request, to the protocol of the response, and upgrades says whether the response's
// Connection field lists Upgrade. The error wraps ErrMalformed.
func CheckSwitch[S ~string | ~[]byte](asked, to S, upgrades bool) error {
	switch {
	case len(asked) == 0:
		return fmt.Errorf("%w: 101 although no upgrade was asked for", ErrMalformed)
	case !upgrades:
		return fmt.Errorf("%w: 101 without Connection: Upgrade", ErrMalformed)
	case len(to) == 0 || !HasItem([]byte(asked), string(to)):
		return fmt.Errorf("%w: 101 to protocol %.40q, %.40q was asked for", ErrMalformed, to, asked)
	}
	return nil
}

// HasDotSegment reports whether a decoded path has a segment that servers resolve: "/api/../admin" is routed as written
// and served as "/admin", so a forwarder refuses it. Some servers also take backslashes for separators.
func HasDotSegment(path string) bool {
	if !strings.Contains(path, "/.") && !strings.Contains(path, `\`) {
		return false
	}
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		segment, _, _ = strings.Cut(segment, ";") // parameters, which some servers remove before they resolve segments
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// AppendForwarded appends a forwarder's element of the Forwarded field (RFC 7239): the client, which
// is unknown if addr is the zero Addr, "http" or "https", and the requested host, unless it is
// invalid.
func AppendForwarded(dst []byte, addr netip.Addr, proto, host string) []byte {
	dst = append(dst, "for="...)
	switch {
	case addr.Is6():
		dst = append(dst, `"[`...)
		dst = addr.AppendTo(dst)
		dst = append(dst, `]"`...)
	case addr.IsValid():
		dst = addr.AppendTo(dst)
	default:
		dst = append(dst, "unknown"...) // the client of a Unix socket
	}
	dst = append(dst, ";proto="...)
	dst = append(dst, proto...)
	if ValidHost(host) { // holds no quote or backslash
		dst = append(dst, `;host="`...)
		dst = append(dst, host...)
		dst = append(dst, '"')
	}
	return dst
}

// AppendVia appends a forwarder's element of the Via field (RFC 9110, section 7.6.3). The version is
// that of the received message.
func AppendVia(dst []byte, major, minor int, name string) []byte {
	dst = strconv.AppendInt(dst, int64(major), 10)
	dst = append(dst, '.')
	dst = strconv.AppendInt(dst, int64(minor), 10)
	dst = append(dst, ' ')
	return append(dst, name...)
}

// ServerFailed reports whether a response with the status counts as a failure of its endpoint, for
// ejection. 501 and 505 do not: clients can make up methods and versions.
func ServerFailed(status int) bool {
	return status >= 500 && status < 600 && status != 501 && status != 505
}

// HadItsTime reports whether the endpoint is to blame for the end of a wait for its response. Earlier
// attempts, or the wait for a connection, may have left it little of the full time.
func HadItsTime(had, full time.Duration) bool { return had >= full/2 }

// Lost describes an attempt to send a request whose connection ended before the client had a byte of
// the response. It is a value: all methods are pure.
type Lost struct {
	// Idled: the connection had been idle before the request, so the server may have been closing it.
	Idled bool
	// Answered: a byte of the response has arrived.
	Answered bool
	// Whole: the request can be sent again unchanged, with all of its body that was read.
	Whole bool
	// Unsent: no byte of the request has left the process.
	Unsent bool
	// Idempotent: the request may be sent again although a server may have seen it.
	Idempotent bool
	// Reset: the server has ended this request, and not the connection (HTTP/2's RST_STREAM).
	Reset bool
	// NotBegun: the server has stated that it has not processed the request (HTTP/2's GOAWAY and
	// REFUSED_STREAM).
	NotBegun bool
}

// Stale reports whether to send the request again on a new connection without counting another
// attempt: after the keep-alive race, in which the server closed an idle connection just as it was
// used, or if the server has not begun with the request.
func (l Lost) Stale() bool {
	return l.Whole && (l.NotBegun || l.Idled && !l.Answered && !l.Reset && (l.Unsent || l.Idempotent))
}

// Blames reports whether the endpoint has failed: not if it may only have closed an idle connection.
func (l Lost) Blames() bool { return (l.Answered || !l.Idled || l.Reset) && !l.NotBegun }

package httpproxy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jwt"
	"github.com/headpond/headpond/listener"
)

// BasicAuth asks the clients of a route for a name and a password (RFC 7617).
type BasicAuth struct {
	// Users are required. Several routes can share them.
	Users *Users
	// Realm is the text that clients show to their users. "" = "restricted".
	Realm string
	// UserHeader is a header that gives the server the name of the user; "" = none. A client's own header of that name
	// is dropped, also if it has "_" in place of "-", because some servers treat both the same.
	UserHeader string
	// Forward passes Authorization on to the server. Otherwise the field is dropped, as the server need not know the
	// passwords.
	Forward bool
}

// maxRealm bounds a realm, in bytes.
const (
	maxRealm     = 256
	defaultRealm = "restricted"
)

// verifyAccess checks the fields about who may use the route.
func (r Route) verifyAccess() error {
	for _, list := range [][]netip.Prefix{r.Allow, r.Deny} {
		for _, p := range list {
			if !p.IsValid() {
				return errors.New("Allow or Deny has an invalid prefix")
			}
		}
	}
	if f := r.ForwardAuth; f != nil {
		if err := f.verify(); err != nil {
			return err
		}
		for _, name := range f.ResponseHeaders {
			if err := r.writesToo(name); err != nil {
				return err
			}
		}
	}
	if b := r.BasicAuth; b != nil {
		switch {
		case r.ForwardAuth != nil || r.BearerAuth != nil:
			return errors.New("BasicAuth, BearerAuth and ForwardAuth exclude each other")
		case b.Users == nil:
			return errors.New("BasicAuth without Users")
		}
		return r.verifyIdentity(b.Realm, b.UserHeader)
	}
	return r.verifyBearer()
}

// verifyIdentity checks a realm, and the headers in which the server gets who the client is; "" = none.
func (r Route) verifyIdentity(realm string, headers ...string) error {
	if len(realm) > maxRealm || !httpwire.ValidValue(realm) || strings.ContainsAny(realm, `"\`) {
		return fmt.Errorf("the realm %.40q has quotes, backslashes, control characters or more than %d bytes", realm, maxRealm)
	}
	for i, name := range headers {
		if name == "" {
			continue
		}
		if err := cmp.Or(CheckIdentityHeader(name), r.writesToo(name)); err != nil {
			return err
		}
		if slices.ContainsFunc(headers[:i], func(o string) bool { return SameHeader(o, name) }) {
			return fmt.Errorf("the header %s twice", name)
		}
	}
	return nil
}

// writesToo reports an error if a rule for request headers writes a field that only the gateway may write.
func (r Route) writesToo(name string) error {
	for _, f := range slices.Concat(r.RequestHeaders.Set, r.RequestHeaders.Add) {
		if SameHeader(f.Name, name) {
			return fmt.Errorf("the header %s, in which the server gets who the client is, is also set by RequestHeaders", name)
		}
	}
	return nil
}

// CheckIdentityHeader returns an error if a header cannot carry the gateway's information about a client; nil = it can.
func CheckIdentityHeader(name string) error {
	if !httpwire.ValidToken(name) || strings.Contains(name, "_") {
		return fmt.Errorf(`the header %.40q: want letters, digits and "-"`, name)
	}
	for _, taken := range []string{
		"host", "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "content-type", "content-encoding",
		"expect", "via", "date", "authorization", "cookie", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-request-id",
		"http2-settings", "accept-encoding", "range", "x-real-ip", "proxy-authorization", "proxy-authenticate", clientCertField,
	} {
		if strings.EqualFold(name, taken) {
			return fmt.Errorf("the header %s is reserved", name)
		}
	}
	return nil
}

// access is the prepared access rules of a route. It is immutable.
type access struct {
	addresses  listener.Addresses
	users      *Users  // nil = no passwords
	bearer     *bearer // nil = no keys and tokens
	challenge  string  // the value of WWW-Authenticate
	userHeader string
	forward    bool
	asker      *asker // nil = no authentication server
}

// newAccess returns nil if all clients may use r.
func (p *Proxy) newAccess(r Route, keys map[string]*jwt.Keys) *access {
	if len(r.Allow)+len(r.Deny) == 0 && r.BasicAuth == nil && r.ForwardAuth == nil && r.BearerAuth == nil {
		return nil
	}
	a := &access{addresses: listener.Addresses{Allow: r.Allow, Deny: r.Deny}.Plain(), asker: newAsker(r.ForwardAuth)}
	if b := r.BasicAuth; b != nil {
		a.users, a.userHeader, a.forward = b.Users, b.UserHeader, b.Forward
		a.challenge = `Basic realm="` + cmp.Or(b.Realm, defaultRealm) + `", charset="UTF-8"`
	}
	if b := r.BearerAuth; b != nil {
		a.bearer, a.userHeader, a.forward = p.newBearer(b, keys), b.UserHeader, b.Forward
		a.challenge = `Bearer realm="` + cmp.Or(b.Realm, defaultRealm) + `"`
	}
	return a
}

// addressDenied refuses a request from an address that may not use the route. The status is 0 if the address may.
func (s *session) addressDenied() (no refusal) {
	a := s.ex.target.access
	if a == nil || a.addresses.Empty() {
		return no
	}
	if ip, ok := s.clientAddr(); ok && a.addresses.Admit(ip) {
		return no
	}
	return refusal{status: http.StatusForbidden, reason: listener.ReasonDenied, why: "requests from this address are not allowed here"}
}

// admit decides whether a client from an allowed address may use the route. Without mayWait it never waits: done is
// false if it would have to.
func (s *session) admit(a *access, path string, mayWait bool) (no refusal, done bool) {
	if mayWait {
		s.note(path, false)
	}
	switch {
	case a.asker != nil && !mayWait:
		return no, false
	case a.asker != nil:
		return s.ask(a.asker), true
	case a.bearer != nil:
		return s.bearer(a, mayWait)
	case a.users == nil:
		return no, true
	}
	credentials, sent := s.credentials()
	if credentials == nil {
		no = refusal{status: http.StatusUnauthorized, why: "a user name and a password are required", challenge: a.challenge}
		if sent {
			no.reason = listener.ReasonAuthFailed
		}
		return no, true
	}
	user, verdict := a.users.check(s, credentials, mayWait)
	switch verdict {
	case clientLeft:
		return refusal{status: http.StatusServiceUnavailable, clientGone: true}, true
	case givenUp:
		return refusal{status: http.StatusServiceUnavailable, reason: listener.ReasonTimeout, why: "the password was not checked in time", retryAfter: 1}, true
	case unknownYet:
		return no, false
	case tooBusy:
		return refusal{status: http.StatusServiceUnavailable, reason: listener.ReasonOverloaded, why: "too many passwords are being checked", retryAfter: 1}, true
	case wrongPassword:
		return refusal{status: http.StatusUnauthorized, reason: listener.ReasonAuthFailed, why: "wrong user name or password", challenge: a.challenge}, true
	}
	s.ex.user = user
	return no, true
}

// clientAddr returns the address of the client. That is the peer's or, if the peer is a trusted proxy, the last address
// in X-Forwarded-For that is not a trusted proxy. ok is false if no such address can be read.
func (s *session) clientAddr() (ip netip.Addr, ok bool) {
	return clientOf(&s.req, s.from().addr, s.ex.target.trusted)
}

// clientOf is clientAddr for a request from the peer ip.
func clientOf(r *httpwire.Request, ip netip.Addr, trusted []netip.Prefix) (netip.Addr, bool) {
	if !listener.Within(trusted, ip) {
		return ip, ip.IsValid()
	}
	var ok bool
	for i := len(r.Fields) - 1; i >= 0; i-- {
		f := &r.Fields[i]
		if f.Known != httpwire.XForwardedFor {
			continue
		}
		for list := f.Value; ; {
			comma := bytes.LastIndexByte(list, ',')
			if ip, ok = forwardedAddr(list[comma+1:]); !ok || !listener.Within(trusted, ip) {
				return ip, ok
			}
			if comma < 0 {
				break
			}
			list = list[:comma]
		}
	}
	return ip, true
}

// forwardedAddr parses an element of X-Forwarded-For: an address, with a port in some proxies' form.
func forwardedAddr(text []byte) (netip.Addr, bool) {
	t := view(bytes.Trim(text, " \t"))
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(t, "["), "]"))
	if err != nil {
		var with netip.AddrPort
		if with, err = netip.ParseAddrPort(t); err != nil {
			return ip, false
		}
		ip = with.Addr()
	}
	return ip.Unmap().WithZone(""), true
}

// credentials returns the credentials of scheme Basic, in base64; nil if the request has none, or several Authorization
// fields, of which the server might use another. sent reports whether the request has an Authorization field.
func (s *session) credentials() (coded []byte, sent bool) {
	const scheme = "basic "
	for i := range s.req.Fields {
		f := &s.req.Fields[i]
		if f.Known != httpwire.Authorization {
			continue
		}
		if sent {
			return nil, true
		}
		sent = true
		if len(f.Value) > len(scheme) && httpwire.EqualFold(f.Value[:len(scheme)], scheme) {
			coded = bytes.TrimLeft(f.Value[len(scheme):], " ")
		}
	}
	return coded, sent
}

// withholds reports whether a field of the client must not reach the server, neither as it is nor by a variable.
func (a *access) withholds(f *httpwire.Field) bool {
	if a == nil {
		return false
	}
	if !a.forward && (a.users != nil || a.bearer != nil) && f.Known == httpwire.Authorization || a.bearer != nil && !a.forward && keyHeader(f.Name) {
		return true
	}
	return a.writes(f.Name)
}

// writes reports whether the gateway itself tells the server who the client is in a field of this name.
func (a *access) writes(name []byte) bool {
	return a.userHeader != "" && SameHeader(view(name), a.userHeader) || a.asker != nil && a.asker.withholds(name) || a.bearer != nil && a.bearer.writes(name)
}

// withholdTrailers removes trailers of the request that a server might merge into the header, in place of fields that
// the gateway sets.
func (s *session) withholdTrailers() {
	s.upChunks.Trailer = slices.DeleteFunc(s.upChunks.Trailer, func(f httpwire.Field) bool {
		return s.ex.target.access.withholds(&f) || isClientCert(f.Name)
	})
}

// SameHeader reports whether servers may treat two header names as the same: many treat "_", and some every sign, as
// "-".
func SameHeader(got, name string) bool {
	if len(got) != len(name) {
		return false
	}
	plain := func(c byte) byte {
		switch {
		case 'A' <= c && c <= 'Z':
			return c | 0x20
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		}
		return '-'
	}
	for i := range len(got) {
		if plain(got[i]) != plain(name[i]) {
			return false
		}
	}
	return true
}

// appendAccess appends the fields about the client that the access rules of the route provide.
func (s *session) appendAccess(w *headWriter, a *access) {
	if a.userHeader != "" && s.ex.user != "" {
		w.line(a.userHeader, s.ex.user)
	}
	for _, g := range s.ex.grants {
		w.line(g.name, g.value)
	}
}

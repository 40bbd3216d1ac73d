package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// CanaryBy is what decides whether a request is in a Canary's share.
type CanaryBy string

// The values of CanaryBy.
const (
	// CanaryByRequest decides for each request at random. The default, "".
	CanaryByRequest CanaryBy = "request"
	// CanaryByClient decides by the client's address, for IPv6 by its /64. If the peer is one of
	// Config.TrustedProxies, the client is the last address in X-Forwarded-For that is not. All clients of
	// a Unix socket are one.
	CanaryByClient CanaryBy = "client"
)

// Values lists all values that a configuration file may have.
func (CanaryBy) Values() []string { return []string{string(CanaryByRequest), string(CanaryByClient)} }

// Canary sends a share of a route's requests to another upstream, such as the next version of a service. A key in the
// share stays in it: on all routes with the same key, in all gateways, after a reload, and when the share grows. At most
// one of By, Header and Cookie is set. The zero value is no canary.
//
// Everything else stays as configured for the route: conditions, limits, changes of messages and Affinity. A request that
// fails at the canary's upstream is not sent to the route's.
type Canary struct {
	// Upstream gets the share; nil = there is no canary. The Proxy does not close it.
	Upstream *Upstream
	// Percent is the size of the share, up to 100.
	Percent int
	By      CanaryBy
	// Header is the name of a field whose value is the key. Requests without it are outside the share.
	Header string
	// Cookie is the name of a cookie whose value is the key. Requests without it are outside the share,
	// unless they get one from SetCookie.
	Cookie string
	// SetCookie gives clients without the cookie one with a random value, as Affinity.SetCookie does.
	SetCookie bool
	// MaxAge is how long clients keep the cookie; 0 = for their session.
	MaxAge time.Duration
}

func (c Canary) verify(r Route) error {
	kinds := 0
	for _, is := range []bool{c.By != "" && c.By != CanaryByRequest, c.Header != "", c.Cookie != ""} {
		if is {
			kinds++
		}
	}
	switch {
	case c == Canary{}:
		return nil
	case c.Upstream == nil:
		return errors.New("canary: no upstream")
	case c.Upstream == r.Upstream:
		return errors.New("canary: its upstream is that of the route")
	case len(r.Groups) > 0:
		return errors.New("canary: Groups choose the upstream")
	case c.Percent < 0 || c.Percent > 100:
		return fmt.Errorf("canary: %d percent", c.Percent)
	case c.By != "" && c.By != CanaryByRequest && c.By != CanaryByClient:
		return fmt.Errorf("canary: the share cannot be of %q", string(c.By))
	case kinds > 1:
		return errors.New("canary: want one of By, Header and Cookie")
	case c.Header != "" && (!httpwire.ValidToken(c.Header) || len(c.Header) > maxMatchBytes):
		return fmt.Errorf("canary: the header %.40q is not a token of up to %d bytes", c.Header, maxMatchBytes)
	case c.Cookie != "" && (!httpwire.ValidToken(c.Cookie) || len(c.Cookie) > maxMatchBytes):
		return fmt.Errorf("canary: the cookie %.40q is not a token of up to %d bytes", c.Cookie, maxMatchBytes)
	case c.Cookie == "" && (c.SetCookie || c.MaxAge != 0):
		return errors.New("canary: SetCookie and MaxAge need Cookie")
	case c.MaxAge < 0 || c.MaxAge > 0 && !c.SetCookie:
		return errors.New("canary: MaxAge must not be negative, and needs SetCookie")
	case c.SetCookie && r.Affinity.SetCookie && c.Cookie == r.Affinity.Cookie:
		return fmt.Errorf("canary: the cookie %.40q is set for Affinity already", c.Cookie)
	}
	return nil
}

// canary is a Canary prepared for use.
type canary struct {
	target         *target // of the requests in the share
	percent        uint64
	header, cookie string // the header in lower case
	client, sets   bool
	maxAge         string // "; Max-Age=…"
}

// newCanary returns nil if c is the zero value; to is the route with c's upstream.
func newCanary(c Canary, to *target) *canary {
	return &canary{
		target: to, percent: uint64(c.Percent), header: string(bytes.ToLower([]byte(c.Header))), cookie: c.Cookie,
		client: c.By == CanaryByClient, sets: c.SetCookie, maxAge: maxAgeOf(c.MaxAge),
	}
}

// canarySlots is the number of places for keys. The first places are the share.
const canarySlots = 100 * 100

// inside reports whether the hash of a key is in the share.
func (c *canary) inside(hash uint64) bool {
	// FNV's low bits alone are unevenly distributed for short keys, so this is the finalizer of
	// MurmurHash3.
	hash ^= hash >> 33
	hash *= 0xff51afd7ed558ccd
	hash ^= hash >> 33
	hash *= 0xc4ceb9fe1a85ec53
	hash ^= hash >> 33
	return hash%canarySlots < c.percent*(canarySlots/100)
}

// takes reports whether the request goes to the canary.
func (s *session) takes(c *canary) bool {
	switch {
	case c.header != "":
		for i := range s.req.Fields {
			if f := &s.req.Fields[i]; len(f.Value) > 0 && httpwire.EqualFold(f.Name, c.header) {
				return c.inside(hashOf(f.Value))
			}
		}
		return false
	case c.cookie != "":
		if value := s.cookie(c.cookie); value != nil {
			return c.inside(hashOf(value))
		}
		if !c.sets {
			return false
		}
		x := &s.ex
		x.cookieCanary = c
		randomCookie(&x.canaryCookie)
		return c.inside(hashOf(x.canaryCookie[:]))
	case c.client:
		from := s.source().As16()
		return c.inside(hashOf(from[:]))
	}
	return rand.Uint64N(100) < c.percent
}

// hashOf returns the FNV-1a hash, so that several gateways agree.
func hashOf(value []byte) uint64 {
	hash := uint64(14695981039346656037)
	for _, c := range value {
		hash = (hash ^ uint64(c)) * 1099511628211
	}
	return hash
}

// maxAgeOf returns the attribute of a cookie that clients keep for d; "" if d is 0.
func maxAgeOf(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return "; Max-Age=" + strconv.FormatInt(int64(max(d/time.Second, 1)), 10)
}

// randomCookie sets a random value of a cookie.
func randomCookie(value *[16]byte) {
	v := rand.Uint64() | 1<<63 // of 16 digits
	strconv.AppendUint(value[:0], v, 16)
}

// cookie returns the value of the request's first cookie with a name that has a value; nil = there is
// none.
func (s *session) cookie(name string) []byte {
	for i := range s.req.Fields {
		f := &s.req.Fields[i]
		if !httpwire.EqualFold(f.Name, "cookie") {
			continue
		}
		for tail := f.Value; len(tail) > 0; {
			var key, value []byte
			if key, value, tail = nextCookie(tail); view(key) == name && len(value) > 0 {
				return value
			}
		}
	}
	return nil
}

// appendSetCookies appends the cookies to set.
func (s *session) appendSetCookies(w *headWriter) {
	x := &s.ex
	if x.affinityKey.setting {
		s.appendSetCookie(w, x.target.affinity.cookie, &x.affinityKey.cookie, x.target.affinity.maxAge)
	}
	if c := x.cookieCanary; c != nil {
		s.appendSetCookie(w, c.cookie, &x.canaryCookie, c.maxAge)
	}
}

func (s *session) appendSetCookie(w *headWriter, name string, value *[16]byte, maxAge string) {
	w.begin("Set-Cookie")
	w.dst = append(w.dst, name...)
	w.dst = append(w.dst, '=')
	w.dst = append(w.dst, value[:]...)
	w.dst = append(w.dst, "; Path=/; HttpOnly; SameSite=Lax"...)
	if s.isTLS != nil {
		w.dst = append(w.dst, "; Secure"...)
	}
	w.dst = append(w.dst, maxAge...)
	w.end()
}

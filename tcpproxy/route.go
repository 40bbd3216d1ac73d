package tcpproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/upstream"
)

// Route sends clients to an upstream by their TLS ClientHello. A client has to fit
// SNI and ALPN. Of the routes that fit, the one with the most specific name is taken:
// a name, then the longest "*.name", then none. Of those, one with ALPN goes before
// one without, and then the order decides.
type Route struct {
	// SNI are server names, of any case, and "*.name" for all names below a name,
	// however deep; empty = any name, and none.
	SNI []string
	// ALPN are protocols, of which the client offers at least one among its first 64;
	// empty = any, and none. With Config.TLS they are what the Proxy agrees to, in
	// order of preference.
	ALPN []string
	// Upstream, UpstreamTLS and ConnectTimeout are used in place of the Config's.
	// Upstream is required; without UpstreamTLS there is none, and a ConnectTimeout
	// of 0 is the Config's.
	Upstream       *upstream.Upstream[net.Conn]
	UpstreamTLS    *tls.Config
	ConnectTimeout time.Duration
}

// CheckSNI reports what is wrong with one of Route.SNI.
func CheckSNI(name string) error {
	plain := strings.TrimPrefix(name, "*.")
	if _, err := netip.ParseAddr(plain); err == nil {
		return fmt.Errorf("%q: a ClientHello names no addresses; clients that connect to an address send no name", name)
	}
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_"
	for label := range strings.SplitSeq(plain, ".") {
		if label == "" || len(label) > 63 || strings.Trim(strings.ToLower(label), letters) != "" || len(plain) > 253 {
			return fmt.Errorf("%q: want a DNS name, or \"*.\" and a DNS name", name)
		}
	}
	return nil
}

func (r *Route) verify() error {
	switch {
	case r.Upstream == nil:
		return errors.New("Upstream is missing")
	case len(r.SNI)+len(r.ALPN) == 0:
		return errors.New("SNI and ALPN are empty: such a route is Config.Upstream")
	case r.ConnectTimeout < 0:
		return fmt.Errorf("ConnectTimeout %v is negative", r.ConnectTimeout)
	}
	for _, name := range r.SNI {
		if err := CheckSNI(name); err != nil {
			return fmt.Errorf("SNI %w", err)
		}
	}
	for _, p := range r.ALPN {
		if p == "" || len(p) > math.MaxUint8 {
			return fmt.Errorf("ALPN %.20q: a protocol has 1 to 255 bytes", p)
		}
	}
	return nil
}

// target is where a client is sent.
type target struct {
	upstream *upstream.Upstream[net.Conn]
	tls      *tls.Config // nil = none
	connect  time.Duration

	alpn   []string    // of a route
	client *tls.Config // for the client, where the Proxy ends TLS; nil = the Config's
}

// settings are a Config with defaults, ready for use. They are never changed.
type settings struct {
	Config
	fallback *target // where no route fits; nil = there the client is refused

	callsBack bool // TLS has functions of the user's that look at clients

	routed bool                 // there are routes
	exact  map[string][]*target // by name in lower case; those with protocols come first
	below  map[string][]*target // by name without "*.", likewise
	any    []*target            // of routes without SNI, likewise
}

// prepare makes the targets of c, which has its defaults.
func (c Config) prepare() *settings {
	s := &settings{Config: c, routed: len(c.Routes) > 0, exact: map[string][]*target{}, below: map[string][]*target{}}
	if c.Upstream != nil {
		s.fallback = &target{upstream: c.Upstream, tls: c.UpstreamTLS, connect: c.ConnectTimeout}
	}
	for _, protocols := range []bool{true, false} {
		for _, r := range c.Routes {
			if len(r.ALPN) > 0 == protocols {
				s.add(r.SNI, c.target(r))
			}
		}
	}
	if t := c.TLS; t != nil {
		s.callsBack = t.VerifyPeerCertificate != nil || t.VerifyConnection != nil || t.GetConfigForClient != nil
	}
	if s.routed && c.TLS != nil {
		s.TLS = c.TLS.Clone()
		s.TLS.GetConfigForClient = configForClient(c.TLS.GetConfigForClient)
	}
	return s
}

// add adds a target behind the others of its names.
func (s *settings) add(names []string, t *target) {
	if len(names) == 0 {
		s.any = append(s.any, t)
	}
	for _, name := range names {
		name = strings.ToLower(name)
		if parent, wild := strings.CutPrefix(name, "*."); wild {
			s.below[parent] = append(s.below[parent], t)
		} else {
			s.exact[name] = append(s.exact[name], t)
		}
	}
}

// target is that of a route.
func (c Config) target(r Route) *target {
	t := &target{upstream: r.Upstream, tls: tlsclient.WithSessions(r.UpstreamTLS), connect: r.ConnectTimeout, alpn: r.ALPN}
	if t.connect == 0 {
		t.connect = c.ConnectTimeout
	}
	if c.TLS != nil && len(r.ALPN) > 0 {
		t.client = c.TLS.Clone()
		t.client.NextProtos = r.ALPN
	}
	return t
}

// maxProtocols is how many of a client's protocols are looked at: browsers offer two to four, and a ClientHello has
// room for thousands, each of which would be compared with those of all routes.
const maxProtocols = 64

// maxName is the length of the longest DNS name. A longer one fits no route, and is not looked for: a ClientHello has room
// for 16,000 dots, each of which would be a look-up.
const maxName = 253

// choose returns the target for what a ClientHello says, nil if there is none.
func (s *settings) choose(name string, protocols []string) *target {
	name, protocols = strings.ToLower(name), protocols[:min(len(protocols), maxProtocols)]
	if t := first(s.exact[name], protocols); t != nil {
		return t
	}
	for parent, found := name, len(name) <= maxName; found; {
		if _, parent, found = strings.Cut(parent, "."); found {
			if t := first(s.below[parent], protocols); t != nil {
				return t
			}
		}
	}
	if t := first(s.any, protocols); t != nil {
		return t
	}
	return s.fallback
}

// first returns the first target that takes protocols, nil if there is none.
func first(some []*target, protocols []string) *target {
	for _, t := range some {
		if len(t.alpn) == 0 || slices.ContainsFunc(protocols, func(p string) bool { return slices.Contains(t.alpn, p) }) {
			return t
		}
	}
	return nil
}

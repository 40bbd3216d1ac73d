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

// Route sends clients to an upstream by their TLS ClientHello. Both SNI and ALPN must match. Of the matching routes the
// one with the most specific name wins: an exact name before the longest "*.name" before a route without SNI. Among
// these, routes with ALPN come before those without, and then the order decides.
type Route struct {
	// SNI lists server names, regardless of case, and "*.name" for all names below a name at any depth; empty = every
	// client, with a name or without.
	SNI []string
	// ALPN lists protocols, of which the client must offer at least one among its first 64; empty = every client. With
	// Config.TLS these are also the protocols that the Proxy negotiates, in order of preference.
	ALPN []string
	// Upstream, UpstreamTLS and ConnectTimeout replace those of the Config. Upstream is required. A nil UpstreamTLS
	// means no TLS to the server; a ConnectTimeout of 0 means that of the Config.
	Upstream       *upstream.Upstream[net.Conn]
	UpstreamTLS    *tls.Config
	ConnectTimeout time.Duration
}

// CheckSNI reports what is wrong with an element of Route.SNI.
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

// target is the destination of a client.
type target struct {
	upstream *upstream.Upstream[net.Conn]
	tls      *tls.Config // nil = none
	connect  time.Duration

	alpn   []string    // of the route
	client *tls.Config // TLS with the client, if the Proxy ends it; nil = the Config's
}

// settings are a Config with defaults, prepared for use. They are immutable.
type settings struct {
	Config
	fallback *target // for clients without a matching route; nil = refuse them

	callsBack bool // TLS has callbacks that decide about clients

	routed bool                 // there are routes
	exact  map[string][]*target // by name in lower case; targets with protocols come first
	below  map[string][]*target // by name without "*."; same order
	any    []*target            // for routes without SNI; same order
}

// prepare returns the settings of c, which already has its defaults.
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

// add adds a target after the others of the same names.
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

// target returns the target of a route.
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

// maxProtocols bounds how many of a client's protocols are compared. Browsers offer two to four, but a ClientHello has
// space for thousands, and each is compared with those of all routes.
const maxProtocols = 64

// maxName is the length of the longest DNS name. Longer names match no route and are not looked up: a ClientHello has
// room for a name with 16,000 dots, each of which would be a look-up.
const maxName = 253

// choose returns the target for a server name and protocols, nil if there is none.
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

// first returns the first target that accepts one of the protocols, nil if there is none.
func first(some []*target, protocols []string) *target {
	for _, t := range some {
		if len(t.alpn) == 0 || slices.ContainsFunc(protocols, func(p string) bool { return slices.Contains(t.alpn, p) }) {
			return t
		}
	}
	return nil
}

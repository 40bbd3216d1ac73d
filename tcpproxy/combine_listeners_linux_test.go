package tcpproxy_test

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// combineListener is a proxy with random settings.
type combineListener struct {
	r       *combineRound
	i       int
	kind    string // plain, tls (the proxy ends TLS), pass (routes by ClientHello), tlsroutes (both)
	cfg     tcpproxy.Config
	proxy   *tcpproxy.Proxy
	address *net.TCPAddr
	served  chan struct{}

	fallback *combineUpstream // nil = none
	routes   []combineRoute
	times    bool // a short time-out is on
	always   bool // and it ends every session in which nothing moves
	shared   bool // clients share addresses
	reloads  bool

	mayKill  atomic.Int64
	draining atomic.Bool
}

// combineRoute is a route of a listener.
type combineRoute struct {
	sni, alpn []string
	upstream  *combineUpstream
}

// combineNames are what clients ask for; all have a certificate.
var combineNames = []string{"shop.example", "a.shop.example", "deep.a.shop.example", "other.example", "b.other.example", "localhost", ""}

func newCombineListener(r *combineRound, rnd *rand.Rand, i int) *combineListener {
	l := &combineListener{r: r, i: i, served: make(chan struct{}), kind: [...]string{"plain", "plain", "tls", "pass", "pass", "tlsroutes"}[rnd.IntN(6)], shared: rnd.IntN(4) == 0, reloads: rnd.IntN(3) == 0}
	c := &l.cfg
	c.Listener = listener.Config{Name: fmt.Sprintf("l%d", i), Protocol: "tcp", Logger: r.logger(), AccessLog: true, AcceptProxy: rnd.IntN(3) == 0, ProxyTimeout: conntest.Patience}
	if c.Listener.AcceptProxy {
		c.Listener.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}
	c.SendProxy, c.NoRetry = rnd.IntN(3), rnd.IntN(5) == 0
	c.ConnectTimeout = conntest.Patience // a busy machine may need the default
	if l.kind == "tls" || l.kind == "tlsroutes" {
		c.TLS = &tls.Config{Certificates: r.certs.certificates} //nolint:gosec // the tests' own
	}
	if !l.routed() || rnd.IntN(2) == 0 {
		l.fallback = l.anyUpstream(rnd)
		c.Upstream, c.UpstreamTLS = l.fallback.up, l.tlsTo(l.fallback)
	}
	if l.routed() {
		l.addRoutes(rnd)
	}
	l.limit(rnd)
	l.setTimes(rnd)
	var err error
	if l.proxy, err = tcpproxy.New(*c); err != nil {
		r.t.Fatal(err)
	}
	watchtest.Watch(r.t, l.proxy)
	at := enginetest.Listen(r.t)
	l.address = at.Addr().(*net.TCPAddr) //nolint:forcetypeassert // it is TCP
	go l.serve(at)
	r.t.Cleanup(func() {
		l.proxy.Close()
		<-l.served
	})
	return l
}

func (l *combineListener) serve(at net.Listener) {
	defer close(l.served)
	if err := l.proxy.Serve(at); err != nil {
		l.r.t.Errorf("Serve: %v", err)
	}
}

func (l *combineListener) routed() bool { return l.kind == "pass" || l.kind == "tlsroutes" }

// tlsTo returns the TLS settings of the proxy for an upstream.
func (l *combineListener) tlsTo(u *combineUpstream) *tls.Config {
	if !u.tls || l.kind == "pass" {
		return nil
	}
	return &tls.Config{RootCAs: l.r.certs.pool, ServerName: "localhost"} //nolint:gosec // the tests' own
}

// anyUpstream returns an upstream whose servers leave the first word to clients that speak TLS with them.
func (l *combineListener) anyUpstream(rnd *rand.Rand) *combineUpstream {
	for {
		if u := l.r.upstreams[rnd.IntN(len(l.r.upstreams))]; l.kind != "pass" || !u.banner {
			return u
		}
	}
}

func (l *combineListener) addRoutes(rnd *rand.Rand) {
	for range 1 + rnd.IntN(4) {
		route := combineRoute{upstream: l.anyUpstream(rnd)}
		for range rnd.IntN(3) {
			route.sni = append(route.sni, [...]string{"shop.example", "*.shop.example", "*.a.shop.example", "*.example", "Other.Example", "*.other.example"}[rnd.IntN(6)])
		}
		if len(route.sni) == 0 || rnd.IntN(3) == 0 {
			route.alpn = [][]string{{"h2"}, {"imap", "h2"}, {"http/1.1"}}[rnd.IntN(3)]
		}
		l.routes = append(l.routes, route)
		l.cfg.Routes = append(l.cfg.Routes, tcpproxy.Route{SNI: route.sni, ALPN: route.alpn, Upstream: route.upstream.up, UpstreamTLS: l.tlsTo(route.upstream)})
	}
}

// limit chooses limits of clients.
func (l *combineListener) limit(rnd *rand.Rand) {
	c := &l.cfg.Listener
	switch rnd.IntN(6) {
	case 0:
		c.MaxConns, c.MaxQueue, c.QueueTimeout = 3, [...]int{-1, 2, 100}[rnd.IntN(3)], time.Duration(1+rnd.IntN(200))*time.Millisecond
	case 1:
		c.MaxConnsPerSource, l.shared = 2, true
	case 2:
		c.ConnectionRate, l.shared = listener.Rate{Connections: 3, Per: 100 * time.Millisecond}, true
	case 3:
		c.Deny = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("127.9.0.0/16")}
		l.shared = rnd.IntN(2) == 0
	}
}

// setTimes chooses time-outs.
func (l *combineListener) setTimes(rnd *rand.Rand) {
	c := &l.cfg
	c.DrainStagger = time.Duration(rnd.IntN(2)) * combineDrain / 2
	if rnd.IntN(2) == 0 {
		return
	}
	short := func() time.Duration { return time.Duration(60+rnd.IntN(100)) * time.Millisecond }
	l.times = true
	switch rnd.IntN(6) {
	case 0:
		c.ClientIdleTimeout = short()
	case 1:
		c.ServerIdleTimeout = short()
	case 2:
		c.ClientFINTimeout = short()
	case 3:
		c.StallTimeout = short()
	case 4:
		c.IdleTimeout, l.always = short(), true
	default:
		c.IdleTimeout, c.ClientIdleTimeout, c.ServerIdleTimeout, l.always = short(), short(), short(), true
	}
}

// reload replaces settings while clients connect.
func (l *combineListener) reload(rnd *rand.Rand) {
	if !l.reloads {
		return
	}
	cfg := l.cfg
	cfg.SendProxy = rnd.IntN(3)
	cfg.Listener.MaxConnsPerSource *= rnd.IntN(2)
	if err := l.proxy.Update(cfg); err != nil {
		l.r.t.Error(err)
	}
}

// dress chooses what a client of the listener sends first, and says which upstream gets it.
func (l *combineListener) dress(c *combined, rnd *rand.Rand) {
	c.oneWrite = rnd.IntN(2) == 0
	if l.cfg.Listener.AcceptProxy {
		c.header = 1 + rnd.IntN(2)
		n := combineNumber.Add(1)
		ip := [4]byte{10, byte(rnd.IntN(3)), 0, 1}
		if !l.shared {
			ip[2], ip[3] = byte(n>>8), byte(n) //nolint:gosec // cut off
		}
		c.from = netip.AddrPortFrom(netip.AddrFrom4(ip), uint16(1+n%60000)) //nolint:gosec // it fits
	}
	c.tls = l.kind == "tls" || l.kind == "tlsroutes" || l.kind == "pass" && (l.fallback == nil || rnd.IntN(5) > 0)
	if c.tls {
		c.sni = combineNames[rnd.IntN(len(combineNames))]
		c.alpn = [][]string{nil, nil, {"h2", "http/1.1"}, {"imap"}, {"http/1.1"}}[rnd.IntN(5)]
	}
	c.upstream = l.choose(c)
	if rnd.IntN(12) > 0 {
		return
	}
	c.vanishes = [...]string{"reset", "fin"}[rnd.IntN(2)]
	if hello := []byte{22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3}; c.tls || rnd.IntN(3) == 0 {
		c.first = hello[:rnd.IntN(len(hello)+1)]
	}
}

// choose says which upstream a client gets, nil if none: a simple form of the rule in docs/tcp.md.
func (l *combineListener) choose(c *combined) *combineUpstream {
	if !l.routed() || !c.tls {
		return l.fallback
	}
	best, rank := l.fallback, -1
	for _, route := range l.routes {
		fits := len(route.alpn) == 0 || slices.ContainsFunc(c.alpn, func(p string) bool { return slices.Contains(route.alpn, p) })
		if !fits {
			continue
		}
		at := -1
		if len(route.sni) == 0 {
			at = 0
		}
		for _, name := range route.sni {
			name = strings.ToLower(name)
			switch {
			case name == c.sni:
				at = max(at, 1000)
			case name[0] == '*' && strings.HasSuffix(c.sni, name[1:]):
				at = max(at, len(name))
			}
		}
		if at < 0 {
			continue
		}
		if at *= 2; len(route.alpn) > 0 {
			at++
		}
		if at > rank {
			best, rank = route.upstream, at
		}
	}
	return best
}

// String describes the listener for a failure.
func (l *combineListener) String() string {
	c := l.cfg
	s := fmt.Sprintf("%s shared=%t reloads=%t accept=%t send=%d noretry=%t max=%d/%d/%v source=%d rate=%v deny=%v idle=%v/%v/%v fin=%v stall=%v stagger=%v", l.kind, l.shared, l.reloads, c.Listener.AcceptProxy, c.SendProxy, c.NoRetry,
		c.Listener.MaxConns, c.Listener.MaxQueue, c.Listener.QueueTimeout, c.Listener.MaxConnsPerSource, c.Listener.ConnectionRate, c.Listener.Deny, c.IdleTimeout, c.ClientIdleTimeout, c.ServerIdleTimeout, c.ClientFINTimeout, c.StallTimeout, c.DrainStagger)
	for _, route := range l.routes {
		s += fmt.Sprintf(" route{%q %q u%d}", route.sni, route.alpn, route.upstream.i)
	}
	return s
}

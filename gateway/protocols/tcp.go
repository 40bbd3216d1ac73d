package protocols

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

func init() {
	extend.RegisterProtocol(extend.Protocol{Prepare: prepareTCP, Backend: TCPBackend, Rebuilds: neverRebuilds, Config: config.ListenerProtocol{
		Name: config.TCP, Section: &TCPListener{}, EndsSessions: true, Optimistic: true,
		Upstreams: tcpUpstreams,
		// A pool has one connection per session and must not limit sessions; servers close connections that stay
		// silent, kube-apiserver after 32s.
		Pool:    config.Pool{MaxSize: 10_000, IdleTimeout: 5 * time.Minute, MaxLifetime: 20 * time.Second, CheckAfter: -1, CheckInterval: time.Second},
		MaxWarm: tcpproxy.DefaultMaxWarm, Check: checkTCP,
		Keys: &config.Extension{Upstream: &TCPUpstreamKeys{}, CheckUpstream: checkTCPUpstream},
	}})
}

// tcpBackend is an upstream of tcp listeners.
type tcpBackend struct {
	*upstream.Upstream[net.Conn]
	dial atomic.Pointer[tcpDialer] // an update may replace it
}

// tcpDialer is how a backend connects.
type tcpDialer struct {
	dial     func(ctx context.Context, endpoint string) (net.Conn, error)
	dialFrom tcpproxy.DialFromFunc
}

var (
	_ extend.Changeable = (*tcpBackend)(nil)
	_ extend.Pausable   = (*tcpBackend)(nil)
)

// TCPBackend makes pools of TCP connections. Each connection serves one session.
func TCPBackend(s extend.Settings) (extend.Backend, error) {
	b := &tcpBackend{}
	b.setDial(s)
	o := tcpproxy.UpstreamOptions{Settings: s.Settings, Go: s.Start, Logger: s.Logger}
	o.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) { return b.dial.Load().dial(ctx, endpoint) }
	if keys := config.PartOf[TCPUpstreamKeys](s.Config); keys.Transparent {
		if err := fiber.CanDialFrom(); err != nil {
			return nil, &extend.FieldError{Field: &keys.Transparent, Warning: s.Trial, Err: fmt.Errorf(
				"transparent: this process may not connect from its clients' addresses: %w; it needs Linux and the capability CAP_NET_ADMIN (see docs/tcp.md)", err)}
		}
		o.DialFrom = func(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error) {
			return b.dial.Load().dialFrom(ctx, from, endpoint)
		}
	}
	u, err := tcpproxy.NewUpstream(s.Config.Name, o)
	if err != nil {
		return nil, err
	}
	b.Upstream = u
	return b, nil
}

// Update implements extend.Backend.
func (b *tcpBackend) Update(s extend.Settings) error {
	s.Limits = tcpproxy.WarmLimits(s.Limits)
	err := b.Upstream.Update(s.Settings)
	if err == nil {
		b.setDial(s)
	}
	return err
}

func (b *tcpBackend) setDial(s extend.Settings) { b.dial.Store(&tcpDialer{s.Dial, s.DialFrom}) }

// Runs implements extend.Backend.
func (b *tcpBackend) Runs() any { return b.Upstream }

// neverRebuilds returns false: TLS and its time-out belong to the proxy, which updates in place.
func neverRebuilds(_, _ *config.Upstream, _ bool) bool { return false }

func prepareTCP(l extend.Listener) (extend.Server, error) {
	own := config.SectionOf[TCPListener](l.Listener)
	cfg := tcpproxy.Config{
		Listener: l.Common, IdleTimeout: own.IdleTimeout, ClientIdleTimeout: own.ClientIdle, ServerIdleTimeout: own.ServerIdle,
		ClientFINTimeout: own.ClientFIN, StallTimeout: own.StallTimeout, DrainStagger: own.DrainStagger,
		NoRetry: !own.Retry, SendProxy: own.SendProxy.Version(), TLS: l.TLS,
	}
	if l.Upstream != "" {
		to, err := tcpTarget(l, l.Upstream)
		if err != nil {
			return extend.Server{}, err
		}
		cfg.Upstream, cfg.UpstreamTLS, cfg.ConnectTimeout = to.Upstream, to.UpstreamTLS, to.ConnectTimeout
	}
	for _, r := range own.Routes {
		to, err := tcpTarget(l, r.Upstream)
		if err != nil {
			return extend.Server{}, err
		}
		to.SNI, to.ALPN = r.SNI, r.ALPN
		cfg.Routes = append(cfg.Routes, to)
	}
	return extend.Serve(cfg, tcpproxy.New)
}

// tcpTarget returns a route to an upstream, without conditions.
func tcpTarget(l extend.Listener, name string) (tcpproxy.Route, error) {
	runs, err := extend.Runs[*upstream.Upstream[net.Conn]](l, name)
	if err != nil {
		return tcpproxy.Route{}, err
	}
	u := l.Upstreams[name].Config
	clientTLS, err := extend.ClientTLS(u.TLS)
	return tcpproxy.Route{Upstream: runs, UpstreamTLS: clientTLS, ConnectTimeout: u.ConnectTimeout}, err
}

// tcpUpstreams returns the listener's upstreams. Its own may be missing if there are routes.
func tcpUpstreams(l *config.Listener) (names []*string) {
	routes := config.SectionOf[TCPListener](l).Routes
	if l.Upstream != "" || len(routes) == 0 {
		names = append(names, &l.Upstream)
	}
	for i := range routes {
		names = append(names, &routes[i].Upstream)
	}
	return names
}

// TCPUpstreamKeys are the keys that the protocol tcp adds to upstreams.
type TCPUpstreamKeys struct {
	Transparent bool `conf:"transparent"` // connect from the client's address
}

// checkTCPUpstream checks the keys of the protocol, in upstreams of any protocol.
func checkTCPUpstream(c *config.Checker, u *config.Upstream) {
	keys := config.PartOf[TCPUpstreamKeys](u)
	if !keys.Transparent {
		return
	}
	at := c.Mark(&keys.Transparent)
	if u.Protocol != config.TCP {
		c.Report(at, "transparent: this is for tcp upstreams, whose connections have one client each; this upstream's protocol is %q", u.Protocol)
		return
	}
	if key, field := u.Pool.Warm(); key != "" {
		c.Report(c.Mark(field), "%s: with transparent no connection can be opened before its client has come", key)
	}
	if u.Far() {
		c.Report(at, "transparent: the endpoints are connected to by another machine, which does not have the clients' addresses")
		return
	}
	for i := range u.Endpoints {
		if e := &u.Endpoints[i]; strings.HasPrefix(e.Address, "unix:") || config.IsFile(e.Address) {
			c.Report(c.Mark(e), "endpoint %q: with transparent an endpoint must be host:port", e.Address)
		}
	}
}

func checkTCP(c *config.Checker, l *config.Listener) {
	routes := config.SectionOf[TCPListener](l).Routes
	if l.Upstream == "" && len(routes) == 0 && !c.Written(&l.Upstream) {
		c.Report(c.Mark(l), "\"upstream\" is missing")
	}
	seen := map[[2]string]bool{}
	for i := range routes {
		r := &routes[i]
		if len(r.SNI)+len(r.ALPN) == 0 {
			c.Report(c.Mark(r), "a route needs \"sni\" or \"alpn\"; clients that fit no route go to the listener's \"upstream\"")
		}
		for k := range r.SNI {
			if err := tcpproxy.CheckSNI(r.SNI[k]); err != nil {
				c.Report(c.Mark(&r.SNI[k]), "sni: %v", err)
			}
			if !r.adds(strings.ToLower(r.SNI[k]), seen) {
				c.Report(c.Mark(&r.SNI[k]), "sni: clients for %q go to an earlier route", r.SNI[k])
			}
		}
		if len(r.SNI) == 0 && len(r.ALPN) > 0 && !r.adds("", seen) {
			c.Report(c.Mark(&r.ALPN), "alpn: these clients go to an earlier route")
		}
	}
}

// TCPListener is the section of a tcp listener.
type TCPListener struct {
	IdleTimeout  time.Duration `conf:"idle_timeout" default:"1h" min:"1ms" max:"8760h" never:"-1ns"`         // a session without a byte in either direction ends
	ClientIdle   time.Duration `conf:"client_idle_timeout" default:"never" min:"1ms" max:"8760h" never:"0s"` // a session without a byte from the client ends
	ServerIdle   time.Duration `conf:"server_idle_timeout" default:"never" min:"1ms" max:"8760h" never:"0s"` // a session without a byte from the server ends
	ClientFIN    time.Duration `conf:"client_fin_timeout" default:"never" min:"1ms" max:"24h" never:"0s"`    // a session whose client has closed its sending side and got nothing since ends
	StallTimeout time.Duration `conf:"stall_timeout" default:"never" min:"1ms" max:"24h" never:"0s"`         // a session whose client has sent something and heard nothing since ends
	DrainStagger time.Duration `conf:"drain_stagger" default:"5s" min:"0s" max:"1h"`                         // the time before the end of a drain over which sessions are cut off
	Retry        bool          `conf:"retry" default:"true"`                                                 // a client whose endpoint breaks off before its first byte continues with another one
	SendProxy    SendProxy     `conf:"send_proxy" default:"off"`                                             // tell the backend the client's address
	Routes       []TCPRoute    `conf:"routes" maxlen:"1000"`                                                 // by the client's ClientHello; empty: every client goes to the listener's upstream
}

// adds records the protocols of r under a name, and reports whether one of them is new there.
func (r *TCPRoute) adds(name string, seen map[[2]string]bool) (fresh bool) {
	protocols := r.ALPN
	if len(protocols) == 0 {
		protocols = []string{""}
	}
	for _, protocol := range protocols {
		key := [2]string{name, protocol}
		fresh = fresh || !seen[key]
		seen[key] = true
	}
	return fresh
}

// TCPRoute sends clients to an upstream by their TLS ClientHello; see tcpproxy.Route.
type TCPRoute struct {
	SNI      []string `conf:"sni" single:"true" maxlen:"1000"` // server names, or "*.name"; empty: any
	ALPN     []string `conf:"alpn" single:"true" maxlen:"32"`  // protocols, one of which the client offers; empty: any
	Upstream string   `conf:"upstream" required:"true"`
}

// SendProxy is the PROXY protocol version written to backends.
type SendProxy string

// Values implements config.Enum.
func (SendProxy) Values() []string { return []string{"off", "v1", "v2"} }

// Version returns 0, 1 or 2.
func (s SendProxy) Version() int {
	switch s {
	case "v1":
		return 1
	case "v2":
		return 2
	}
	return 0
}

package protocols

import (
	"net"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

func init() {
	extend.RegisterProtocol(extend.Protocol{Prepare: prepareTCP, Backend: TCPBackend, Rebuilds: neverRebuilds, Config: config.ListenerProtocol{
		Name: config.TCP, Section: &TCPListener{},
		Upstreams: func(l *config.Listener) []*string { return []*string{&l.Upstream} },
		// A pool has one connection per session and must not limit sessions; servers close connections that stay
		// silent, kube-apiserver after 32s.
		Pool: config.Pool{MaxSize: 10_000, IdleTimeout: 5 * time.Minute, MaxLifetime: 20 * time.Second, CheckAfter: -1, CheckInterval: time.Second},
		Check: func(c *config.Checker, l *config.Listener) {
			if l.Upstream == "" && !c.Written(&l.Upstream) {
				c.Report(c.Mark(l), "\"upstream\" is missing")
			}
		},
	}})
}

// tcpBackend is an upstream of tcp listeners.
type tcpBackend struct{ *upstream.Upstream[net.Conn] }

var _ extend.Changeable = tcpBackend{}

// TCPBackend makes pools of TCP connections, each of which has one user.
func TCPBackend(s extend.Settings) (extend.Backend, error) {
	u, err := tcpproxy.NewUpstream(s.Config.Name, tcpproxy.UpstreamOptions{Settings: s.Settings, Dial: s.Dial, Go: s.Start, Logger: s.Logger})
	if err != nil {
		return nil, err
	}
	return tcpBackend{u}, nil
}

// Update implements extend.Backend.
func (b tcpBackend) Update(s extend.Settings) error { return b.Upstream.Update(s.Settings) }

// Runs implements extend.Backend.
func (b tcpBackend) Runs() any { return b.Upstream }

// neverRebuilds: TLS and its time-out are the proxy's, which updates in place.
func neverRebuilds(_, _ *config.Upstream, _ bool) bool { return false }

func prepareTCP(l extend.Listener) (extend.Server, error) {
	runs, err := extend.Runs[*upstream.Upstream[net.Conn]](l, l.Upstream)
	if err != nil {
		return extend.Server{}, err
	}
	u, own := l.Upstreams[l.Upstream].Config, config.SectionOf[TCPListener](l.Listener)
	clientTLS, err := extend.ClientTLS(u.TLS)
	if err != nil {
		return extend.Server{}, err
	}
	return extend.Serve(tcpproxy.Config{
		Listener: l.Common, Upstream: runs, IdleTimeout: own.IdleTimeout, StallTimeout: own.StallTimeout, DrainStagger: own.DrainStagger,
		ConnectTimeout: u.ConnectTimeout, SendProxy: own.SendProxy.Version(), TLS: l.TLS, UpstreamTLS: clientTLS,
	}, tcpproxy.New)
}

// TCPListener is the section of a tcp listener.
type TCPListener struct {
	IdleTimeout  time.Duration `conf:"idle_timeout" default:"1h" min:"1ms" max:"8760h" never:"-1ns"` // a session without a byte in either direction ends
	StallTimeout time.Duration `conf:"stall_timeout" default:"never" min:"1ms" max:"24h" never:"0s"` // a session whose client has sent something and heard nothing since ends
	DrainStagger time.Duration `conf:"drain_stagger" default:"5s" min:"0s" max:"1h"`                 // over which time before the end of a drain sessions are cut off
	SendProxy    SendProxy     `conf:"send_proxy" default:"off"`                                     // tell the backend the client's address
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

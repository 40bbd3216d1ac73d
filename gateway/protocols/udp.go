package protocols

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/udpproxy"
	"github.com/headpond/headpond/upstream"
)

// UDP is the protocol of listeners that forward datagrams.
const UDP config.Protocol = "udp"

func init() {
	extend.RegisterProtocol(extend.Protocol{
		Prepare: prepareUDP, Backend: newUDPBackend, Rebuilds: neverRebuilds, Show: showUDP,
		Listen:   func(ctx context.Context, address string) (net.Listener, error) { return udpproxy.Listen(ctx, address) },
		OffLoop:  func(*config.Config, *config.Listener) bool { return true },
		MaxConns: func(*config.Listener) int { return 0 }, // its clients share the listener's socket
		Config: config.ListenerProtocol{
			Name: UDP, Section: &UDPListener{}, Datagrams: true, EndsSessions: true,
			// As for tcp, each session has its own socket. A socket that waits for a session stays good, but
			// the endpoint's name may have another address meanwhile.
			Pool: config.Pool{MaxSize: udpproxy.DefaultMaxSize, IdleTimeout: 5 * time.Minute, MaxLifetime: udpproxy.DefaultWarmAge, CheckAfter: -1},
			Keys: &config.Extension{CheckUpstream: checkUDPUpstream},
		},
	})
}

// UDPListener is the section of a udp listener.
type UDPListener struct {
	IdleTimeout time.Duration `conf:"idle_timeout" default:"1m" min:"1ms" max:"24h"`        // a session without a datagram in either direction ends
	Unanswered  time.Duration `conf:"unanswered_timeout" default:"10s" min:"1ms" max:"24h"` // the same for a session to which the server has sent nothing yet
	Answers     int           `conf:"answers" default:"0" min:"0" max:"65536"`              // datagrams that the server sends for each one of the client; 0: unknown
	DrainIdle   time.Duration `conf:"drain_idle_timeout" default:"2s" min:"1ms" max:"24h"`  // the idle time-out once a drain has begun
}

// udpBackend is an upstream of udp listeners.
type udpBackend struct {
	*upstream.Upstream[*udpproxy.Socket]
}

var (
	_ extend.Changeable = (*udpBackend)(nil)
	_ extend.Pausable   = (*udpBackend)(nil)
)

func newUDPBackend(s extend.Settings) (extend.Backend, error) {
	u, err := udpproxy.NewUpstream(s.Config.Name, udpproxy.UpstreamOptions{Settings: s.Settings, Logger: s.Logger})
	if err != nil {
		return nil, err
	}
	return &udpBackend{u}, nil
}

// Update implements extend.Backend.
func (b *udpBackend) Update(s extend.Settings) error { return b.Upstream.Update(s.Settings) }

// Runs implements extend.Backend.
func (b *udpBackend) Runs() any { return b.Upstream }

func prepareUDP(l extend.Listener) (extend.Server, error) {
	own := config.SectionOf[UDPListener](l.Listener)
	runs, err := extend.Runs[*upstream.Upstream[*udpproxy.Socket]](l, l.Upstream)
	if err != nil {
		return extend.Server{}, err
	}
	return extend.Serve(udpproxy.Config{
		Listener: l.Common, Upstream: runs, IdleTimeout: own.IdleTimeout, UnansweredTimeout: own.Unanswered, Answers: own.Answers,
		DrainIdle: own.DrainIdle, ConnectTimeout: l.Upstreams[l.Upstream].Config.ConnectTimeout,
	}, udpproxy.New)
}

// checkUDPUpstream refuses settings that apply to connections only.
func checkUDPUpstream(c *config.Checker, u *config.Upstream) {
	if u.Protocol != UDP {
		return
	}
	if u.TLS != nil {
		c.Report(c.Mark(&u.TLS), "tls: datagrams have no TLS; those of QUIC and DTLS are passed on as they are")
	}
	if u.KeepAlive != nil {
		c.Report(c.Mark(&u.KeepAlive), "keep_alive: datagrams have no connection")
	}
	if u.Far() {
		c.Report(c.Mark(&u.Name), "the endpoints of a udp upstream are on the network: tunnels and peers carry connections only")
		return
	}
	for i := range u.Endpoints {
		if e := &u.Endpoints[i]; strings.HasPrefix(e.Address, "unix:") || config.IsFile(e.Address) {
			c.Report(c.Mark(e), "endpoint %q: a UDP endpoint must be host:port", e.Address)
		}
	}
}

// UDPStatus is an element of "udp" in /api/v1/status. Datagrams are counted since the start.
type UDPStatus struct {
	Listener  string `json:"listener"`
	Received  uint64 `json:"received"`  // from clients
	Forwarded uint64 `json:"forwarded"` // to servers
	Sent      uint64 `json:"sent"`      // to clients
	Unserved  uint64 `json:"unserved"`  // from clients, dropped: too many clients came at once, or the listener drains
	Unsent    uint64 `json:"unsent"`    // dropped: too many for a session that waits, too long, or a full buffer
	Failed    uint64 `json:"failed"`    // attempts to receive from clients, not datagrams
}

var udpReport = admin.Report[UDPStatus]{
	Key: "udp", Title: "UDP datagrams",
	Columns: []admin.Column[UDPStatus]{
		admin.Text("listener", func(s UDPStatus) string { return s.Listener }),
		admin.Count("received", func(s UDPStatus) float64 { return float64(s.Received) }),
		admin.Count("forwarded", func(s UDPStatus) float64 { return float64(s.Forwarded) }),
		admin.Count("sent", func(s UDPStatus) float64 { return float64(s.Sent) }),
		admin.Count("unserved", func(s UDPStatus) float64 { return float64(s.Unserved) }),
		admin.Count("unsent", func(s UDPStatus) float64 { return float64(s.Unsent) }),
		admin.Count("failed", func(s UDPStatus) float64 { return float64(s.Failed) }),
	},
	Labels: []string{"listener"},
	Values: func(s UDPStatus) []string { return []string{s.Listener} },
	Metrics: []admin.RowMetric[UDPStatus]{
		admin.Counter("udp_received_total", "Datagrams from clients.", func(s UDPStatus) float64 { return float64(s.Received) }),
		admin.Counter("udp_forwarded_total", "Datagrams sent to servers.", func(s UDPStatus) float64 { return float64(s.Forwarded) }),
		admin.Counter("udp_sent_total", "Datagrams sent to clients.", func(s UDPStatus) float64 { return float64(s.Sent) }),
		admin.Counter("udp_unserved_total", "Datagrams from clients that were dropped because too many clients came at once, or the listener drains.", func(s UDPStatus) float64 { return float64(s.Unserved) }),
		admin.Counter("udp_unsent_total", "Datagrams that were dropped because they were too many for a session that waits, or too long, or a buffer was full.", func(s UDPStatus) float64 { return float64(s.Unsent) }),
		admin.Counter("udp_receive_errors_total", "Attempts to receive datagrams of clients that failed: the socket has an error. The log has it.", func(s UDPStatus) float64 { return float64(s.Failed) }),
	},
}

func showUDP(proxies []extend.Proxy) []admin.Addition {
	var rows []UDPStatus
	for _, p := range proxies {
		u := p.(*udpproxy.Proxy) //nolint:forcetypeassert // made by prepareUDP
		d := u.Datagrams()
		rows = append(rows, UDPStatus{u.Stats().Name, d.Received, d.Forwarded, d.Sent, d.Unserved, d.Unsent, d.Failed})
	}
	return []admin.Addition{udpReport.Of(rows)}
}

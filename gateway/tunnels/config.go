package tunnels

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/tunnel"
)

// Protocol is the protocol of listeners for other gateways, and of upstreams that these may name.
const Protocol config.Protocol = "tunnel"

func init() {
	extend.RegisterProtocol(extend.Protocol{Prepare: prepare, Backend: newOffered, OffLoop: offLoop, Replaces: replaces, MaxConns: maxConns, Config: config.ListenerProtocol{
		Name: Protocol, Section: &Listener{}, Default: defaultPeerSessions, Check: checkListener, ClientCerts: true,
		NoUpstream: `a tunnel listener connects what its peers ask for; list what they may name in "upstreams" under "tunnel"`,
		// As behind a tcp listener, a connection has one user.
		Pool:    config.Pool{MaxSize: 10_000, IdleTimeout: 5 * time.Minute, MaxLifetime: 20 * time.Second, CheckAfter: -1, CheckInterval: time.Second},
		MaxWarm: tcpproxy.DefaultMaxWarm,
	}})
	extend.RegisterExtension(extend.Extension{New: newPart, Config: config.Extension{
		File: &FileKeys{}, Upstream: &UpstreamKeys{}, Endpoints: map[string]func(string) error{tunnel.UpstreamPrefix: checkFarName},
		Check: checkTunnels, CheckUpstream: checkThrough,
		Far:      func(u *config.Upstream) bool { return through(u) != "" },
		Suffices: func(cfg *config.Config) bool { return len(tunnelsOf(cfg)) > 0 },
	}})
}

// FileKeys are the keys at the top of the file.
type FileKeys struct {
	Tunnels []Tunnel `conf:"tunnels" key:"Name" scope:"tunnel" maxlen:"1000"` // to other gateways
}

// UpstreamKeys are the keys of an upstream.
type UpstreamKeys struct {
	Tunnel string `conf:"tunnel"` // the endpoints are dialled by the other side of this tunnel
}

// tunnelsOf returns the tunnels of a configuration.
func tunnelsOf(cfg *config.Config) []Tunnel { return config.PartOf[FileKeys](cfg).Tunnels }

// tunnelOf returns the tunnel of that name, or nil.
func tunnelOf(cfg *config.Config, name string) *Tunnel {
	all := tunnelsOf(cfg)
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// through is the tunnel that an upstream's endpoints are behind; empty: none.
func through(u *config.Upstream) string { return config.PartOf[UpstreamKeys](u).Tunnel }

// minPeerSessions is the least default of a peer's session limit: one session, and one that replaces it.
const minPeerSessions = 2

func defaultPeerSessions(l *config.Listener) {
	if t := config.SectionOf[Listener](l); t.PeerSessions == 0 {
		t.PeerSessions = max(minPeerSessions, t.MaxSessions/4)
	}
}

// Rule is a pattern of addresses that may be dialled; see tunnel.ParseRule.
type Rule string

// Check returns what is wrong with a rule.
func (Rule) Check(text string) error {
	_, err := tunnel.ParseRule(text)
	if err == nil {
		return nil
	}
	return errors.New(strings.TrimPrefix(err.Error(), fmt.Sprintf("%v: rule %q: ", tunnel.ErrConfig, text)))
}

// checkFarName checks the name in an endpoint "upstream:name".
func checkFarName(name string) error {
	if name == "" || strings.Trim(name, "0123456789") == "" {
		return errors.New("want the name of an upstream of the far side after \"upstream:\"")
	}
	return config.CheckName(name)
}

// Listener is the section of a tunnel listener. Peers that connect have a certificate (tls: client_ca), the PSK, or both.
type Listener struct {
	PSK          config.Secret `conf:"psk"`                                             // at least 16 bytes
	Peers        []Peer        `conf:"peers" key:"Name" names:"true" maxlen:"1000"`     // peers that may connect; empty: all that authenticate
	Upstreams    []string      `conf:"upstreams" maxlen:"1000"`                         // upstreams that peers may name
	Allow        []Rule        `conf:"allow" maxlen:"1000"`                             // addresses that peers may connect to: host:port, CIDR:port, unix:/path
	DialTimeout  time.Duration `conf:"dial_timeout" default:"5s" min:"1ms" max:"10m"`   // connecting to one of these
	MaxStreams   int           `conf:"max_streams" default:"1024" min:"1" max:"8192"`   // connections a peer may have open
	MaxSessions  int           `conf:"max_sessions" default:"256" min:"1" max:"100000"` // of all peers
	PeerSessions int           `conf:"max_sessions_per_peer" min:"0" max:"100000"`      // of one; default a quarter of max_sessions, at least 2
	ResumeWindow time.Duration `conf:"resume_window" default:"2m" min:"1s" max:"24h"`   // how long a session without a socket is kept
	KeepAlive    time.Duration `conf:"keep_alive" default:"10s" min:"1s" max:"1h"`      // a socket that is silent for this long, although asked, is replaced
}

// Peer is a gateway that may connect to a tunnel listener, by the name it uses.
type Peer struct {
	Name      string          `conf:"-"`
	Keys      []config.Secret `conf:"keys" maxlen:"16"`        // the keys of which this peer must know one. Empty: the listener's PSK, or a certificate
	Upstreams []string        `conf:"upstreams" maxlen:"1000"` // upstreams that this peer may name, beside the listener's
	Allow     []Rule          `conf:"allow" maxlen:"1000"`     // addresses for this peer, beside the listener's
}

// Tunnel is a connection to another gateway: one that this gateway makes (Connect), or one that a peer
// of a tunnel listener has made (Listener and Peer, and no other key).
type Tunnel struct {
	Name         string            `conf:"-" type:"name"`
	Connect      []string          `conf:"connect" type:"address" single:"true" maxlen:"16"` // the other gateway's tunnel listener, or several, which are tried in order
	Listener     string            `conf:"listener"`                                         // a tunnel listener of this gateway
	Peer         string            `conf:"peer" type:"name"`                                 // the name a peer connects to Listener with
	As           string            `conf:"as" type:"name"`                                   // this gateway's name there; empty: the name in its certificate
	TLS          *config.ClientTLS `conf:"tls"`                                              // nil: clear text
	PSK          config.Secret     `conf:"psk"`                                              // at least 16 bytes
	Sessions     int               `conf:"sessions" default:"1" min:"1" max:"64"`            // sockets kept
	Upstreams    []string          `conf:"upstreams" maxlen:"1000"`                          // upstreams that the other side may name
	Allow        []Rule            `conf:"allow" maxlen:"1000"`                              // addresses that the other side may connect to
	DialTimeout  time.Duration     `conf:"dial_timeout" default:"5s" min:"1ms" max:"10m"`    // connecting to one of these
	MaxStreams   int               `conf:"max_streams" default:"1024" min:"1" max:"8192"`    // connections the other side may have open here
	ResumeWindow time.Duration     `conf:"resume_window" default:"2m" min:"1s" max:"24h"`    // how long a session without a socket is kept
	KeepAlive    time.Duration     `conf:"keep_alive" default:"10s" min:"1s" max:"1h"`       // a socket that is silent for this long, although asked, is replaced
}

package extension

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/gateway/tunnels"
	"github.com/headpond/headpond/internal/cli"
	"github.com/headpond/headpond/peers"
)

// EndpointPrefix begins endpoints that are services of other nodes.
const EndpointPrefix = "p2p:"

func init() {
	extend.RegisterExtension(extend.Extension{New: newPart, Config: config.Extension{
		File: &FileKeys{}, Upstream: &UpstreamKeys{}, Endpoints: map[string]func(string) error{EndpointPrefix: checkTarget},
		Check: check, CheckUpstream: checkUpstream, Far: carried,
		Suffices: func(cfg *config.Config) bool { return nodeOf(cfg) != nil },
	}})
	cli.Register(cli.Command{Name: "peers", Args: actions, About: "this gateway as a node, and other nodes", Run: command})
	cli.RegisterPeersDemo(runDemo)
}

// FileKeys are the keys at the top of the file.
type FileKeys struct {
	Peers    *Peers    `conf:"peers"`                                             // nil: this gateway is no node
	Services []Service `conf:"services" key:"Name" scope:"service" maxlen:"1000"` // services that other nodes may call
}

// UpstreamKeys are the keys of an upstream.
type UpstreamKeys struct {
	// Providers are the nodes that are trusted with the connections of "p2p:service" endpoints; empty: all that offer the service.
	Providers []Provider `conf:"providers" single:"true" maxlen:"1000"`
}

// Provider is the ID of a node that is trusted with a service.
type Provider string

// Check implements config.Checked.
func (Provider) Check(text string) error {
	if _, err := peers.ParseID(text); err != nil {
		return fmt.Errorf("want a peer ID such as 12D3KooW…, as `headpond peers id` prints at that node")
	}
	return nil
}

// choiceOf returns the choice that a list of providers allows.
func choiceOf(list []Provider) peers.Choice { return peers.Choice{Providers: texts(list)} }

// Peers is the section "peers": this gateway as a node.
type Peers struct {
	Key            string        `conf:"key" required:"true"`                                 // the file with the node's identity; it is made if it is not there
	Listen         []Listen      `conf:"listen" maxlen:"64"`                                  // multiaddresses; default QUIC and TCP, port 4001
	Announce       []Multiaddr   `conf:"announce" maxlen:"64"`                                // announced to other nodes instead
	NetworkKey     config.Secret `conf:"network_key"`                                         // of a private network: 64 hexadecimal digits, or a swarm.key file
	Bootstrap      []Bootstrap   `conf:"bootstrap" maxlen:"1000"`                             // nodes that are kept connected
	MDNS           bool          `conf:"mdns" default:"false"`                                // find nodes on the local network, and be found
	DHT            bool          `conf:"dht" default:"false"`                                 // find nodes by their IDs in the network's DHT, and answer others there
	Relays         []Bootstrap   `conf:"relays" maxlen:"16"`                                  // nodes through which this one is reached
	RelayFor       []Caller      `conf:"relay_for" single:"true" maxlen:"1000"`               // nodes that are reached through this one: peer IDs, or "anyone"
	HolePunching   bool          `conf:"hole_punching" default:"true"`                        // look for a direct way where a relay is used
	UPnP           bool          `conf:"upnp" default:"false"`                                // ask the router to forward a port
	AutoNAT        bool          `conf:"autonat" default:"false"`                             // ask other nodes for the reachable addresses of this one, and answer such questions
	MaxConnections int           `conf:"max_connections" default:"512" min:"8" max:"100000"`  // to and from other nodes
	MaxMemory      int           `conf:"max_memory_mib" default:"128" min:"16" max:"1048576"` // for the buffers of these
	MaxStreams     int           `conf:"max_streams" default:"1024" min:"1" max:"8192"`       // connections to services that one peer may have open here
	KeepAlive      time.Duration `conf:"keep_alive" default:"3s" min:"1s" max:"1h"`           // a peer that is silent for this long, although pinged, counts as gone
	DialTimeout    time.Duration `conf:"dial_timeout" default:"10s" min:"100ms" max:"10m"`    // connecting to a peer
}

// Service is something that other nodes may call.
type Service struct {
	Name     string   `conf:"-"`
	Upstream string   `conf:"upstream" required:"true"`                   // where its connections go
	Allow    []Caller `conf:"allow" single:"true" maxlen:"1000"`          // permitted callers: peer IDs, or "anyone"; empty: none
	Groups   []Group  `conf:"groups" single:"true" maxlen:"64"`           // requests that it serves: key=value, key=* or all
	Models   Models   `conf:"models"`                                     // the path of an OpenAI-compatible list of models, each of which is a group; empty: none
	Capacity int      `conf:"capacity" default:"0" min:"0" max:"1000000"` // connections at once that it has capacity for; 0: unknown
	PerPeer  PerPeer  `conf:"per_peer"`                                   // limits of each peer
}

// PerPeer are limits for each peer.
type PerPeer struct {
	Connections int `conf:"connections" default:"0" min:"0" max:"8192"`          // at once; 0: "max_streams"
	Rate        int `conf:"rate" default:"0" min:"0" max:"1000000"`              // new connections a second; 0: no limit
	KiB         int `conf:"kib_per_second" default:"0" min:"0" max:"1000000000"` // both directions together; 0: no limit
}

// limits returns the limits of package peers.
func (p PerPeer) limits() peers.Limits {
	return peers.Limits{Conns: p.Connections, Rate: p.Rate, BytesPerSecond: p.KiB << 10}
}

// Anyone in "allow" is every node that can connect.
const Anyone = "anyone"

// Caller is a peer ID, or Anyone.
type Caller string

// Check implements config.Checked.
func (Caller) Check(text string) error {
	if text == Anyone {
		return nil
	}
	if config.Closest(text, []string{Anyone}) != "" {
		return fmt.Errorf("want a peer ID; did you mean %q?", Anyone)
	}
	if _, err := peers.ParseID(text); err != nil {
		return fmt.Errorf("want a peer ID such as 12D3KooW…, as `headpond peers id` prints, or %q", Anyone)
	}
	return nil
}

// callersOf returns the peer IDs of a list, and whether Anyone is in it.
func callersOf(list []Caller) (ids []string, anyone bool) {
	for _, c := range list {
		if c == Anyone {
			anyone = true
		} else {
			ids = append(ids, string(c))
		}
	}
	return ids, anyone
}

// Models is the path of a list of models.
type Models string

// Check implements config.Checked.
func (Models) Check(text string) error { return peers.CheckModels(text) }

// Group is a group of requests that a service serves, for callers that choose by it.
type Group string

// Check implements config.Checked.
func (Group) Check(text string) error { return peers.CheckGroup(text) }

// Listen is a multiaddress to listen on.
type Listen string

// Check implements config.Checked. Whether it can be used in a private network is checked later.
func (Listen) Check(text string) error { return peers.CheckListen(text, false) }

// Bootstrap is the multiaddress of a node, with its ID.
type Bootstrap string

// Check implements config.Checked.
func (Bootstrap) Check(text string) error {
	_, err := peers.ParsePeer(text)
	return err
}

// Multiaddr is a multiaddress.
type Multiaddr string

// Check implements config.Checked.
func (Multiaddr) Check(text string) error { return peers.CheckAddr(text) }

// nodeOf returns the section "peers", nil if there is none.
func nodeOf(cfg *config.Config) *Peers { return config.PartOf[FileKeys](cfg).Peers }

// servicesOf returns the section "services".
func servicesOf(cfg *config.Config) []Service { return config.PartOf[FileKeys](cfg).Services }

// keyFile is the path of a node's key: relative to the folder of the configuration file.
func keyFile(cfg *config.Config, p *Peers) string {
	if filepath.IsAbs(p.Key) {
		return p.Key
	}
	return filepath.Join(filepath.Dir(cfg.File), p.Key)
}

// checkTarget checks the text after EndpointPrefix.
func checkTarget(text string) error {
	_, err := peers.ParseTarget(text)
	return err
}

// targetsOf returns the endpoints of an upstream that are services of other nodes.
func targetsOf(u *config.Upstream) (targets []peers.Target) {
	for _, e := range u.Endpoints {
		if t, ok := targetOf(e.Address); ok {
			targets = append(targets, t)
		}
	}
	return targets
}

// targetOf reads an endpoint, which has been checked; ok is false if it is no other node's.
func targetOf(address string) (t peers.Target, ok bool) {
	text, ok := strings.CutPrefix(address, EndpointPrefix)
	if ok {
		t, _ = peers.ParseTarget(text)
	}
	return t, ok
}

// carried reports whether other nodes connect to an upstream's endpoints.
func carried(u *config.Upstream) bool { return len(targetsOf(u)) > 0 }

// texts turns a list of texts of one type into strings.
func texts[T ~string](list []T) (out []string) {
	if list != nil {
		out = []string{} // an empty list is not the default
	}
	for _, t := range list {
		out = append(out, string(t))
	}
	return out
}

// bridge is the protocol of upstreams whose connections go to the other end of a tunnel.
const bridge = tunnels.Protocol

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

// EndpointPrefix is the prefix of endpoints that are services of other nodes.
const EndpointPrefix = "p2p:"

func init() {
	extend.RegisterExtension(extend.Extension{New: newPart, Config: config.Extension{
		File: &FileKeys{}, Upstream: &UpstreamKeys{}, Endpoints: map[string]func(string) error{EndpointPrefix: checkTarget},
		Check: check, CheckUpstream: checkUpstream, Far: carried,
		Suffices: func(cfg *config.Config) bool { return nodeOf(cfg) != nil },
	}})
	cli.Register(cli.Command{Name: "peers", Args: "ACTION", About: "this gateway as a node, and other nodes: id, list, ping, connect", Words: actionNames, Run: command})
	cli.RegisterPeersDemo(runDemo)
}

// FileKeys are the keys at the top of the file.
type FileKeys struct {
	Peers    *Peers    `conf:"peers"`                                             // nil: this gateway is no node
	Services []Service `conf:"services" key:"Name" scope:"service" maxlen:"1000"` // services that other nodes may call
}

// UpstreamKeys are the keys of an upstream.
type UpstreamKeys struct {
	// Providers are the nodes that "p2p:service" endpoints may use; empty: all that offer the
	// service.
	Providers []Provider `conf:"providers" single:"true" maxlen:"1000"`
}

// Provider is the ID of a node in a list of providers.
type Provider string

// Check implements config.Checked.
func (Provider) Check(text string) error {
	if _, err := peers.ParseID(text); err != nil {
		return fmt.Errorf("want a peer ID such as 12D3KooW…, as `headpond peers id` prints at that node")
	}
	return nil
}

// choiceOf returns the Choice of a list of providers.
func choiceOf(list []Provider) peers.Choice { return peers.Choice{Providers: texts(list)} }

// Peers is the section "peers": this gateway as a node.
type Peers struct {
	Key            string        `conf:"key" required:"true"`                                 // the file with the node's identity; created if it does not exist
	Listen         []Listen      `conf:"listen" maxlen:"64"`                                  // multiaddresses; default QUIC and TCP, port 4001
	Announce       []Multiaddr   `conf:"announce" maxlen:"64"`                                // announced to other nodes instead
	NetworkKey     config.Secret `conf:"network_key"`                                         // of a private network: 64 hexadecimal digits, or a swarm.key file
	Bootstrap      []Bootstrap   `conf:"bootstrap" maxlen:"1000"`                             // nodes that are kept connected
	MDNS           bool          `conf:"mdns" default:"false"`                                // find nodes on the local network, and be found
	DHT            bool          `conf:"dht" default:"false"`                                 // find nodes by ID in the DHT, and answer lookups
	Relays         []Bootstrap   `conf:"relays" maxlen:"16"`                                  // nodes through which others reach this one
	RelayFor       []Caller      `conf:"relay_for" single:"true" maxlen:"1000"`               // nodes to relay for: peer IDs, or "anyone"
	HolePunching   bool          `conf:"hole_punching" default:"true"`                        // try to replace relayed connections by direct ones
	UPnP           bool          `conf:"upnp" default:"false"`                                // ask the router to forward a port
	AutoNAT        bool          `conf:"autonat" default:"false"`                             // ask other nodes which addresses of this one are reachable, and answer such requests
	MaxConnections int           `conf:"max_connections" default:"512" min:"8" max:"100000"`  // to and from other nodes
	MaxMemory      int           `conf:"max_memory_mib" default:"128" min:"16" max:"1048576"` // for the buffers of these
	MaxStreams     int           `conf:"max_streams" default:"1024" min:"1" max:"8192"`       // connections to services that one peer may have open here
	KeepAlive      time.Duration `conf:"keep_alive" default:"3s" min:"1s" max:"1h"`           // a peer that is silent for this long, although pinged, counts as gone
	DialTimeout    time.Duration `conf:"dial_timeout" default:"10s" min:"100ms" max:"10m"`    // connecting to a peer
}

// Service is something that other nodes may call.
type Service struct {
	Name     string   `conf:"-"`
	Upstream string   `conf:"upstream" required:"true"`                   // where connections to the service go
	Allow    []Caller `conf:"allow" single:"true" maxlen:"1000"`          // permitted callers: peer IDs, or "anyone"; empty: none
	Groups   []Group  `conf:"groups" single:"true" maxlen:"64"`           // requests that it serves: key=value, key=* or all
	Models   Models   `conf:"models"`                                     // the path of an OpenAI-compatible list of models, each of which is a group; empty: none
	Capacity int      `conf:"capacity" default:"0" min:"0" max:"1000000"` // concurrent connections that callers should respect; 0: unknown
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

// keyFile returns the path of a node's key; in the configuration it is relative to the folder of
// the file.
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

// targetOf returns the target of a valid endpoint. ok is false if the endpoint is not a service of
// another node.
func targetOf(address string) (t peers.Target, ok bool) {
	text, ok := strings.CutPrefix(address, EndpointPrefix)
	if ok {
		t, _ = peers.ParseTarget(text)
	}
	return t, ok
}

// carried reports whether an upstream has endpoints that are services of other nodes.
func carried(u *config.Upstream) bool { return len(targetsOf(u)) > 0 }

// texts converts a list to strings.
func texts[T ~string](list []T) (out []string) {
	if list != nil {
		out = []string{} // an empty list is not the default
	}
	for _, t := range list {
		out = append(out, string(t))
	}
	return out
}

// bridge is the protocol of upstreams that services connect to.
const bridge = tunnels.Protocol

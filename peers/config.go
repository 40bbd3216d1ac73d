package peers

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/pnet"
	ma "github.com/multiformats/go-multiaddr"
)

// Defaults of Config, used where a field is zero.
const (
	// DefaultMaxConns bounds the libp2p connections of a node. A network of a few hundred nodes is fully
	// connected, and a connection with its buffers and goroutines takes some 100 KiB.
	DefaultMaxConns = 512
	// DefaultMaxMemory bounds the memory of libp2p's buffers for connections and streams, in bytes.
	DefaultMaxMemory = 128 << 20
	// DefaultKeepAlive is how long a peer may be silent before its connections count as dead.
	// Probing it takes two small packets in each third of that time.
	DefaultKeepAlive = 3 * time.Second
	// DefaultMaxStreams bounds the connections to services that one peer may have open here.
	DefaultMaxStreams = 1024
	// DefaultDialTimeout bounds connecting to a peer: all its addresses, and the handshakes.
	DefaultDialTimeout = 10 * time.Second
)

// Limits of Config.
const (
	minMemory    = 16 << 20 // with less, only a few peers can connect
	minConns     = 8
	maxConnLimit = 100_000
	maxStreams   = 1 << 13 // package tunnel's
	minKeepAlive = 100 * time.Millisecond
	networkKey   = 32
)

// ErrConfig is wrapped by every error about a Config.
var ErrConfig = errors.New("peers: invalid configuration")

// DefaultListen is the default of Config.Listen: QUIC and TCP over IPv4, on the usual port of
// libp2p programs. With a Config.NetworkKey the default is only TCP.
var DefaultListen = []string{"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001"}

// Config describes a Node. Only Key is required.
type Config struct {
	// Key is the node's identity. See LoadOrCreateKey.
	Key ed25519.PrivateKey
	// Listen are multiaddresses: /ip4/0.0.0.0/tcp/4001, /ip4/0.0.0.0/udp/4001/quic-v1, /ip4/0.0.0.0/tcp/4002/ws; nil = DefaultListen.
	Listen []string
	// Announce are the multiaddresses to announce to other nodes; empty = those of this machine's
	// interfaces. Set it for addresses that the node cannot find itself, such as a port that a
	// router forwards.
	Announce []string
	// NetworkKey makes the node a member of a private network: 32 bytes that all nodes of the
	// network have. Programs without the key cannot even begin a handshake. It works with TCP and
	// WebSocket, but not with QUIC. Empty = no private network.
	NetworkKey []byte
	// Bootstrap are peers that are kept connected, multiaddresses that end in /p2p/ID.
	Bootstrap []string
	// MDNS finds other nodes on the local network by multicast DNS, and makes this node visible there.
	MDNS bool
	// DHT joins the Kademlia DHT of the network through connected nodes. The node then connects to
	// some other nodes by itself, and looks up the addresses of nodes of which it only has the ID.
	// It joins no public DHT. MaxConns must be at least 128.
	DHT bool
	// Relays are nodes through which others can reach this node, multiaddresses that end in
	// /p2p/ID. They must permit it by RelayFor.
	Relays []string
	// RelayFor makes this node a relay for the nodes with these IDs; RelayForAnyone, for all nodes.
	RelayFor       []string
	RelayForAnyone bool
	// NoHolePunching turns hole punching off. Without it, the node tries to replace connections
	// through a relay by direct ones, and open streams move to them.
	NoHolePunching bool
	// UPnP asks the router to forward a port.
	UPnP bool
	// AutoNAT asks other nodes which addresses of this one are reachable, and answers their questions.
	AutoNAT bool
	// Services are the services that other nodes may call here.
	Services []Service
	// MaxConns bounds libp2p connections; 0 = DefaultMaxConns, at least 8. Above three quarters of
	// it, the least useful connections are closed.
	MaxConns int
	// MaxMemory bounds the buffers of connections and streams, in bytes; 0 = DefaultMaxMemory, at least 16 MiB.
	MaxMemory int64
	// MaxStreams bounds the connections to services that one peer may have open here; 0 = DefaultMaxStreams, at most 8192.
	MaxStreams int
	// KeepAlive is how long a peer may be silent; 0 = DefaultKeepAlive.
	KeepAlive time.Duration
	// DialTimeout bounds connecting to a peer; 0 = DefaultDialTimeout.
	DialTimeout time.Duration
	// Version is announced to other nodes.
	Version string
	// Logger is the log; nil = slog.Default().
	Logger *slog.Logger
}

// Service is a service that other nodes may call.
type Service struct {
	Name string // letters, digits, "-", "_" and ".", at most 64, not digits alone
	// Connect connects to the service's server. The node closes the connection when the caller's
	// connection ends. If it has a CloseWrite method, the node forwards the caller's end of stream.
	Connect func(ctx context.Context) (net.Conn, error)
	// Anyone permits every peer that can connect to call the service: with a NetworkKey, all nodes of the
	// private network.
	Anyone bool
	// Peers are the IDs of permitted callers.
	Peers []string
	// Groups are the requests that the service can answer, for callers that choose nodes by them:
	// "key=value", "key=*" or "all".
	Groups []string
	// Models is the path of an OpenAI-compatible list of models at the server, such as
	// "/v1/models". The node requests it every five seconds through Connect, in clear text, and
	// adds a group "model=ID" for each model. The groups expire 30 seconds after the last
	// successful response. Empty = no list.
	Models string
	// Capacity is the number of concurrent connections that callers should respect: they prefer
	// nodes with a lower load relative to capacity. 0 = unknown.
	Capacity int
	// PerPeer has the limits of each peer.
	PerPeer Limits
	// Healthy reports whether the service is healthy; otherwise it is not announced. The node calls
	// Healthy several times a second; it must not wait. nil = always healthy.
	Healthy func() bool
	// Timeout bounds Connect; 0 = five seconds. The longest timeout of all services applies to each
	// of them.
	Timeout time.Duration
}

// Verify reports every problem of c, joined; each wraps ErrConfig.
func (c Config) Verify() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if _, _, err := identityOf(c.Key); err != nil {
		errs = append(errs, err)
	}
	for _, l := range c.listen() {
		if err := CheckListen(l, len(c.NetworkKey) > 0); err != nil {
			bad("Listen: %q: %w", l, err)
		}
	}
	for _, a := range c.Announce {
		if _, err := ma.NewMultiaddr(a); err != nil {
			bad("Announce: %q: %w", a, err)
		}
	}
	for _, b := range c.Bootstrap {
		if _, err := ParsePeer(b); err != nil {
			bad("Bootstrap: %q: %w", b, err)
		}
	}
	for _, r := range c.Relays {
		if _, err := ParsePeer(r); err != nil {
			bad("Relays: %q: %w", r, err)
		}
	}
	for _, id := range c.RelayFor {
		if _, err := ParseID(id); err != nil {
			bad("RelayFor: %w", err)
		}
	}
	if n := len(c.NetworkKey); n != 0 && n != networkKey {
		bad("NetworkKey has %d bytes, want %d", n, networkKey)
	}
	if n := len(c.Version); n > maxVersion {
		bad("Version has %d bytes, want at most %d", n, maxVersion)
	}
	if n := c.MaxConns; n != 0 && (n < minConns || n > maxConnLimit) {
		bad("MaxConns is %d, want 0 (default) or %d to %d", n, minConns, maxConnLimit)
	}
	if n := cmp.Or(c.MaxConns, DefaultMaxConns); c.DHT && n < MinDHTConns {
		bad("MaxConns is %d, want at least %d with DHT", n, MinDHTConns)
	}
	if n := c.MaxMemory; n != 0 && n < minMemory {
		bad("MaxMemory is %d, want 0 (default) or at least %d", n, minMemory)
	}
	if n := c.MaxStreams; n < 0 || n > maxStreams {
		bad("MaxStreams is %d, want 0 (default) to %d", n, maxStreams)
	}
	if k := c.KeepAlive; k != 0 && (k < minKeepAlive || k > time.Hour) {
		bad("KeepAlive is %v, want %v to 1h", k, minKeepAlive)
	}
	if c.DialTimeout < 0 {
		bad("DialTimeout %v is negative", c.DialTimeout)
	}
	c.verifyServices(bad)
	return errors.Join(errs...)
}

func (c *Config) verifyServices(bad func(format string, args ...any)) {
	seen := map[string]bool{}
	if len(c.Services) > maxRecordItems {
		bad("%d services, at most %d are possible", len(c.Services), maxRecordItems)
	}
	for _, s := range c.Services {
		if err := CheckService(s.Name); err != nil {
			bad("service %q: %w", s.Name, err)
		}
		if seen[s.Name] {
			bad("service %q is there twice", s.Name)
		}
		seen[s.Name] = true
		if s.Connect == nil {
			bad("service %q has no Connect", s.Name)
		}
		if err := checkGroups(s.Groups); err != nil {
			bad("service %q: %w", s.Name, err)
		}
		if err := CheckModels(s.Models); s.Models != "" && err != nil {
			bad("service %q: Models %.80q: %w", s.Name, s.Models, err)
		}
		if err := s.PerPeer.verify(); err != nil {
			bad("service %q: %w", s.Name, err)
		}
		if s.Capacity < 0 {
			bad("service %q: Capacity %d is negative", s.Name, s.Capacity)
		}
		for _, id := range s.Peers {
			if _, err := ParseID(id); err != nil {
				bad("service %q: %w", s.Name, err)
			}
		}
	}
}

// listen is Listen, or its default.
func (c *Config) listen() []string {
	switch {
	case c.Listen != nil:
		return c.Listen
	case len(c.NetworkKey) > 0:
		return slices.DeleteFunc(slices.Clone(DefaultListen), func(l string) bool { return strings.Contains(l, "/quic") })
	}
	return DefaultListen
}

func (c Config) withDefaults() Config {
	c.Listen = c.listen()
	c.MaxConns = cmp.Or(c.MaxConns, DefaultMaxConns)
	c.MaxMemory = cmp.Or(c.MaxMemory, DefaultMaxMemory)
	c.MaxStreams = cmp.Or(c.MaxStreams, DefaultMaxStreams)
	c.KeepAlive = cmp.Or(c.KeepAlive, DefaultKeepAlive)
	c.DialTimeout = cmp.Or(c.DialTimeout, DefaultDialTimeout)
	c.Version = cmp.Or(c.Version, "development")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// maxServiceName bounds names: they are labels of metrics.
const maxServiceName = 64

// CheckService returns an error for an invalid name of a service.
func CheckService(name string) error {
	for _, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && !strings.ContainsRune("-_.", r) {
			return fmt.Errorf("%q cannot be in the name of a service; use letters, digits, \"-\", \"_\" and \".\"", r)
		}
	}
	switch {
	case name == "":
		return errors.New("the name of the service is missing")
	case len(name) > maxServiceName:
		return fmt.Errorf("the name of the service has more than %d characters", maxServiceName)
	case strings.Trim(name, "0123456789") == "":
		return errors.New("the name of a service cannot be a number")
	}
	return nil
}

// ParseID reads a peer ID, such as 12D3KooW….
func ParseID(text string) (peer.ID, error) {
	id, err := peer.Decode(text)
	if err != nil {
		return "", fmt.Errorf("%q is no peer ID, such as 12D3KooW…: %w", clip(text), err)
	}
	return id, nil
}

// ParsePeer reads the address of a peer: a multiaddress that ends in /p2p/ID.
func ParsePeer(text string) (peer.AddrInfo, error) {
	addr, err := ma.NewMultiaddr(text)
	if err != nil {
		return peer.AddrInfo{}, fmt.Errorf("want an address such as /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…: %w", err)
	}
	info, err := peer.AddrInfoFromP2pAddr(addr)
	switch {
	case err != nil:
		return peer.AddrInfo{}, errors.New("the peer's ID is missing, without which nobody knows who answers there: add /p2p/ and what `headpond peers id` prints at that node")
	case len(info.Addrs) == 0:
		return peer.AddrInfo{}, errors.New("the address is missing before /p2p/")
	}
	return *info, nil
}

// CheckListen returns an error for an invalid address to listen on, in a private network or not.
func CheckListen(text string, private bool) error {
	addr, err := ma.NewMultiaddr(text)
	if err != nil {
		return fmt.Errorf("want an address such as /ip4/0.0.0.0/tcp/4001 or /ip4/0.0.0.0/udp/4001/quic-v1: %w", err)
	}
	var names []string
	for _, p := range addr.Protocols() {
		names = append(names, p.Name)
	}
	form := strings.Join(names, "/")
	switch form = strings.TrimPrefix(strings.TrimPrefix(form, "ip4/"), "ip6/"); {
	case form == "udp/quic-v1" && private:
		return errors.New("QUIC cannot be used in a private network; use TCP or WebSocket")
	case form == "udp/quic-v1", form == "tcp", form == "tcp/ws":
		return nil
	case form == "udp":
		return fmt.Errorf("did you mean %q?", text+"/quic-v1")
	}
	return errors.New("want /ip4/ADDRESS/tcp/PORT, /ip4/ADDRESS/tcp/PORT/ws or /ip4/ADDRESS/udp/PORT/quic-v1, or the same with /ip6/")
}

// ParseNetworkKey reads the key of a private network: 64 hexadecimal digits, or a swarm.key file of other libp2p programs.
func ParseNetworkKey(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "/key/") {
		key, err := pnet.DecodeV1PSK(strings.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("not a swarm.key file: %w", err)
		}
		return key, nil
	}
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != networkKey {
		return nil, fmt.Errorf("want %d hexadecimal digits (openssl rand -hex %d), or a swarm.key file", 2*networkKey, networkKey)
	}
	return key, nil
}

// maxClip bounds text of other programs in messages.
const maxClip = 100

func clip(s string) string {
	if len(s) > maxClip {
		return s[:maxClip] + "…"
	}
	return s
}

// CheckAddr returns an error for an invalid multiaddress.
func CheckAddr(text string) error {
	if _, err := ma.NewMultiaddr(text); err != nil {
		return fmt.Errorf("want an address such as /ip4/192.0.2.1/tcp/4001 or /dns4/gw.example.com/udp/4001/quic-v1: %w", err)
	}
	return nil
}

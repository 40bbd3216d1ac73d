package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/tunnel"
)

// ErrClosed: the node drains or is closed.
var ErrClosed = errors.New("peers: the node is closed")

// ErrListen is wrapped by the error about an address that cannot be listened on.
var ErrListen = errors.New("peers: cannot listen")

// Node is a member of a network. All methods are safe for concurrent use.
type Node struct {
	cfg  Config // with defaults; Services and Bootstrap are those of the start
	id   peer.ID
	host host.Host
	log  *slog.Logger

	life context.Context // until Drain or Close
	end  context.CancelFunc
	work sync.WaitGroup

	server       *tunnel.Server // serves the calls of other nodes
	accept       *streamListener
	relay        *relayv2.Relay // nil: the node is no relay
	circuits     circuits
	bootstrap    bootstrapPeers
	links        links
	gossip       *gossip
	syncer       *syncer
	unidentified *unidentified
	backoffs     backoffs
	loads        loads
	quotas       quotas
	models       models
	offenders    *offenders
	limits       countedLimits
	trying       atomic.Int32 // peers at which findAddr tries addresses
	finder       *finder      // nil: mDNS is off
	dht          *dht         // nil: the DHT is off

	closing sync.Once
}

// New starts a node. Until Drain or Close the node listens, keeps connected to its bootstrap peers,
// and serves its services. The error wraps ErrConfig or ErrListen.
func New(cfg Config) (*Node, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	gate := &offenders{}
	n := &Node{cfg: cfg}
	h, err := newHost(&cfg, gate, &n.circuits, &n.limits)
	if err != nil {
		return nil, err
	}
	n.id, n.host, n.log = h.ID(), h, cfg.Logger.With("node", h.ID().String())
	n.life, n.end = context.WithCancel(context.Background())
	n.circuits.init(n, cfg.Relays)
	n.bootstrap.init(n)
	n.models.node, n.models.all = n, map[string]*served{}
	n.links.node, n.links.most, n.links.mostFailing = n, maxLinks, maxFailing
	gate.node, n.offenders = n, gate
	if err := n.start(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// start starts all parts of the node.
func (n *Node) start() error {
	server, err := tunnel.NewServer(n.serverConfig(n.cfg.Services))
	if err != nil {
		return err
	}
	n.server = server
	n.accept = newStreamListener(n.host)
	n.work.Go(func() { _ = server.Serve(n.accept) })
	for _, l := range n.cfg.Listen {
		if err := n.host.Network().Listen(ma.StringCast(l)); err != nil {
			return fmt.Errorf("%w on %s: %w", ErrListen, l, err)
		}
	}
	key, _, err := identityOf(n.cfg.Key)
	if err != nil {
		return err
	}
	if n.gossip, err = newGossip(n, key, n.cfg.Services); err != nil {
		return err
	}
	if n.syncer, err = newSyncer(n); err != nil {
		return err
	}
	if n.unidentified, err = newUnidentified(n); err != nil {
		return err
	}
	if err := n.gossip.startRejoin(); err != nil {
		return err
	}
	if err := n.startRelay(); err != nil {
		return err
	}
	if err := n.startDHT(); err != nil {
		return err
	}
	n.circuits.start()
	n.host.Network().Notify(&network.NotifyBundle{ConnectedF: n.moveToDirect})
	n.bootstrap.start()
	n.bootstrap.set(n.cfg.Bootstrap)
	n.work.Go(n.links.tidy)
	n.work.Go(n.measure)
	n.work.Go(n.models.run)
	return n.startMDNS()
}

// newHost makes the libp2p host. It does not listen yet.
func newHost(cfg *Config, gate *offenders, relayed *circuits, counted *countedLimits) (host.Host, error) {
	key, _, err := identityOf(cfg.Key)
	if err != nil {
		return nil, err
	}
	limits, err := newLimits(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: limits: %w", ErrConfig, err)
	}
	counted.ResourceManager, counted.log = limits, cfg.Logger
	keeper, err := newConnManager(cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: limits: %w", ErrConfig, err), limits.Close())
	}
	options := []libp2p.Option{
		libp2p.Identity(key), libp2p.UserAgent("headpond/" + cfg.Version), libp2p.NoListenAddrs, libp2p.DisableMetrics(),
		libp2p.ResourceManager(counted), libp2p.ConnectionManager(keeper), libp2p.ConnectionGater(gate), libp2p.WithDialTimeout(cfg.DialTimeout),
		libp2p.Security(libp2ptls.ID, newTLS), libp2p.Security(noise.ID, noise.New), libp2p.Muxer(yamux.ID, newMuxer()),
		libp2p.Transport(tcp.NewTCPTransport), libp2p.Transport(websocket.New), libp2p.SwarmOpts(swarm.WithDialRanker(rankAddrs)),
	}
	if len(cfg.NetworkKey) > 0 {
		options = append(options, libp2p.PrivateNetwork(cfg.NetworkKey))
	} else {
		options = append(options, libp2p.Transport(quic.NewTransport))
	}
	var announced []ma.Multiaddr
	for _, a := range cfg.Announce {
		announced = append(announced, ma.StringCast(a))
	}
	options = append(options, libp2p.AddrsFactory(func(own []ma.Multiaddr) []ma.Multiaddr {
		if len(announced) > 0 {
			own = announced
		}
		return slices.Concat(relayed.all(), own) // identification sends these to peers, which return them in DHT lookups
	}))
	h, err := libp2p.New(append(options, natOptions(cfg)...)...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrConfig, err), keeper.Close(), limits.Close())
	}
	return h, nil
}

// ID returns the node's peer ID.
func (n *Node) ID() string { return n.id.String() }

// addrs returns the addresses of the node, those at relays first.
func (n *Node) addrs() []ma.Multiaddr {
	return append(n.circuits.all(), slices.DeleteFunc(n.host.Addrs(), isCircuit)...)
}

// Addrs returns the addresses of the node, as multiaddresses that end in /p2p/ID.
func (n *Node) Addrs() (all []string) {
	for _, a := range n.addrs() {
		all = append(all, a.String()+"/p2p/"+n.ID())
	}
	return all
}

// Withdraw accepts no more connections to services, informs the peers, and waits until open
// connections have ended. If ctx ends first, it resets them, and the error has their number. The
// node can still call other nodes.
func (n *Node) Withdraw(ctx context.Context) error {
	n.gossip.withdraw()
	return n.server.Drain(ctx)
}

// Drain does the same as Withdraw, and also waits until this node's connections to services of
// other nodes have ended. Afterwards only Close may be called.
func (n *Node) Drain(ctx context.Context) error {
	n.end()
	errs := make([]error, 2)
	var both sync.WaitGroup
	both.Go(func() { errs[0] = n.Withdraw(ctx) })
	both.Go(func() { errs[1] = n.links.drain(ctx) })
	both.Wait()
	return errors.Join(errs...)
}

// Close ends all connections at once, and returns when all goroutines of the node have ended.
func (n *Node) Close() {
	n.closing.Do(func() {
		n.end()
		if n.gossip != nil {
			n.gossip.withdraw()
		}
		n.links.close()
		if n.syncer != nil {
			n.syncer.close()
		}
		if n.server != nil {
			n.server.Close()
		}
		if n.accept != nil {
			_ = n.accept.Close()
		}
		n.bootstrap.close()
		n.circuits.work.Wait()
		n.stopMDNS()
		n.dht.close()
		if n.gossip != nil {
			n.gossip.close()
		}
		if n.relay != nil {
			_ = n.relay.Close()
		}
		n.offenders.close()
		_ = n.host.Close()
		n.work.Wait()
	})
}

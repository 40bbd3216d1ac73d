package peers

import (
	"fmt"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"
)

// Limits of a relay. A connection through it has no limit of bytes or time, because a relay only
// serves permitted nodes.
const (
	maxRelayed      = 128     // nodes with a reservation here
	maxCircuits     = 64      // connections through this node to one such node
	circuitBuffer   = 4 << 10 // bytes, in each direction of a connection
	reservationTime = time.Hour
)

// natOptions returns the options for NAT traversal.
func natOptions(cfg *Config) (options []libp2p.Option) {
	options = append(options, libp2p.EnableRelay()) // other nodes may be reachable only through relays
	if !cfg.NoHolePunching {
		options = append(options, libp2p.EnableHolePunching())
	}
	if cfg.UPnP {
		options = append(options, libp2p.NATPortMap())
	}
	if cfg.AutoNAT {
		options = append(options, libp2p.EnableAutoNATv2())
	}
	return options
}

// relayFor decides which nodes may have a reservation here.
type relayFor struct {
	anyone bool
	peers  []peer.ID
}

// AllowReserve implements relay.ACLFilter.
func (r *relayFor) AllowReserve(id peer.ID, _ ma.Multiaddr) bool {
	return r.anyone || slices.Contains(r.peers, id)
}

// AllowConnect implements relay.ACLFilter: each node controls its own callers.
func (r *relayFor) AllowConnect(peer.ID, ma.Multiaddr, peer.ID) bool { return true }

// startRelay starts the relay, if the configuration has one.
func (n *Node) startRelay() error {
	if !n.cfg.RelayForAnyone && len(n.cfg.RelayFor) == 0 {
		return nil
	}
	who := &relayFor{anyone: n.cfg.RelayForAnyone}
	for _, text := range n.cfg.RelayFor {
		id, _ := ParseID(text) // Verify has checked it
		who.peers = append(who.peers, id)
	}
	relay, err := relayv2.New(n.host, relayv2.WithACL(who),
		relayv2.WithReservationAddressFilter(func(ma.Multiaddr) bool { return true }), // private networks use addresses that the default refuses
		relayv2.WithResources(relayv2.Resources{
			ReservationTTL: reservationTime, MaxReservations: maxRelayed, MaxCircuits: maxCircuits, BufferSize: circuitBuffer,
			MaxReservationsPerIP: maxRelayed, MaxReservationsPerASN: maxRelayed,
		}))
	if err != nil {
		return fmt.Errorf("peers: relay: %w", err)
	}
	n.relay = relay
	return nil
}

// moveToDirect moves the tunnel to a peer from a relayed connection to a new direct one.
// Connections in the tunnel continue.
func (n *Node) moveToDirect(_ network.Network, c network.Conn) {
	if isRelayed(c) {
		return
	}
	n.links.mu.Lock()
	defer n.links.mu.Unlock()
	l := n.links.peers[c.RemotePeer()]
	if l == nil || l.stream == nil || !isRelayed(l.stream.Conn()) {
		return
	}
	old := l.stream
	l.stream = nil
	n.work.Go(func() {
		n.log.Info("peers: a direct way to a peer was found", "peer", c.RemotePeer().String(), "path", c.RemoteMultiaddr().String())
		_ = old.Reset() // the session opens another stream, over the direct connection
	})
}

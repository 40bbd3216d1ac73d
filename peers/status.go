package peers

import (
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tunnel"
)

// Status is the state of a node at one moment. Counters count since the start.
type Status struct {
	ID     string
	Addrs  []string // where it can be connected to, with its ID
	Conns  int      // libp2p connections
	Served tunnel.Stats
	Limits LimitStats
	// Exhausted counts the libp2p connections and streams, in both directions, that the node's own limits
	// have refused.
	Exhausted uint64

	Gossip GossipStats
	DHT    DHTStats
	Peers  []PeerStatus // peers in use, in the order of their IDs
	// Offers are the services of other nodes, in the order of their names and IDs.
	Offers []OfferStatus
}

// OfferStatus is a service that another node has announced.
type OfferStatus struct {
	Offer
	Peer    string // its ID
	Version string
	Since   time.Time // since when the node has offered services
	Expires time.Time // when the announcement expires
	Err     error     // the last failure of a call, while the node is in backoff
}

// PeerStatus is another node as this one sees it.
type PeerStatus struct {
	ID        string
	Bootstrap bool
	Connected bool
	Relayed   bool          // the only connections go through a relay
	Path      string        // the multiaddress of the connection; empty: there is none
	RTT       time.Duration // 0: not known
	Calls     tunnel.Stats  // of this node's tunnel to the peer; zero: none
	Callers   int           // connections to services here that the peer has open
	Err       error         // why a bootstrap peer, or a peer that is called, is not connected; nil: it is connected
}

// Status returns the state of the node.
func (n *Node) Status() Status {
	s := Status{ID: n.ID(), Addrs: n.Addrs(), Conns: len(n.host.Network().Conns()), Served: n.server.Tunnel(), Limits: n.quotas.count(), DHT: n.dht.status()}
	s.Exhausted = n.limits.refused.Load()
	callers := map[string]int{}
	for _, c := range n.server.Sessions() {
		callers[c.User]++
	}
	all := map[peer.ID]PeerStatus{}
	of := func(id peer.ID) PeerStatus {
		p, ok := all[id]
		if !ok {
			p = n.peerStatus(id)
			p.Callers = callers[p.ID]
		}
		return p
	}
	for _, id := range n.bootstrap.ids() {
		p := of(id)
		if p.Bootstrap = true; !p.Connected {
			p.Err = n.bootstrap.trouble(id)
		}
		all[id] = p
	}
	for _, l := range n.links.all() {
		p := of(l.peer)
		if p.Calls = l.client.Stats(); p.Calls.LastError != nil {
			p.Err = p.Calls.LastError
		}
		all[l.peer] = p
	}
	for _, id := range n.host.Network().Peers() {
		all[id] = of(id)
	}
	for _, p := range all {
		s.Peers = append(s.Peers, p)
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return strings.Compare(a.ID, b.ID) })
	s.Offers, s.Gossip = n.offers()
	return s
}

// Offers returns the services of other nodes, in the order of their names and IDs.
func (n *Node) Offers() []OfferStatus {
	all, _ := n.offers()
	return all
}

// offers returns the services of other nodes.
func (n *Node) offers() (all []OfferStatus, counts GossipStats) {
	n.gossip.mu.Lock()
	for _, e := range n.gossip.table.sorted() {
		for _, o := range e.record.Services {
			all = append(all, OfferStatus{Offer: o, Peer: e.id.String(), Version: e.record.Version, Since: e.since, Expires: e.expires})
		}
	}
	counts = n.gossip.counts
	n.gossip.mu.Unlock()
	for i := range all {
		all[i].Err = n.backoffs.why(Target{all[i].Peer, all[i].Name})
	}
	slices.SortStableFunc(all, func(a, b OfferStatus) int { return strings.Compare(a.Name, b.Name) })
	return all, counts
}

// peerStatus returns libp2p's state of a peer.
func (n *Node) peerStatus(id peer.ID) PeerStatus {
	p := PeerStatus{ID: id.String(), RTT: n.host.Peerstore().LatencyEWMA(id)}
	for _, c := range n.host.Network().ConnsToPeer(id) {
		relayed := isRelayed(c)
		if p.Connected && (relayed || !p.Relayed) {
			continue // a direct connection is preferred to a relayed one
		}
		p.Connected, p.Relayed, p.Path = true, relayed, c.RemoteMultiaddr().String()
	}
	return p
}

// isRelayed reports whether a connection goes through a relay.
func isRelayed(c network.Conn) bool { return isCircuit(c.RemoteMultiaddr()) }

// Sessions describes the connections of other nodes to services of this node, in no particular
// order.
func (n *Node) Sessions() []listener.Info { return n.server.Sessions() }

// Kill resets a connection that Sessions has listed. It reports whether there was one.
func (n *Node) Kill(id listener.ID, stream uint64) bool { return n.server.Kill(id, stream) }

// Leaving reports whether a peer (any peer if id is empty) drains while this node has connections
// to its services. The caller should then close idle connections.
func (n *Node) Leaving(id string) bool {
	return slices.ContainsFunc(n.links.all(), func(l *link) bool { return (id == "" || l.peer.String() == id) && l.client.Draining() })
}

// Active returns the number of open connections to services of this node and of other nodes.
func (n *Node) Active() int {
	active := n.server.Tunnel().Streams
	for _, l := range n.links.all() {
		active += l.client.Stats().Streams
	}
	return active
}

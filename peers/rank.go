package peers

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
)

// transportDelay is the delay between dialling a peer's addresses of one transport and those of the
// next, more expensive one. Once a TCP connection is open, libp2p delays further dials, so that the
// handshake can end.
const transportDelay = 250 * time.Millisecond

// rankAddrs returns when to dial each address of a peer: first TCP, then QUIC, then WebSocket. QUIC
// takes more than twice the processor time for the same data; it is for networks that block TCP.
// Relays are in the first group, because libp2p delays them itself. For hole punching libp2p dials
// all addresses at once, without rankAddrs. rankAddrs may reorder addrs.
func rankAddrs(addrs []ma.Multiaddr) (ranked []network.AddrDelay) {
	classes := make([][]ma.Multiaddr, 3)
	for _, a := range addrs {
		c := transportClass(a)
		classes[c] = append(classes[c], a)
	}
	delay := time.Duration(0)
	for _, class := range classes {
		if len(class) == 0 {
			continue
		}
		for _, r := range swarm.DefaultDialRanker(class) {
			ranked = append(ranked, network.AddrDelay{Addr: r.Addr, Delay: r.Delay + delay})
		}
		if slices.ContainsFunc(class, func(a ma.Multiaddr) bool { return !isCircuit(a) }) {
			delay += transportDelay
		}
	}
	return ranked
}

// transportClass returns the group of an address, in the order of dialling; 0 is TCP and relays.
func transportClass(a ma.Multiaddr) int {
	switch {
	case isCircuit(a):
		return 0
	case hasProtocol(a, ma.P_UDP):
		return 1
	case hasProtocol(a, ma.P_WS):
		return 2
	}
	return 0
}

// isCircuit reports whether an address leads to a peer through a relay.
func isCircuit(a ma.Multiaddr) bool { return hasProtocol(a, ma.P_CIRCUIT) }

func hasProtocol(a ma.Multiaddr, code int) bool {
	return slices.ContainsFunc(a.Protocols(), func(p ma.Protocol) bool { return p.Code == code })
}

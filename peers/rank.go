package peers

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
)

// transportDelay is how much later a peer's addresses of a more expensive transport are dialled. Once
// a TCP connection is open, libp2p delays further dials until the handshake may be over.
const transportDelay = 250 * time.Millisecond

// rankAddrs says when to dial which address of a peer: TCP first, then QUIC, then WebSocket. The same
// data over QUIC costs more than twice the processor time; QUIC is for networks that block TCP. Relays
// are in the first group, since libp2p delays them itself. For hole punching libp2p dials all
// addresses at once and does not call rankAddrs. It may reorder addrs.
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

// transportClass returns 0 for the addresses that are dialled first: of TCP and of relays.
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

// isCircuit reports whether an address is that of a peer at a relay.
func isCircuit(a ma.Multiaddr) bool { return hasProtocol(a, ma.P_CIRCUIT) }

func hasProtocol(a ma.Multiaddr, code int) bool {
	return slices.ContainsFunc(a.Protocols(), func(p ma.Protocol) bool { return p.Code == code })
}

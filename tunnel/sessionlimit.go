package tunnel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/headpond/headpond/mux"
)

// sessionLimit counts a server's sessions by their holders, from the handshake on, so that one peer cannot use up all. Methods may be
// called from any goroutine.
type sessionLimit struct {
	mu       sync.Mutex
	total    int
	byHolder map[string]int
	refused  uint64
}

// acquire counts one more session of a holder. There may be most sessions of all holders, and each of one. The error is a
// *mux.Refusal.
func (l *sessionLimit) acquire(holder string, most, each int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var why string
	switch {
	case l.total >= most:
		why = fmt.Sprintf("sessions of all peers: %d, the most there may be", l.total)
	case l.byHolder[holder] >= each:
		why = fmt.Sprintf("sessions of this peer: %d, the most one may have", l.byHolder[holder])
	default:
		if l.byHolder == nil {
			l.byHolder = map[string]int{}
		}
		l.total++
		l.byHolder[holder]++
		return nil
	}
	l.refused++
	return &mux.Refusal{Reason: why}
}

// release counts one session less.
func (l *sessionLimit) release(holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.byHolder[holder]--; l.byHolder[holder] == 0 {
		delete(l.byHolder, holder)
	}
}

func (l *sessionLimit) turnedAway() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// holderOf returns the key by which a peer's sessions are counted. With a certificate this is the certificate's public
// key, the same for all its names. A PSK does not distinguish the peers that share it, and a name is only a claim, so
// without a certificate the key is the address: of IPv6 the network, because a machine may use any address in it.
func holderOf(p mux.Peer, addr net.Addr) string {
	if p.TLS != nil && len(p.TLS.PeerCertificates) > 0 {
		sum := sha256.Sum256(p.TLS.PeerCertificates[0].RawSubjectPublicKeyInfo)
		return "key " + hex.EncodeToString(sum[:])
	}
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.Network() // a Unix socket: all of this machine's
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	network, _ := ip.Prefix(64)
	return network.String()
}

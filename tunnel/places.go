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

// places counts a server's sessions, those whose hands are still being shaken among
// them, by who has them, so that one peer cannot take them all. Methods may be called
// from any goroutine.
type places struct {
	mu     sync.Mutex
	taken  int
	by     map[string]int
	turned uint64 // away
}

// take takes a place for who, of which there are most, and each for one peer. The
// error is a *mux.Refusal.
func (p *places) take(who string, most, each int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var why string
	switch {
	case p.taken >= most:
		why = fmt.Sprintf("sessions of all peers: %d, the most there may be", p.taken)
	case p.by[who] >= each:
		why = fmt.Sprintf("sessions of this peer: %d, the most one may have", p.by[who])
	default:
		if p.by == nil {
			p.by = map[string]int{}
		}
		p.taken++
		p.by[who]++
		return nil
	}
	p.turned++
	return &mux.Refusal{Reason: why}
}

// give gives a place of who's back.
func (p *places) give(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.by[who]--; p.by[who] == 0 {
		delete(p.by, who)
	}
}

func (p *places) turnedAway() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turned
}

// holder is who a peer's sessions are counted for: what it has proved to be. That is
// the key of its certificate, which a certificate with several names has but once.
// A PSK does not tell one of those who have it from another, and a name is a claim, so
// that without a certificate it is the address; of IPv6 the network, because a machine
// has as many addresses in it as it likes.
func holder(p mux.Peer, addr net.Addr) string {
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

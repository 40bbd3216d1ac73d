package fiber

import (
	"net"
	"net/netip"
)

// peer is the address of the other end. It is kept because the system does not know it after a reset.
type peer struct {
	ip4   peer4
	other net.Addr // an address other than IPv4; nil = the address is ip4, or not known
}

// peer4 is an IPv4 address in six bytes: nearly all peers have one, and it is rarely needed.
type peer4 struct {
	ip   [4]byte
	port uint16 // 0 = not known
}

func (p peer4) known() bool { return p.port != 0 }

func (p peer4) addr() net.Addr {
	a := &struct {
		net.TCPAddr
		ip [4]byte
	}{ip: p.ip}
	a.IP, a.Port = a.ip[:], int(p.port)
	return &a.TCPAddr
}

// nameless is the address of a Unix socket's client, which has no name.
var nameless net.Addr = &net.UnixAddr{Net: "unix"}

// isLoopback reports whether the peer has a loopback address.
func (p peer) isLoopback() bool {
	if p.ip4.known() {
		return p.ip4.ip[0] == 127
	}
	a, ok := p.other.(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// loopback reports whether a listener has a loopback address.
func loopback(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// noAddr returns the address of a connection whose address is not known.
func noAddr(isUnix bool) net.Addr {
	if isUnix {
		return &net.UnixAddr{Net: "unix"}
	}
	return &net.TCPAddr{}
}

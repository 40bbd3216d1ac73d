package fiber

import (
	"net"
	"net/netip"
)

// peer is the other end of a connection. After a reset nobody could tell any more.
type peer struct {
	ip4   peer4
	other net.Addr // what ip4 cannot be; nil = it is, or is not known
}

// peer4 is an address of IPv4, in little room: nearly all peers have one, and few are asked for it.
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

// nameless is the peer of an accepted connection of a Unix socket: it has no name that matters.
var nameless net.Addr = &net.UnixAddr{Net: "unix"}

// here reports that a peer is on this machine: its address is a loopback one.
func (p peer) here() bool {
	if p.ip4.known() {
		return p.ip4.ip[0] == 127
	}
	a, ok := p.other.(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// loopback is the same for the address of a listener.
func loopback(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// noAddr is an address that is not known.
func noAddr(isUnix bool) net.Addr {
	if isUnix {
		return &net.UnixAddr{Net: "unix"}
	}
	return &net.TCPAddr{}
}

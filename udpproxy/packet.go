package udpproxy

import (
	"net"
	"net/netip"
	"syscall"
)

// A packet is what one receive returns: a datagram, or several of equal size from one sender that the kernel has joined.
type packet struct {
	data []byte
	size int            // of each datagram; the last may be smaller. 0 = data is one datagram
	peer netip.AddrPort // the sender; on connected sockets only Linux tells it
	at   place          // where it was sent to
}

// datagrams is how many datagrams p has.
func (p *packet) datagrams() int {
	if p.size <= 0 || len(p.data) <= p.size {
		return 1
	}
	return (len(p.data) + p.size - 1) / p.size
}

// place is the address of this machine that a datagram was sent to, on sockets for any address; else it is zero.
// Answers are sent from there.
type place struct {
	addr  netip.Addr
	index uint32 // of the interface, for link-local addresses
}

// socket is a UDP socket. Its methods may be called from any goroutine.
type socket struct {
	conn *net.UDPConn
	raw  syscall.RawConn
	kind socketKind
}

// newSocket takes conn over.
func newSocket(conn *net.UDPConn) (*socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &socket{conn: conn, raw: raw}, nil
}

// sent is the outcome of a send.
type sent struct {
	datagrams, bytes int
	dropped          int   // datagrams that were not sent
	err              error // why, or what is known about earlier datagrams of a connected socket
}

// maxPacket is the longest packet: of a datagram the headers are a part of it, and packets joined by the kernel are no longer.
const maxPacket = 1 << 16

package udpproxy

import (
	"net"
	"net/netip"
	"syscall"
)

// packet is the result of one receive: a datagram, or several of equal size from one sender that the kernel has joined.
type packet struct {
	data []byte
	size int            // of each datagram, the last may be shorter; 0 = data is one datagram
	peer netip.AddrPort // the sender; known on connected sockets only on Linux
	at   place          // the local address it was sent to
}

// datagrams returns the number of datagrams in p.
func (p *packet) datagrams() int {
	if p.size <= 0 || len(p.data) <= p.size {
		return 1
	}
	return (len(p.data) + p.size - 1) / p.size
}

// place is the local address that a datagram was sent to, on sockets bound to any address; otherwise it is zero.
// Answers are sent from it.
type place struct {
	addr  netip.Addr
	index uint32 // of the interface, for link-local addresses
}

// socket is a UDP socket. Any goroutine may call its methods.
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
	dropped          int   // number of datagrams that were not sent
	err              error // the cause, or an error about earlier datagrams of a connected socket
}

// maxPacket is the greatest length of a packet. A datagram's headers count for it, and the kernel does not join more.
const maxPacket = 1 << 16

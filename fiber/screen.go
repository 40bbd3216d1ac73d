package fiber

import (
	"net"
	"net/netip"
	"syscall"
)

// Arrival is the state in which a connection that has just been accepted shows its client.
type Arrival uint8

const (
	// Present: nothing shows that the client has left.
	Present Arrival = iota
	// EndedEmpty: the client has ended its stream (a FIN) without having sent a byte. It has left, or it waits for a
	// server that speaks first.
	EndedEmpty
	// Broken: the client can no longer receive anything. It has reset the connection, whatever it sent before, or has
	// closed a Unix socket without having sent a byte.
	Broken
)

// Screen decides about an accepted connection before anything is made for it; true refuses the connection. from is the
// zero AddrPort if the client has no IP address, as on a Unix socket. A Screen runs on the fiber or goroutine that
// accepts, and must not wait.
type Screen func(from netip.AddrPort, a Arrival) (refuse bool)

// AcceptScreened is l.Accept, but resets connections that screen refuses, and continues with the next one. For a
// Listener a refused connection costs at most five system calls and no Conn. It counts less than an accepted one for
// the connections of a tick, so that a queue of dead ones is emptied quickly while running sessions continue. Other
// listeners have made a net.Conn before the screen. Arrivals are known for TCP and Unix sockets, of a Listener and of
// package net, and not on Windows.
func AcceptScreened(l net.Listener, screen Screen) (c net.Conn, err error) {
	a, ok := l.(*Listener)
	if !ok {
		return screened(l, screen)
	}
	if a.loop.here() {
		return a.accept(screen)
	}
	return a.acceptElsewhere(screen)
}

// screened is AcceptScreened for a listener that does not belong to an engine.
func screened(l net.Listener, screen Screen) (net.Conn, error) {
	for {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		if !refused(c, screen) {
			return c, nil
		}
	}
}

// refused reports whether screen refuses c or panics; if so, it resets c, or closes it if c cannot be reset.
func refused(c net.Conn, screen Screen) bool {
	refuse := true
	defer func() {
		if !refuse {
			return
		}
		if s, ok := c.(lingering); ok {
			_ = s.SetLinger(0)
		}
		_ = c.Close()
	}()
	refuse = screen(addrPort(c.RemoteAddr()), arrivalOf(c))
	return refuse
}

// addrPort returns the IP address and port of an address, without the zone and with IPv4 in its own form; the zero
// AddrPort if the address has none.
func addrPort(a net.Addr) (ap netip.AddrPort) {
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	if !ap.Addr().IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// arrivalOf returns the arrival of a connection from which nothing was read.
func arrivalOf(c net.Conn) Arrival {
	var socket syscall.Conn
	switch c := c.(type) {
	case *net.TCPConn:
		socket = c
	case *net.UnixConn:
		socket = c
	default:
		return Present // an engine may have received the client's data already
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return Present
	}
	a := Present
	_ = raw.Control(func(fd uintptr) { a = arrival(fd) })
	return a
}

// refuses is refused for a socket for which nothing was made yet.
func (a *Listener) refuses(fd int, from peer, screen Screen) bool {
	refuse, arrived := true, arrival(uintptr(fd))
	defer func() {
		if !refuse {
			return
		}
		if arrived != Broken && !a.unix {
			resetOnClose(fd, true)
		}
		closeSocket(fd)
	}()
	refuse = screen(from.addrPort(), arrived)
	return refuse
}

// addrPort returns the peer's address in the form that a Screen gets.
func (p peer) addrPort() netip.AddrPort {
	if p.ip4.known() {
		return netip.AddrPortFrom(netip.AddrFrom4(p.ip4.ip), p.ip4.port)
	}
	return addrPort(p.other)
}

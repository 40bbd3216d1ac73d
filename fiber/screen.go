package fiber

import (
	"net"
	"net/netip"
	"syscall"
)

// Arrival is the state of a client as a connection shows it that was just accepted.
type Arrival uint8

const (
	// Present: the client is not known to have disconnected.
	Present Arrival = iota
	// EndedEmpty: the client has ended its stream (a FIN) without having sent a byte. It has
	// disconnected, or it waits for a server that sends first.
	EndedEmpty
	// Broken: the client can receive nothing any more. It has reset the connection, perhaps after
	// sending data, or has closed a Unix socket without having sent a byte.
	Broken
)

// Screen decides about an accepted connection before anything is made for it; true refuses the connection. from is the
// zero AddrPort if the client has no IP address, as on a Unix socket. A Screen runs on the fiber or goroutine that
// accepts, and must not wait.
type Screen func(from netip.AddrPort, a Arrival) (refuse bool)

// AcceptScreened is like l.Accept, but resets connections that screen refuses, and continues with
// the next one. With a Listener a refused connection costs at most five system calls and no Conn,
// and a tick accepts more refused connections than served ones, so that a queue of dead connections
// is emptied quickly. Other listeners make a net.Conn before screen is called. The Arrival is known
// for TCP and Unix sockets, of a Listener and of package net, but not on Windows.
func AcceptScreened(l net.Listener, screen Screen) (c net.Conn, err error) {
	a, ok := l.(*Listener)
	if !ok {
		return screened(l, screen)
	}
	if a.loop.isCaller() {
		return a.accept(screen)
	}
	return a.acceptOffLoop(screen)
}

// screened implements AcceptScreened for a listener that does not belong to an engine.
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

// refusesSocket calls screen for a socket without a Conn, like refused.
func (a *Listener) refusesSocket(fd int, from peer, screen Screen) bool {
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

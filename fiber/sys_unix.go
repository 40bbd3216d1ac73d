//go:build (linux && (amd64 || arm64)) || darwin

package fiber

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The loops' system calls that Linux and Darwin share.

// socketAddr is the address that a socket connects to.
type socketAddr = unix.Sockaddr

func sockaddr(ap netip.AddrPort) socketAddr {
	ip := ap.Addr().Unmap()
	if ip.Is4() {
		return &unix.SockaddrInet4{Addr: ip.As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ip.As16(), Port: int(ap.Port())}
}

// zonedSockaddr returns an IPv6 address with the interface's number as its zone.
func zonedSockaddr(ap netip.AddrPort, zone uint32) socketAddr {
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port()), ZoneId: zone}
}

func unixSockaddr(path string) socketAddr { return &unix.SockaddrUnix{Name: path} }

// openSocket makes a non-blocking socket for a connection to sa. to is sa's IP address, zero for a Unix socket.
func openSocket(sa socketAddr) (fd int, to netip.Addr, err error) {
	domain := unix.AF_UNIX
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		domain, to = unix.AF_INET, netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		domain, to = unix.AF_INET6, netip.AddrFrom16(sa.Addr)
	}
	fd, errno := newSocket(domain)
	if errno != 0 {
		return -1, to, os.NewSyscallError("socket", errno)
	}
	return fd, to, nil
}

// isIP4 reports whether an address is of IPv4.
func isIP4(sa socketAddr) bool {
	_, ok := sa.(*unix.SockaddrInet4)
	return ok
}

// peerOf returns the peer for an address. Like package net it treats an IPv4-mapped IPv6 address as IPv4.
func peerOf(sa unix.Sockaddr) peer {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		if sa.Port != 0 {
			return peer{ip4: peer4{ip: sa.Addr, port: uint16(sa.Port)}}
		}
	case *unix.SockaddrInet6:
		if ip4 := net.IP(sa.Addr[:]).To4(); ip4 != nil && sa.Port != 0 {
			return peer{ip4: peer4{ip: [4]byte(ip4), port: uint16(sa.Port)}}
		}
	}
	return peer{other: toAddr(sa, false)}
}

// toAddr returns an address of the kernel as a net.Addr; nil becomes an empty address.
func toAddr(sa unix.Sockaddr, isUnix bool) net.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: net.IP(sa.Addr[:]), Port: sa.Port}
	case *unix.SockaddrInet6:
		a := &net.TCPAddr{IP: net.IP(sa.Addr[:]), Port: sa.Port}
		if sa.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a.Zone = i.Name
			}
		}
		return a
	case *unix.SockaddrUnix:
		return &net.UnixAddr{Name: sa.Name, Net: "unix"}
	}
	return noAddr(isUnix)
}

func localAddrOf(fd int) (net.Addr, error) { return addrOf(unix.Getsockname(fd)) }

func remoteAddrOf(fd int) (net.Addr, error) { return addrOf(unix.Getpeername(fd)) }

func addrOf(sa unix.Sockaddr, err error) (net.Addr, error) {
	if err != nil {
		return nil, err
	}
	return toAddr(sa, false), nil
}

func noDelay(fd int) { setOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) }

// resetOnClose sets whether closing the socket resets the connection.
func resetOnClose(fd int, on bool) {
	linger := unix.Linger{}
	if on {
		linger.Onoff = 1
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
}

// duplicate returns another descriptor of the same socket.
func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// takeSocket returns a duplicate descriptor, in non-blocking mode, of a stream socket of package net. The original
// stays open.
func takeSocket(s any) (fd int, isUnix bool, err error) {
	sc, ok := s.(syscall.Conn)
	if !ok {
		return -1, false, fmt.Errorf("%T is no socket: %w", s, errors.ErrUnsupported)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return -1, false, err
	}
	var failed error
	err = rc.Control(func(original uintptr) {
		var kind int
		if kind, failed = unix.GetsockoptInt(int(original), unix.SOL_SOCKET, unix.SO_TYPE); failed != nil {
			return
		}
		if kind != unix.SOCK_STREAM {
			failed = fmt.Errorf("not a stream socket: %w", errors.ErrUnsupported)
			return
		}
		var local unix.Sockaddr
		if local, failed = unix.Getsockname(int(original)); failed != nil {
			return
		}
		_, isUnix = local.(*unix.SockaddrUnix)
		fd, failed = duplicate(int(original))
	})
	if err == nil {
		err = failed
	}
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil {
			closeSocket(fd)
		}
	}
	return fd, isUnix, err
}

// mapMemory maps memory outside the heap.
func mapMemory(size int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	return m, nil
}

// releaseMemory gives mapped memory back to the system and keeps its addresses. The contents are lost, and using the
// memory again costs page faults.
func releaseMemory(m []byte) { _ = unix.Madvise(m, unix.MADV_DONTNEED) }

func unmapMemory(m []byte) { _ = unix.Munmap(m) }

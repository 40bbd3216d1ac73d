//go:build linux && (amd64 || arm64)

package fiber

import (
	"encoding/binary"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
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

// acceptedPeer is a peer as accept4(2) tells it.
func acceptedPeer(sa *unix.RawSockaddrAny) peer {
	port := func(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return peer{ip4: peer4{ip: in.Addr, port: port(&in.Port)}}
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		return peerOf(&unix.SockaddrInet6{Addr: in.Addr, Port: int(port(&in.Port)), ZoneId: in.Scope_id})
	}
	return peer{other: nameless}
}

// peerOf is a peer as unix.Connect has it. An IPv4 address in the form of IPv6 is one of IPv4, as package net
// has it.
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

// toAddr makes a net.Addr of what the kernel says; nil becomes an empty address.
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
	if isUnix {
		return &net.UnixAddr{Net: "unix"}
	}
	return &net.TCPAddr{}
}

package fiber

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// bindNoPort is IP_BIND_ADDRESS_NO_PORT (Linux 4.2): the kernel chooses the port when it connects, so that a port is in
// use for one server only. For sockets of IPv6, too.
const bindNoPort = 24

// bindFrom binds a socket to an address, which need not be one of this machine's (IP_TRANSPARENT, ip(7)).
func bindFrom(fd int, from netip.Addr) error {
	if err := makeTransparent(fd, from.Is4()); err != nil {
		return err
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, bindNoPort, 1) // without it a client has 28,000 connections in all, with it as many to each server
	sa := unix.Sockaddr(&unix.SockaddrInet6{Addr: from.As16()})
	if from.Is4() {
		sa = &unix.SockaddrInet4{Addr: from.As4()}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sa))
}

func makeTransparent(fd int, ip4 bool) error {
	level, option := unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
	if ip4 {
		level, option = unix.IPPROTO_IP, unix.IP_TRANSPARENT
	}
	return os.NewSyscallError("IP_TRANSPARENT", unix.SetsockoptInt(fd, level, option, 1))
}

func canDialFrom() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return makeTransparent(fd, true)
}

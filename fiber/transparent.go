package fiber

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// CanDialFrom returns nil if this process may use [Engine.DialFrom]: on Linux, with the capability CAP_NET_ADMIN or
// CAP_NET_RAW.
func CanDialFrom() error { return canDialFrom() }

// DialFrom is DialContext for TCP with from as the address of this side, which need not be an address of this machine
// (IP_TRANSPARENT); the kernel chooses the port. Answers come back only if routes lead them here and rules deliver
// them, see docs/tcp.md. Of the addresses of a name those of from's family are tried.
func (e *Engine) DialFrom(ctx context.Context, from netip.Addr, network, address string) (net.Conn, error) {
	from = from.Unmap()
	if !from.IsValid() || network == "unix" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: &net.AddrError{Err: "no address to connect from or to", Addr: address}}
	}
	if e.kind == Goroutine {
		return dialFrom(ctx, from, address)
	}
	targets, err := resolve(ctx, network, address)
	if err != nil {
		return nil, err
	}
	all := len(targets)
	targets = slices.DeleteFunc(targets, func(t socketAddr) bool { return isIP4(t) != from.Is4() })
	if len(targets) == 0 && all > 0 {
		return nil, &net.OpError{Op: "dial", Net: network, Source: &net.TCPAddr{IP: from.AsSlice()}, Err: &net.AddrError{Err: errFamilies.Error(), Addr: address}}
	}
	return e.dialAny(ctx, network, targets, from)
}

var errFamilies = errors.New("IPv4 and IPv6 cannot be connected")

// dialFrom is DialFrom on goroutines.
func dialFrom(ctx context.Context, from netip.Addr, address string) (net.Conn, error) {
	network := "tcp6"
	if from.Is4() {
		network = "tcp4"
	}
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if failed := c.Control(func(fd uintptr) { err = bindFrom(int(fd), from) }); failed != nil {
			return failed
		}
		return err
	}}
	return d.DialContext(ctx, network, address)
}

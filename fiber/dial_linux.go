//go:build linux && (amd64 || arm64)

package fiber

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// dial connects on a loop: the caller's, if it is a fiber, or the one with the fewest
// connections.
func (e *Engine) dial(ctx context.Context, network, address string) (net.Conn, error) {
	targets, err := resolve(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l := e.lightest()
	if f := currentFiber(); f != nil && f.loop.engine == e {
		l = f.loop
	}
	var errs []error
	for _, t := range targets {
		var c *Conn
		err := error(net.ErrClosed)
		attempt := func() { c, err = connect(ctx, l, t) }
		if l.here() {
			attempt()
		} else {
			l.call(attempt)
		}
		if err == nil {
			return c, nil
		}
		errs = append(errs, &net.OpError{Op: "dial", Net: network, Addr: toAddr(t, network == "unix"), Err: err})
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// resolve makes socket addresses of an address; names are looked up, which does not hold the
// loop.
func resolve(ctx context.Context, network, address string) ([]unix.Sockaddr, error) {
	if network == "unix" {
		return []unix.Sockaddr{&unix.SockaddrUnix{Name: address}}, nil
	}
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
	}
	if ap, err := netip.ParseAddrPort(address); err == nil && ap.Addr().Zone() == "" {
		return []unix.Sockaddr{sockaddr(ap)}, nil
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	var ips []netip.Addr
	var port int
	Block(func() {
		if port, err = net.DefaultResolver.LookupPort(ctx, network, service); err == nil {
			ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip"+network[3:], host)
		}
	})
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	targets := make([]unix.Sockaddr, 0, len(ips))
	for _, ip := range ips {
		targets = append(targets, sockaddr(netip.AddrPortFrom(ip, uint16(port))))
	}
	return targets, nil
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	ip := ap.Addr().Unmap()
	if ip.Is4() {
		return &unix.SockaddrInet4{Addr: ip.As4(), Port: int(ap.Port())}
	}
	sa := &unix.SockaddrInet6{Addr: ip.As16(), Port: int(ap.Port())}
	if zone := ip.Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			sa.ZoneId = uint32(i.Index)
		}
	}
	return sa
}

// connect runs as a fiber of l.
func connect(ctx context.Context, l *loop, sa unix.Sockaddr) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	domain := unix.AF_UNIX
	switch sa.(type) {
	case *unix.SockaddrInet4:
		domain = unix.AF_INET
	case *unix.SockaddrInet6:
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if domain != unix.AF_UNIX {
		inheritable(fd)
	}
	err = unix.Connect(fd, sa)
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	c := newConn(l, fd, domain == unix.AF_UNIX)
	if c.closed {
		return nil, net.ErrClosed
	}
	if err != nil {
		err = c.connected(ctx, l, sa)
	}
	if err == nil && !l.poller.nonblocking() {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_RDWR)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// connected waits for a connect under way. Connecting again tells how it went.
func (c *Conn) connected(ctx context.Context, l *loop, sa unix.Sockaddr) error {
	stop := context.AfterFunc(ctx, func() { l.post(func() { c.wr.woken(l) }) })
	defer stop()
	for {
		if !l.poller.writable(c) {
			if err := c.wait(l, &c.wr); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("connect: %w", context.Cause(ctx))
		}
		switch err := unix.Connect(c.fd, sa); err {
		case nil, unix.EISCONN:
			return nil
		case unix.EALREADY, unix.EINPROGRESS, unix.EINTR:
		default:
			return os.NewSyscallError("connect", err)
		}
	}
}

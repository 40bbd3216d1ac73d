package fiber

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"
)

// dial connects on the caller's loop if the caller is a fiber, else on the loop with the fewest connections.
func (e *Engine) dial(ctx context.Context, network, address string) (net.Conn, error) {
	targets, err := resolve(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return e.dialAny(ctx, network, targets, netip.Addr{})
}

// dialAny tries addresses in turn, from the address from if it is valid. Each gets a share of ctx's time, so that time is left for the
// others if one does not answer.
func (e *Engine) dialAny(ctx context.Context, network string, targets []socketAddr, from netip.Addr) (net.Conn, error) {
	l := e.lightest()
	if f := currentFiber(); f != nil && f.loop.engine == e {
		l = f.loop
	}
	if len(targets) == 1 && l.isCaller() {
		c, err := connect(ctx, l, targets[0], from)
		if err != nil {
			return nil, dialError(network, targets[0], err)
		}
		return c, nil
	}
	return dialEach(ctx, l, network, targets, from)
}

// dialEach is dialAny on or off the loop l. It is a separate function because the captures of its closure are
// allocated.
func dialEach(ctx context.Context, l *loop, network string, targets []socketAddr, from netip.Addr) (net.Conn, error) {
	var errs dialErrors
	for i, t := range targets {
		var c *Conn
		err := net.ErrClosed
		attempt := func() {
			ctx, cancel := share(ctx, len(targets)-i)
			defer cancel()
			c, err = connect(ctx, l, t, from)
		}
		if l.isCaller() {
			attempt()
		} else {
			l.call(attempt)
		}
		if err == nil {
			return c, nil
		}
		errs = append(errs, dialError(network, t, err))
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: errs}
}

func dialError(network string, target socketAddr, err error) error {
	return &net.OpError{Op: "dial", Net: network, Addr: toAddr(target, network == "unix"), Err: err}
}

// minShare is the minimum time for an address, if so much is left.
const minShare = 2 * time.Second

// share bounds a context for the next of n attempts, as package net does.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || n == 1 {
		return ctx, func() {}
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, max(left/time.Duration(n), min(left, minShare)))
}

// dialErrors are the errors of several addresses.
type dialErrors []error

func (e dialErrors) Error() string   { return errors.Join(e...).Error() }
func (e dialErrors) Unwrap() []error { return e }

// Timeout reports whether the last address timed out, which means that no time was left.
func (e dialErrors) Timeout() bool {
	if len(e) == 0 {
		return false
	}
	ne, ok := errors.AsType[net.Error](e[len(e)-1])
	return ok && ne.Timeout()
}

// contextEnded is the error of a context that has ended. net.OpError calls its Timeout.
type contextEnded struct{ err, cause error }

func ended(ctx context.Context) error { return contextEnded{ctx.Err(), context.Cause(ctx)} }

func (e contextEnded) Error() string   { return "connect: " + e.cause.Error() }
func (e contextEnded) Unwrap() []error { return []error{e.err, e.cause} }
func (e contextEnded) Timeout() bool   { return errors.Is(e.err, context.DeadlineExceeded) }

// resolve returns the socket addresses of an address. It looks names up without holding the loop.
func resolve(ctx context.Context, network, address string) ([]socketAddr, error) {
	if network == "unix" {
		return []socketAddr{unixSockaddr(address)}, nil
	}
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
	}
	if ap, err := netip.ParseAddrPort(address); err == nil {
		if is4 := ap.Addr().Unmap().Is4(); network != "tcp" && is4 != (network == "tcp4") {
			err := &net.AddrError{Err: "no suitable address", Addr: ap.Addr().String()}
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		if ap.Addr().Zone() != "" {
			return zonedAddr(network, ap)
		}
		return []socketAddr{sockaddr(ap)}, nil
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	switch { // an empty host stands for this machine
	case host == "" && network == "tcp6":
		host = "::1"
	case host == "":
		host = "127.0.0.1"
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
	targets := make([]socketAddr, 0, len(ips))
	for _, ip := range ips {
		targets = append(targets, sockaddr(netip.AddrPortFrom(ip, uint16(port))))
	}
	return targets, nil
}

// zonedAddr returns the socket address of an IPv6 address with a zone, the name or number of an interface. It looks
// names up.
func zonedAddr(network string, ap netip.AddrPort) ([]socketAddr, error) {
	zone := ap.Addr().Zone()
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return []socketAddr{zonedSockaddr(ap, uint32(n))}, nil
	}
	var i *net.Interface
	var err error
	Block(func() { i, err = net.InterfaceByName(zone) })
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: &net.AddrError{Err: "no interface " + zone, Addr: ap.Addr().String()}}
	}
	return []socketAddr{zonedSockaddr(ap, uint32(i.Index))}, nil
}

// connect connects to sa, on a fiber of l, from the address from if it is valid.
func connect(ctx context.Context, l *loop, sa socketAddr, from netip.Addr) (*Conn, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	fd, to, err := openSocket(sa)
	if err != nil {
		return nil, err
	}
	if from.IsValid() {
		if err := bindFrom(fd, from); err != nil {
			closeSocket(fd)
			return nil, err
		}
	}
	isUnix := !to.IsValid()
	if !isUnix {
		noDelay(fd)
		if to.IsLoopback() { // a peer on this machine cannot vanish silently
			useReno(fd)
		} else {
			keepAlive(fd, true)
		}
	}
	err = connectSocket(fd, sa)
	if err != nil && !errors.Is(err, syscall.EINPROGRESS) {
		closeSocket(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	remote := peer{}
	if !to.IsUnspecified() { // otherwise the peer's address differs
		remote = peerOf(sa)
	}
	c := newConn(l, fd, isUnix, remote)
	if c.closed {
		return nil, net.ErrClosed
	}
	if err != nil {
		err = c.connected(ctx, l, sa)
	}
	if err == nil && connectedToItself(fd, sa) {
		err = os.NewSyscallError("connect", syscall.ECONNREFUSED) // as if the socket had not connected to itself
		_ = c.SetLinger(0)                                        // so that the server can use the port again
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// connected waits for a connect under way. A second connect returns the result, which is known at once on one machine.
func (c *Conn) connected(ctx context.Context, l *loop, sa socketAddr) error {
	watching := false
	for {
		switch err := connectSocket(c.fd, sa); err {
		case nil, syscall.EISCONN:
			return nil
		case syscall.EALREADY, syscall.EINPROGRESS, syscall.EINTR:
		default:
			return os.NewSyscallError("connect", err)
		}
		if !watching {
			watching = true
			defer context.AfterFunc(ctx, func() { c.send(l, c.wakeWriter) })() // c may live on another loop then
		}
		if !l.poller.socket(c, &c.wr, true) {
			if err := c.wait(l, &c.wr); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ended(ctx)
		}
	}
}

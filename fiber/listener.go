package fiber

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
)

// Listener accepts connections and gives each to the loop of the engine with the fewest connections. It is a
// net.Listener. Accept is cheap on a fiber of the listener's loop (see Go), and a trip to that loop elsewhere.
type Listener struct {
	loop     *loop
	fd       int
	unix     bool
	loopback bool // bound to a loopback address; its connections are local, too
	addr     net.Addr
	path     string // of a Unix socket

	keepPath atomic.Bool   // Close does not remove path
	closing  atomic.Bool   // Close was called
	freed    chan struct{} // closed when the descriptor is

	// Everything below belongs to the loop's thread.
	closed  bool
	waiters []*coroutine
	slot    uint32
	armed   bool // the poller watches it
	spent   int  // part of acceptBudget used in this tick
}

var _ net.Listener = (*Listener)(nil)

// listen duplicates l's socket and closes l, so that nothing else polls it.
func (e *Engine) listen(l net.Listener) (net.Listener, error) {
	fd, isUnix, err := takeSocket(l)
	if err != nil {
		return nil, fmt.Errorf("fiber: listener on %s: %w", l.Addr(), err)
	}
	a := &Listener{loop: e.loops[0], fd: fd, unix: isUnix, addr: l.Addr(), freed: make(chan struct{})}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
		if a.path = l.Addr().String(); strings.HasPrefix(a.path, "@") {
			a.path = "" // an abstract address is no file
		}
	}
	_ = l.Close()
	if !isUnix {
		noDelay(fd) // accepted connections inherit these options
		keepAlive(fd, true)
		if a.loopback = loopback(a.addr); a.loopback {
			useReno(fd)
		}
	}
	failed := net.ErrClosed
	a.loop.call(func() {
		if a.loop.closing {
			return
		}
		a.slot = a.loop.table.put(a)
		if failed = a.loop.poller.watch(a); failed != nil {
			a.loop.table.drop(a.slot)
			return
		}
		a.loop.open++
	})
	if failed != nil {
		closeSocket(fd)
		return nil, fmt.Errorf("fiber: listener on %s: %w", a.addr, failed)
	}
	return a, nil
}

// acceptBudget bounds the work of accepting in one tick, so that sessions, including new ones, make progress during a
// flood of connections: 16 connections, or 256 that a Screen refuses, which take about a millisecond.
const (
	acceptBudget = 16 * acceptCost
	acceptCost   = 16 // of an accepted connection; a refused one costs 1
)

// Accept implements net.Listener; the connection is a *Conn.
func (a *Listener) Accept() (net.Conn, error) {
	if a.loop.isCaller() {
		return a.accept(nil)
	}
	return a.acceptOffLoop(nil)
}

// acceptOffLoop is accept off the loop.
func (a *Listener) acceptOffLoop(screen Screen) (c net.Conn, err error) {
	err = a.opError("accept", net.ErrClosed)
	a.loop.call(func() { c, err = a.accept(screen) })
	return c, err
}

// accept implements Accept and AcceptScreened on a fiber of the listener's loop.
func (a *Listener) accept(screen Screen) (net.Conn, error) {
	for !a.closed {
		if a.spent >= acceptBudget {
			a.spent = 0
			a.loop.ready(a.loop.current)
			a.loop.current.park()
			continue
		}
		fd, from, err, done := acceptOne(a.fd)
		switch {
		case err == syscall.ECONNABORTED && screen != nil: //nolint:errorlint // made by acceptOne
			a.spent++ // systems other than Linux report connections that were reset in the queue
			screen(netip.AddrPort{}, Broken)
			continue
		case err != nil:
			return nil, a.opError("accept", err)
		case done && screen != nil && a.refusesSocket(fd, from, screen):
			a.spent++
			continue
		case done:
			a.spent += acceptCost
			if !a.loopback && from.isLoopback() {
				useReno(fd)
			}
			return newConn(a.loop.engine.lightest(), fd, a.unix, from), nil
		}
		if err := a.loop.poller.watch(a); err != nil {
			return nil, a.opError("accept", err)
		}
		a.spent = 0
		a.waiters = append(a.waiters, a.loop.current)
		a.loop.current.park()
	}
	return nil, a.opError("accept", net.ErrClosed)
}

func (a *Listener) opError(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // made by the poller
		err = os.NewSyscallError(op, errno)
	}
	network := "tcp"
	if a.unix {
		network = "unix"
	}
	return &net.OpError{Op: op, Net: network, Addr: a.addr, Err: err}
}

func (a *Listener) woken(l *loop) {
	for _, f := range a.waiters {
		l.ready(f)
	}
	a.waiters = a.waiters[:0]
}

// Go runs fn, an accepting loop, as a fiber of the listener's loop.
func (a *Listener) Go(fn func()) {
	if a.loop.isCaller() {
		a.loop.spawn(fn)
	} else {
		a.loop.launch(fn)
	}
}

// Close implements net.Listener: waiting Accepts return an error. On a goroutine Close returns when the address is free
// again; the caller must hold no lock that a fiber of the engine may wait for. On a fiber Close does not wait.
func (a *Listener) Close() error {
	if a.closing.Swap(true) {
		return a.opError("close", net.ErrClosed)
	}
	switch {
	case a.loop.isCaller():
		a.shut()
	case a.loop.post(a.shut) && !onLoop():
		select {
		case <-a.freed:
		case <-a.loop.ended:
		}
	}
	return nil
}

// shut is Close on the loop's thread.
func (a *Listener) shut() {
	if a.closed {
		return
	}
	a.closed = true
	if a.path != "" && !a.keepPath.Load() {
		_ = os.Remove(a.path)
	}
	a.woken(a.loop)
	a.loop.poller.unwatch(a)
}

// free closes the descriptor; the poller calls it when the last operation of the closed listener has ended.
func (a *Listener) free(l *loop) {
	l.table.drop(a.slot)
	closeSocket(a.fd)
	l.open--
	close(a.freed)
}

// Addr implements net.Listener.
func (a *Listener) Addr() net.Addr { return a.addr }

// SetUnlinkOnClose sets whether Close removes the file of a Unix socket; the default is true.
func (a *Listener) SetUnlinkOnClose(unlink bool) { a.keepPath.Store(!unlink) }

// File returns a copy of the socket, for another listener or process. It must not be called after
// Close.
func (a *Listener) File() (*os.File, error) {
	fd, err := duplicate(a.fd)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "listener "+a.addr.String()), nil
}

// rawConn is a syscall.RawConn for inspecting a socket and setting its options.
type rawConn struct{ c *Conn }

// Control implements syscall.RawConn. fn runs on the loop and must not wait.
func (r rawConn) Control(fn func(fd uintptr)) (err error) {
	look := func(*loop) {
		if r.c.closed {
			err = net.ErrClosed
			return
		}
		fn(uintptr(r.c.fd))
	}
	if l := r.c.loop.Load(); l.isCaller() {
		look(l)
	} else {
		r.c.onItsLoop(l, look, &err)
	}
	return err
}

// Read implements syscall.RawConn. It is not supported, because the loop may have received data already.
func (rawConn) Read(func(uintptr) bool) error { return errors.ErrUnsupported }

// Write implements syscall.RawConn. It is not supported.
func (rawConn) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

// SyscallConn gives access to the socket for inspecting it and setting options. Read and Write of the result return
// errors.ErrUnsupported.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return rawConn{c}, nil }

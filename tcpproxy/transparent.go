package tcpproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/upstream"
)

// DialFromFunc connects to "host:port" with from as the address of this side, such as fiber.Engine.DialFrom.
type DialFromFunc func(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error)

// place is a connection of an upstream with DialFrom. It is leased before it is opened, because only the session knows from
// which address. It has one user.
type place struct {
	fiber.Stream
	dial DialFromFunc

	mu     sync.Mutex // held for a few instructions
	conn   net.Conn   // nil = not opened yet
	closed bool
}

// errUnopened is the error of reads and writes of a place.
var errUnopened = errors.New("tcpproxy: the connection is not open yet")

// unopened is the Stream of a place. Close does nothing.
type unopened struct{ net.Conn }

func (unopened) Read([]byte) (int, error)         { return 0, errUnopened }
func (unopened) Write([]byte) (int, error)        { return 0, errUnopened }
func (unopened) Close() error                     { return nil }
func (unopened) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (unopened) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (unopened) SetDeadline(time.Time) error      { return nil }
func (unopened) SetReadDeadline(time.Time) error  { return nil }
func (unopened) SetWriteDeadline(time.Time) error { return nil }

func newPlace(dial DialFromFunc) *place {
	return &place{Stream: fiber.StreamOf(unopened{}), dial: dial}
}

// open connects from an address.
func (p *place) open(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error) {
	conn, err := p.dial(ctx, from, endpoint)
	if err != nil {
		return nil, fmt.Errorf("connect to %s as %s: %w", endpoint, from, err)
	}
	p.mu.Lock()
	p.conn = conn
	closed := p.closed
	p.mu.Unlock()
	if closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close closes the connection, now or as soon as it is open.
func (p *place) Close() error {
	p.mu.Lock()
	p.closed = true
	conn := p.conn
	p.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close() // may make a trip to a loop
}

// errNoAddress is the failure of a client without an IP address, such as one of a Unix socket.
var errNoAddress = errors.New("the client has no IP address to connect from, which its upstream wants (transparent)")

// unblamed is a failure that may concern this client only, for example if answers to its address are not routed here. It does
// not count against the endpoint.
type unblamed struct{ error }

// Unwrap returns the error.
func (u unblamed) Unwrap() error { return u.error }

// connectAs opens the connection of a lease as the session's client.
func (s *session) connectAs(ctx context.Context, p *place, l upstream.Lease[net.Conn]) (fiber.Stream, error) {
	a, ok := s.client.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return nil, unblamed{errNoAddress}
	}
	from := a.AddrPort().Addr().Unmap().WithZone("")
	if !from.IsValid() || from.IsUnspecified() || from.IsMulticast() { // only a PROXY header can contain these
		return nil, unblamed{errNoAddress}
	}
	c, err := p.open(ctx, from, l.Endpoint())
	if err != nil {
		if !errors.Is(err, syscall.ECONNREFUSED) {
			err = unblamed{err}
		}
		return nil, err
	}
	return fiber.StreamOf(c), nil
}

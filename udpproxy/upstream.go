package udpproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// Defaults of the limits of upstreams.
const (
	// DefaultMaxSize is the number of sessions at one endpoint: as many as a listener has clients by default.
	DefaultMaxSize = listener.DefaultMaxConns
	// DefaultOpenTimeout bounds the look-up of an endpoint's name; there is nothing else to wait for.
	DefaultOpenTimeout = 5 * time.Second
	// DefaultWarmAge is how long a socket waits for its session before it is replaced, so that an endpoint given by
	// name follows its address.
	DefaultWarmAge = 20 * time.Second
)

// Socket is a UDP socket that is connected to an endpoint. It serves one session.
type Socket struct {
	socket  *socket
	peer    netip.AddrPort
	joins   bool // the kernel joins datagrams; only the session's goroutine has it
	session atomic.Pointer[session]
	why     atomic.Pointer[error] // of the first interrupt; nil = there was none
}

// from reports whether a packet comes from the endpoint. A socket takes datagrams of others between the system's choice of its
// port and its connection, and they stay in its buffer.
func (s *Socket) from(p *packet) bool {
	return !p.peer.IsValid() || p.peer.Port() == s.peer.Port() && p.peer.Addr().WithZone("") == s.peer.Addr()
}

// UpstreamOptions are the settings of NewUpstream; the zero value is usable.
type UpstreamOptions struct {
	// Settings: Limits.MinIdle is the number of sockets kept ready for each endpoint; the defaults of Limits apply.
	upstream.Settings
	Logger *slog.Logger
}

// NewUpstream returns an upstream of sockets as a Proxy needs it. An open socket says nothing about its endpoint: what
// takes an endpoint out is that it refuses datagrams, see Config.Answers, or an active check. Close or Drain it.
func NewUpstream(name string, o UpstreamOptions) (*upstream.Upstream[*Socket], error) {
	o.Limits = Limits(o.Limits)
	return upstream.New(upstream.Config[*Socket]{
		Name:      name,
		Settings:  o.Settings,
		Open:      open,
		Close:     func(s *Socket) { _ = s.socket.conn.Close() },
		Interrupt: interrupt,
		Logger:    o.Logger,
	})
}

// Limits returns l with the defaults of sockets that are used once: MaxSize DefaultMaxSize, MaxLifetime (the age of a
// socket that waits, not of one in use) DefaultWarmAge, OpenTimeout DefaultOpenTimeout. Give Upstream.Update its result.
func Limits(l pool.Limits) pool.Limits {
	l.MaxSize = cmp.Or(l.MaxSize, max(DefaultMaxSize, l.MinIdle))
	l.MaxLifetime = cmp.Or(l.MaxLifetime, DefaultWarmAge)
	l.OpenTimeout = cmp.Or(l.OpenTimeout, DefaultOpenTimeout)
	return l
}

// errNotUDP is the error of an endpoint that is not "host:port".
var errNotUDP = errors.New("udpproxy: a UDP endpoint must be host:port")

// errNoPort is a shortage of this machine, for which package upstream blames no endpoint.
var errNoPort = fmt.Errorf("udpproxy: no local port is free for another session (net.ipv4.ip_local_port_range): %w", syscall.ENOBUFS)

func open(ctx context.Context, endpoint string) (*Socket, error) {
	if network, _, err := netaddr.Split(endpoint); err != nil {
		return nil, err
	} else if network != "tcp" {
		return nil, errNotUDP
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", endpoint)
	if errors.Is(err, syscall.EAGAIN) {
		return nil, errNoPort
	}
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UDPConn) //nolint:forcetypeassert // of this network
	s, err := newSocket(conn)
	if err == nil {
		err = s.prepare(true, false)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	peer := conn.RemoteAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // as above
	return &Socket{socket: s, peer: netip.AddrPortFrom(peer.Addr().Unmap().WithZone(""), peer.Port())}, nil
}

// interrupt ends the session that has a socket, or gets it now: one of both sees the other.
func interrupt(s *Socket, why error) {
	s.why.CompareAndSwap(nil, &why)
	if of := s.session.Load(); of != nil {
		of.cutOff(why)
	}
}

// wake has the session look at its state.
func (s *Socket) wake() { _ = s.socket.conn.SetReadDeadline(time.Unix(1, 0)) }

// blames reports whether the error of a send or receive on a connected socket says that its endpoint is not there: the
// answer is an ICMP message.
func blames(err error) bool {
	for _, e := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

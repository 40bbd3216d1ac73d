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
	// DefaultMaxSize is the number of sessions at one endpoint: the default number of a listener's clients.
	DefaultMaxSize = listener.DefaultMaxConns
	// DefaultOpenTimeout bounds the look-up of an endpoint's name; opening a socket does not wait otherwise.
	DefaultOpenTimeout = 5 * time.Second
	// DefaultWarmAge is the age at which an unused socket is replaced, so that a changed address of an endpoint's name
	// takes effect.
	DefaultWarmAge = 20 * time.Second
)

// Socket is a UDP socket connected to an endpoint. It serves one session.
type Socket struct {
	socket  *socket
	peer    netip.AddrPort
	joins   bool // the kernel joins datagrams; used by the session's goroutine only
	session atomic.Pointer[session]
	why     atomic.Pointer[error] // of the first interrupt; nil = none
}

// from reports whether a packet comes from the endpoint. Between the choice of its port and its connection, a socket
// accepts datagrams from others, which stay in its buffer.
func (s *Socket) from(p *packet) bool {
	return !p.peer.IsValid() || p.peer.Port() == s.peer.Port() && p.peer.Addr().WithZone("") == s.peer.Addr()
}

// UpstreamOptions are the settings of NewUpstream; the zero value is usable.
type UpstreamOptions struct {
	// Settings: Limits.MinIdle is the number of sockets kept ready for each endpoint; the defaults of Limits apply.
	upstream.Settings
	Logger *slog.Logger
}

// NewUpstream returns an upstream of sockets for a Proxy. An open socket says nothing about its endpoint; an endpoint
// is out after it has refused datagrams or left them unanswered (see Config.Answers), or when an active check fails.
// The caller must Close or Drain the upstream.
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

// Limits returns l with defaults for sockets that are used once: MaxSize DefaultMaxSize, MaxLifetime (the age of an
// unused socket, not of one in use) DefaultWarmAge, OpenTimeout DefaultOpenTimeout. Pass its result to Upstream.Update.
func Limits(l pool.Limits) pool.Limits {
	l.MaxSize = cmp.Or(l.MaxSize, max(DefaultMaxSize, l.MinIdle))
	l.MaxLifetime = cmp.Or(l.MaxLifetime, DefaultWarmAge)
	l.OpenTimeout = cmp.Or(l.OpenTimeout, DefaultOpenTimeout)
	return l
}

// errNotUDP is the error for an endpoint that is not "host:port".
var errNotUDP = errors.New("udpproxy: a UDP endpoint must be host:port")

// errNoPort is the error for a shortage of local ports; package upstream does not count it for an endpoint.
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

// interrupt ends the session that has the socket. If a session is just getting the socket, either interrupt or that
// session sees the other.
func interrupt(s *Socket, why error) {
	s.why.CompareAndSwap(nil, &why)
	if of := s.session.Load(); of != nil {
		of.cutOff(why)
	}
}

// wake makes the session check its state.
func (s *Socket) wake() { _ = s.socket.conn.SetReadDeadline(time.Unix(1, 0)) }

// blames reports whether the error of a send or receive on a connected socket says that its endpoint is not there. Such
// an error is made from an ICMP message.
func blames(err error) bool {
	for _, e := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

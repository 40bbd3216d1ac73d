package tunnels

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// offeredBackend is an upstream that the other side of a tunnel may name. As with a tcp listener, a
// connection is used once. Its user is the tunnel, which runs on goroutines.
type offeredBackend struct{ *upstream.Upstream[net.Conn] }

func newOffered(s extend.Settings) (extend.Backend, error) {
	u := s.Config
	tlsConfig, err := extend.ClientTLS(u.TLS)
	if err != nil {
		return nil, err
	}
	dial := s.Dial
	if !u.Far() {
		dial = netaddr.Dial // not the engine's: the users are goroutines
	}
	open := func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := dial(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		ready := &readyConn{Stream: fiber.StreamOf(c), raw: c, opened: time.Now()}
		if tlsConfig == nil {
			return ready, nil
		}
		tc := fiber.TLSClient(c, tlsclient.For(tlsConfig, endpoint))
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
		ready.Stream = tc
		return ready, nil
	}
	s.Limits = tcpproxy.WarmLimits(s.Limits)
	up, err := upstream.New(upstream.Config[net.Conn]{
		Name: u.Name, Settings: s.Settings, Open: open, Close: func(c net.Conn) { _ = c.Close() },
		Interrupt: func(c net.Conn, _ error) { _ = c.(*readyConn).raw.Close() }, Check: checkReady, Logger: s.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &offeredBackend{up}, nil
}

// Update implements extend.Backend.
func (b *offeredBackend) Update(s extend.Settings) error {
	s.Limits = tcpproxy.WarmLimits(s.Limits)
	return b.Upstream.Update(s.Settings)
}

// Runs implements extend.Backend.
func (b *offeredBackend) Runs() any { return b }

// readyConn is a connection that waits for its user.
type readyConn struct {
	fiber.Stream          // with TLS if any
	raw          net.Conn // without TLS
	opened       time.Time
}

// checkReady is the background check.
func checkReady(_ context.Context, c net.Conn) error {
	if !c.(*readyConn).State().Fit() { //nolint:forcetypeassert // opened by newOffered
		return net.ErrClosed
	}
	return nil
}

// Connect leases a connection that the backend has not closed while the connection was idle. A connection opened for
// this user is returned unchecked: otherwise a backend that closes every connection would be dialled again and again.
func (b *offeredBackend) Connect(ctx context.Context) (net.Conn, error) {
	began := time.Now()
	for {
		l, err := b.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		c := l.Value().(*readyConn) //nolint:forcetypeassert // opened by newOffered
		if !c.opened.Before(began) || c.State().Fit() {
			return &leasedConn{Stream: c.Stream, lease: l}, nil
		}
		l.Discard()
	}
}

// leasedConn ends its lease when it is closed.
type leasedConn struct {
	fiber.Stream
	lease  upstream.Lease[net.Conn]
	heard  atomic.Bool // the backend has sent something
	broken atomic.Pointer[error]
	once   sync.Once
}

// Read implements net.Conn.
func (c *leasedConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
		c.lease.OK()
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.broken.Store(&err)
	}
	return n, err
}

// Close implements net.Conn.
func (c *leasedConn) Close() error {
	c.once.Do(func() {
		if err := c.broken.Load(); err != nil && !c.heard.Load() {
			c.lease.Fail(*err)
			return
		}
		c.lease.Discard()
	})
	return nil
}

package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"crypto/tls"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/idleconn"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/upstream"
)

// offeredBackend is an upstream that the other side of a tunnel may name. As behind a tcp listener a connection is used once; its user
// is the tunnel, which runs on goroutines.
type offeredBackend struct{ *upstream.Upstream[net.Conn] }

func newOffered(u *config.Upstream, s settings) (backendImpl, error) {
	tlsConfig, err := clientConfig(u.TLS)
	if err != nil {
		return nil, err
	}
	dial := s.dial
	if dial == nil {
		dial = netaddr.Dial
	}
	open := func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := dial(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		ready := &readyConn{Conn: c, look: idleconn.New(c), opened: time.Now()}
		if tlsConfig == nil {
			return ready, nil
		}
		tc := tls.Client(c, tlsclient.For(tlsConfig, endpoint))
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
		ready.Conn = tc
		return ready, nil
	}
	up, err := upstream.New(upstream.Config[net.Conn]{
		Name: s.name, Endpoints: s.endpoints, Balance: s.balance, Limits: s.limits, Open: open,
		Close: func(c net.Conn) { _ = c.Close() }, Check: checkReady, Health: s.health, Ejection: s.ejection, Logger: s.logger,
	})
	return &offeredBackend{up}, err
}

func (b *offeredBackend) update(s settings) error {
	return b.Update(s.endpoints, s.balance, s.limits, s.health, s.ejection)
}

func (*offeredBackend) idle() <-chan struct{} { return nil }

// readyConn is a connection that waits for its user.
type readyConn struct {
	net.Conn
	look   *idleconn.Looker // at the socket, also below TLS
	opened time.Time
}

// checkReady is the background check.
func checkReady(_ context.Context, c net.Conn) error {
	if !c.(*readyConn).look.Look().Fit() { //nolint:forcetypeassert // what newOffered opens
		return net.ErrClosed
	}
	return nil
}

// connect leases a connection that the backend has not closed while it was waiting for a user. One that was opened for this user is given
// to it as it is: a backend that closes all of them is not to be connected to again and again.
func (b *offeredBackend) connect(ctx context.Context) (net.Conn, error) {
	began := time.Now()
	for {
		l, err := b.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		c := l.Value().(*readyConn) //nolint:forcetypeassert // what newOffered opens
		if !c.opened.Before(began) || c.look.Look().Fit() {
			return &leasedConn{Conn: c.Conn, lease: l}, nil
		}
		l.Discard()
	}
}

// leasedConn ends its lease when it is closed.
type leasedConn struct {
	net.Conn
	lease  upstream.Lease[net.Conn]
	heard  atomic.Bool // the backend has said something
	broken atomic.Pointer[error]
	once   sync.Once
}

// Read implements net.Conn.
func (c *leasedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
		c.lease.OK()
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.broken.Store(&err)
	}
	return n, err
}

// CloseWrite sends a FIN.
func (c *leasedConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SetLinger makes Close a reset.
func (c *leasedConn) SetLinger(seconds int) error {
	conn := c.Conn
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if l, ok := conn.(interface{ SetLinger(int) error }); ok {
		return l.SetLinger(seconds)
	}
	return nil
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

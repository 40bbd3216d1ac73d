package httppool

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
)

// Conn is a connection to an HTTP/1.1 server: what a pool of this package holds. It belongs to whoever leases it;
// only Close may be called from elsewhere. While idle it holds no buffer.
type Conn struct {
	nc     net.Conn // what requests are written to: raw, or TLS over raw
	raw    *rawConn
	closed atomic.Bool
}

// NewConn makes a Conn of a connected socket and takes it over: with cfg it becomes a TLS client and does the
// handshake within ctx, without it requests are sent in the clear. On an error nc is closed.
func NewConn(ctx context.Context, nc net.Conn, cfg *tls.Config) (*Conn, error) {
	raw := newRawConn(nc)
	if cfg == nil {
		return &Conn{nc: raw, raw: raw}, nil
	}
	tc := tls.Client(raw, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return &Conn{nc: tc, raw: raw}, nil
}

// Dialer opens Conns. The zero value dials plain TCP and Unix sockets.
type Dialer struct {
	// Dial connects to "host:port" or "unix:/path". Nil uses the standard library.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// DialTimeout bounds connecting. 0 = 5s.
	DialTimeout time.Duration
	// TLS makes Open a TLS client. ServerName is taken from the address if empty; ALPN is always "http/1.1".
	TLS *tls.Config
	// TLSTimeout bounds the TLS handshake. 0 = 5s.
	TLSTimeout time.Duration
}

const defaultDialTimeout = 5 * time.Second

// Open connects to address. Its error says which step failed and wraps the cause.
func (d *Dialer) Open(ctx context.Context, address string) (*Conn, error) {
	dial := d.Dial
	if dial == nil {
		dial = netaddr.Dial
	}
	dialCtx, cancel := context.WithTimeout(ctx, orDefault(d.DialTimeout, defaultDialTimeout))
	defer cancel()
	nc, err := dial(dialCtx, address)
	if err != nil {
		return nil, err
	}
	if d.TLS == nil {
		return NewConn(ctx, nc, nil)
	}
	tlsCtx, cancelTLS := context.WithTimeout(ctx, orDefault(d.TLSTimeout, defaultDialTimeout))
	defer cancelTLS()
	return NewConn(tlsCtx, nc, d.config(address))
}

// config is the TLS configuration for address, never the caller's own.
func (d *Dialer) config(address string) *tls.Config {
	cfg := d.TLS.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	if cfg.ServerName == "" {
		if host, _, err := net.SplitHostPort(address); err == nil {
			cfg.ServerName = host
		}
	}
	return cfg
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// Close closes the connection at once. It may be called more than once and while another goroutine reads or writes.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.raw.Conn.Close()
}

// Alive says whether the connection can carry a request: the peer has neither closed it nor sent anything, because a
// byte that nobody asked for would be taken for the next answer. It never blocks. TLS session tickets, which a server
// sends whenever it likes, are read and do not count. Sockets of a kind that cannot be asked (not the operating
// system's, or not on a Unix) are taken to be alive.
func (c *Conn) Alive() bool {
	if c.closed.Load() {
		return false
	}
	if q, ok := c.raw.Conn.(quieter); ok {
		if q.Quiet() {
			return true
		}
		if c.nc == net.Conn(c.raw) {
			return false
		}
		return c.ticket()
	}
	if c.raw.socket == nil || !canPoll {
		return true
	}
	return c.ticket()
}

// quieter is a connection that knows by itself whether anything has arrived on it, such as one of package fiber.
type quieter interface{ Quiet() bool }

// ticket reads what has arrived under TLS; true if it was nothing but TLS's own.
func (c *Conn) ticket() bool {
	c.raw.polling = true
	n, err := c.nc.Read(c.raw.probe[:])
	c.raw.polling = false
	return n == 0 && err == errWouldBlock
}

// NetConn returns the connection that messages are written to and read from: for code that frames them itself. The
// rules of Exchange about what may be released hold for it too.
func (c *Conn) NetConn() net.Conn {
	if c.nc == net.Conn(c.raw) {
		return c.raw.Conn
	}
	return c.nc
}

// rawConn is the socket, under TLS if there is any. It can read without waiting.
type rawConn struct {
	net.Conn
	socket  syscall.RawConn // nil if the connection is not a socket
	control func(fd uintptr)
	polling bool // Read returns errWouldBlock instead of waiting

	probe [1]byte // Alive's buffer
	dst   []byte  // of the read under way
	n     int
	err   error
}

func newRawConn(nc net.Conn) *rawConn {
	c := &rawConn{Conn: nc}
	if sc, ok := nc.(syscall.Conn); ok {
		if socket, err := sc.SyscallConn(); err == nil {
			c.socket = socket
		}
	}
	c.control = func(fd uintptr) { c.n, c.err = pollRead(fd, c.dst) }
	return c
}

// Read waits for bytes unless the connection is being polled.
func (c *rawConn) Read(p []byte) (int, error) {
	if !c.polling {
		return c.Conn.Read(p)
	}
	if q, ok := c.Conn.(quieter); ok {
		if q.Quiet() {
			return 0, errWouldBlock
		}
		return c.Conn.Read(p) // does not wait: something has arrived
	}
	c.dst = p
	err := c.socket.Control(c.control)
	c.dst = nil
	if err != nil {
		return 0, err
	}
	return c.n, c.err
}

// wouldBlock is a net.Error that crypto/tls does not take for the end of the connection.
type wouldBlock struct{}

var errWouldBlock error = wouldBlock{}

var _ net.Error = wouldBlock{}

func (wouldBlock) Error() string   { return "nothing to read yet" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

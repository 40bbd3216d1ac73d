package httppool

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/idleconn"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
)

// Conn is a connection to an HTTP/1.1 server: what a pool of this package holds. It belongs to whoever leases it;
// only Close may be called from elsewhere. While idle it holds no buffer.
type Conn struct {
	link   atomic.Pointer[link]                     // stored by the lease's holder only
	redial func(ctx context.Context) (*link, error) // nil: only whoever connected it knows how
}

// link is a Conn's socket. Reopen gives the Conn another one; what still holds the former, such as the sender of a
// request's body that is slow to notice its end, then works on a closed socket and not on the next request's.
type link struct {
	nc     net.Conn // what requests are written to: raw, or TLS over raw
	raw    net.Conn
	look   *idleconn.Looker // at nc
	opened time.Time
	closed atomic.Bool

	// The lease holder's.
	used  bool      // a request was sent on it
	plain bool      // a socket of the system's, without TLS; see exchange.readPatiently
	armed time.Time // the read deadline that is set, if plain; the zero Time is none
}

// NewConn makes a Conn of a connected socket and takes it over: with cfg it becomes a TLS client and does the
// handshake within ctx, without it requests are sent in the clear. On an error nc is closed. On a fiber nc must be an
// engine's.
func NewConn(ctx context.Context, nc net.Conn, cfg *tls.Config) (*Conn, error) {
	l, err := newLink(ctx, nc, cfg)
	if err != nil {
		return nil, err
	}
	c := &Conn{}
	c.link.Store(l)
	return c, nil
}

// newLink is NewConn without the Conn.
func newLink(ctx context.Context, nc net.Conn, cfg *tls.Config) (*link, error) {
	raw := nc
	if cfg != nil {
		tc := fiber.TLSClient(raw, cfg)
		var err error
		fiber.Block(func() { err = tc.HandshakeContext(ctx) })
		if err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		nc = tc
	}
	return &link{nc: nc, raw: raw, look: idleconn.New(nc), opened: time.Now(), plain: isSocket(nc)}, nil
}

func isSocket(nc net.Conn) bool {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	}
	return false
}

// arm sets the read deadline of a plain link; the zero Time is none.
func (l *link) arm(at time.Time) error {
	if l.armed.Equal(at) {
		return nil
	}
	l.armed = at
	return l.nc.SetReadDeadline(at)
}

// Dialer opens Conns. The zero value dials plain TCP and Unix sockets.
type Dialer struct {
	// Dial connects to "host:port" or "unix:/path". Nil uses the standard library.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// DialTimeout bounds connecting. 0 = 5s.
	DialTimeout time.Duration
	// TLS makes Open a TLS client. ServerName is taken from the address if empty; ALPN is always "http/1.1". Sessions
	// are resumed: without a ClientSessionCache the Dialer keeps its own, except with VerifyPeerCertificate, which is
	// not called for resumed ones, or with SessionTicketsDisabled.
	TLS *tls.Config
	// TLSTimeout bounds the TLS handshake. 0 = 5s.
	TLSTimeout time.Duration

	prepare sync.Once
	secure  *tls.Config // TLS with ALPN and sessions
}

const defaultDialTimeout = 5 * time.Second

// Open connects to address. Its error says which step failed and wraps the cause.
func (d *Dialer) Open(ctx context.Context, address string) (*Conn, error) {
	l, err := d.open(ctx, address)
	if err != nil {
		return nil, err
	}
	c := &Conn{redial: func(ctx context.Context) (*link, error) { return d.open(ctx, address) }}
	c.link.Store(l)
	return c, nil
}

func (d *Dialer) open(ctx context.Context, address string) (*link, error) {
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
		return newLink(ctx, nc, nil)
	}
	tlsCtx, cancelTLS := context.WithTimeout(ctx, orDefault(d.TLSTimeout, defaultDialTimeout))
	defer cancelTLS()
	return newLink(tlsCtx, nc, d.config(address))
}

// config is the TLS configuration for address, never the caller's own.
func (d *Dialer) config(address string) *tls.Config {
	d.prepare.Do(func() {
		d.secure = tlsclient.WithSessions(d.TLS).Clone()
		d.secure.NextProtos = []string{"http/1.1"}
	})
	return tlsclient.For(d.secure, address)
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// Close closes the connection at once. It may be called more than once and while another goroutine reads or writes.
func (c *Conn) Close() error { return c.link.Load().close() }

func (l *link) close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.raw.Close()
}

// Alive says whether the connection can carry a request: the peer has neither closed it nor sent anything, because a
// byte that nobody asked for would be taken for the next answer. It never blocks. TLS's own messages, such as session
// tickets, which a server sends whenever it likes, are read and do not count. Sockets of a kind that cannot be asked
// (not the operating system's, or not on a Unix) are taken to be alive.
func (c *Conn) Alive() bool { return c.link.Load().alive() }

func (l *link) alive() bool {
	if l.closed.Load() {
		return false
	}
	state := l.look.Look()
	return state == idleconn.Silent || state == idleconn.Unknown
}

// NetConn returns the connection that messages are written to and read from: for code that frames them itself. It is
// what was connected, or a *fiber.TLSConn. The rules of Lease about what may be released hold for it too. After Reopen
// it is another one.
func (c *Conn) NetConn() net.Conn { return c.link.Load().nc }

// Use notes that a request that began at that time is about to be sent, and reports whether the connection may be
// stale: it was idle before, after another request or since it was opened ahead of need, so that the server may be
// closing it just now. If it then ends before a byte of the answer comes, that is not the endpoint's failure, and Reopen
// gives the request a connection that is not stale.
func (c *Conn) Use(began time.Time) (idled bool) {
	l := c.link.Load()
	_ = l.arm(time.Time{}) // NetConn's user has deadlines of its own; a closed connection shows in its use
	return l.use(began)
}

func (l *link) use(began time.Time) (idled bool) {
	idled = l.used || l.opened.Before(began)
	l.used = true
	return idled
}

// ErrNotReopened: a Conn made by NewConn does not know how to connect.
var ErrNotReopened = errors.New("the connection cannot be opened again")

// Reopen closes the connection and opens another to the same server, under the same lease: a place in the pool is
// taken once, and what is idle in the pool, which may be as stale, is not tried. It may take as long as Dialer.Open; fibers of the
// same loop go on. After an error, which is Open's or ErrNotReopened, the Conn is closed.
func (c *Conn) Reopen(ctx context.Context) error {
	_ = c.Close()
	if c.redial == nil {
		return ErrNotReopened
	}
	var l *link
	var err error
	fiber.Block(func() { l, err = c.redial(ctx) }) // Dialer.Dial may wait
	if err != nil {
		return err
	}
	c.link.Store(l)
	return nil
}

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
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
)

// Conn is a connection to an HTTP/1.1 server, the resource of this package's pools. It belongs to the lease's holder;
// only Close and Interrupt may be called from elsewhere. While idle it holds no buffer.
type Conn struct {
	link        atomic.Pointer[Link]                     // stored by the lease's holder only
	redial      func(ctx context.Context) (*Link, error) // nil after NewConn
	interrupted atomic.Bool
}

// Link is a Conn's socket. Reopen gives the Conn another one. Code that still uses the former, such as a slow uploader,
// then works on a closed socket and not on the next request's. A Link belongs to the code that opened it, and after
// OpenConn to the Conn.
type Link struct {
	nc     fiber.Stream // requests are written to it: raw, or TLS over raw
	raw    fiber.Stream
	opened time.Time
	closed atomic.Bool

	// The lease holder's.
	used  bool         // a request was sent on it
	plain bool         // an operating system's socket, without TLS; see exchange.readLazily
	armed time.Time    // the read deadline that is set, if plain; zero = none
	asker *fiber.Asker // if plain and supported; else nil
}

// NewConn makes a Conn of a connected socket, which it takes over. With cfg it does a TLS handshake as a client within
// ctx. On an error nc is closed. On a fiber nc must be an engine's connection.
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
func newLink(ctx context.Context, nc net.Conn, cfg *tls.Config) (*Link, error) {
	l := &Link{raw: fiber.StreamOf(nc), opened: time.Now(), plain: cfg == nil && isSocket(nc)}
	l.nc = l.raw
	if l.plain {
		l.asker = fiber.NewAsker(l.raw)
	}
	if cfg != nil {
		tc := fiber.TLSClient(l.raw, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = nc.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		l.nc, l.opened = tc, time.Now()
	}
	return l, nil
}

// NewLink makes a Link of a stream that carries HTTP/1.1 requests one after the other, such as a place on a shared
// connection. opened is when that connection was opened; see Conn.Use. The stream's Sent reports whether a request may be
// sent again.
func NewLink(s fiber.Stream, opened time.Time) *Link {
	return &Link{nc: s, raw: s, opened: opened}
}

// NetConn returns the stream that messages are written to; see Conn.NetConn.
func (l *Link) NetConn() fiber.Stream { return l.nc }

// Close closes the stream at once.
func (l *Link) Close() error { return l.close() }

// OpenConn makes a Conn of the Link that open returns. Conn.Reopen calls open again. The Conn is nil after an error.
func OpenConn(ctx context.Context, open func(ctx context.Context) (*Link, error)) (*Conn, error) {
	l, err := open(ctx)
	if err != nil {
		return nil, err
	}
	c := &Conn{redial: open}
	c.link.Store(l)
	return c, nil
}

func isSocket(nc net.Conn) bool {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	}
	return false
}

// arm sets the read deadline of a plain link; zero = none.
func (l *Link) arm(at time.Time) error {
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
	// TLS makes Open a TLS client. An empty ServerName is taken from the address; NextProtos is replaced by ALPN. Sessions are
	// resumed: without a ClientSessionCache the Dialer keeps its own, except with VerifyPeerCertificate, which is not called
	// for resumed sessions, or with SessionTicketsDisabled.
	TLS *tls.Config
	// ALPN are the protocols offered in TLS. Nil = "http/1.1".
	ALPN []string
	// TLSTimeout bounds the TLS handshake. 0 = 5s.
	TLSTimeout time.Duration

	prepare sync.Once
	secure  *tls.Config // TLS with ALPN and sessions
}

const defaultDialTimeout = 5 * time.Second

// Open connects to address. Its error says which step failed and wraps the cause.
func (d *Dialer) Open(ctx context.Context, address string) (*Conn, error) {
	return OpenConn(ctx, func(ctx context.Context) (*Link, error) { return d.Link(ctx, address) })
}

// Link is Open for callers that make the Conn with OpenConn.
func (d *Dialer) Link(ctx context.Context, address string) (*Link, error) {
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

// config returns the TLS configuration for address, never the caller's own.
func (d *Dialer) config(address string) *tls.Config {
	d.prepare.Do(func() {
		d.secure = tlsclient.WithSessions(d.TLS).Clone()
		if d.secure.NextProtos = d.ALPN; d.ALPN == nil {
			d.secure.NextProtos = []string{"http/1.1"}
		}
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

// Interrupt closes the connection for good: Reopen does not open it again. It is for an endpoint that must no longer be
// used.
func (c *Conn) Interrupt() {
	c.interrupted.Store(true)
	_ = c.Close()
}

func (l *Link) close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.raw.Close()
}

// Alive reports whether the connection can carry a request: the peer has neither closed it nor sent an unexpected byte,
// which would be taken for the next answer. It never blocks. TLS's own messages, such as session tickets, are read and do
// not count. Sockets that cannot be examined (not the operating system's, or not on a Unix) count as alive.
func (c *Conn) Alive() bool { return c.link.Load().alive() }

func (l *Link) alive() bool {
	return !l.closed.Load() && l.nc.State().Idle()
}

// NetConn returns the connection that messages are written to and read from, for code that frames them itself. It is the
// dialled connection, as returned by fiber.StreamOf, or a *fiber.TLSConn over it. The rules of Lease about releasing
// apply. Reopen replaces it.
func (c *Conn) NetConn() fiber.Stream { return c.link.Load().nc }

// Use records that a request that began at the given time is about to be sent, and reports whether the connection may be
// stale: it was idle before, after another request or since it was opened ahead of demand, so the server may be closing
// it. If such a connection ends before a byte of the answer arrives, that is not a failure of the endpoint, and Reopen
// gives the request a fresh connection.
func (c *Conn) Use(began time.Time) (idled bool) {
	l := c.link.Load()
	_ = l.arm(time.Time{}) // NetConn's user sets its own deadlines, and notices a closed connection
	return l.use(began)
}

func (l *Link) use(began time.Time) (idled bool) {
	idled = l.used || l.opened.Before(began)
	l.used = true
	if idled {
		l.nc.MarkSent()
	}
	return idled
}

// Unsent reports that no byte written since Use has left the process, or will; n is the number of bytes written without an
// error. Call it after Close: if Use reported a stale connection, any request can then be sent again, even if it is not
// idempotent.
func (c *Conn) Unsent(n int) bool { return c.link.Load().unsent(n) }

func (l *Link) unsent(n int) bool { return n == 0 || !l.nc.Sent() }

// ErrNotReopened: a Conn made by NewConn cannot be dialled again, and an interrupted one must not be.
var ErrNotReopened = errors.New("the connection cannot be opened again")

// Reopen closes the connection and opens another to the same server, under the same lease: the request keeps its slot in
// the pool, and does not try idle connections, which may be stale too. It may take as long as Dialer.Open; other fibers of
// the loop keep running. After an error, which is Open's or ErrNotReopened, the Conn is closed.
func (c *Conn) Reopen(ctx context.Context) error {
	_ = c.Close()
	if c.redial == nil || c.interrupted.Load() {
		return ErrNotReopened
	}
	var l *Link
	var err error
	fiber.Block(func() { l, err = c.redial(ctx) }) // Dialer.Dial may wait
	if err != nil {
		return err
	}
	c.link.Store(l)
	if c.interrupted.Load() { // Interrupt was called while there was nothing to close
		_ = l.close()
		return ErrNotReopened
	}
	return nil
}

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

// Link is a Conn's socket. Reopen gives the Conn another one, so that code that still holds the
// former, such as an uploader that is slow to notice its end, works on a closed socket and not on the
// next request's. A Link belongs to the Conn that OpenConn makes of it, and before to the code that
// opened it.
type Link struct {
	nc     fiber.Stream // requests are written to it: raw, or TLS over raw
	raw    fiber.Stream
	opened time.Time
	closed atomic.Bool

	// The lease holder's.
	used  bool         // a request was sent on it
	plain bool         // an operating system's socket, without TLS; see exchange.readLazily
	armed time.Time    // the read deadline that is set, if plain; the zero Time is none
	asker *fiber.Asker // if plain; nil where there is none
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

// NewLink makes a Link of a stream that carries HTTP/1.1 requests one after the other, such as a place
// on a connection that several users share. opened is when that connection was opened; see Conn.Use.
// The stream's Sent reports whether a request may be sent again.
func NewLink(s fiber.Stream, opened time.Time) *Link {
	return &Link{nc: s, raw: s, opened: opened}
}

// NetConn returns the stream that messages are written to; see Conn.NetConn.
func (l *Link) NetConn() fiber.Stream { return l.nc }

// Close closes it at once.
func (l *Link) Close() error { return l.close() }

// OpenConn makes a Conn of the Link that open returns. Conn.Reopen calls open again. After an error
// there is no Conn.
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

// arm sets the read deadline of a plain link; the zero Time is none.
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
	// TLS makes Open a TLS client. ServerName is taken from the address if empty; its NextProtos are those of ALPN. Sessions
	// are resumed: without a ClientSessionCache the Dialer keeps its own, except with VerifyPeerCertificate, which is
	// not called for resumed ones, or with SessionTicketsDisabled.
	TLS *tls.Config
	// ALPN are the protocols that are offered in TLS. Nil = "http/1.1".
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

// Link is Open for code that makes the Conn itself, with OpenConn.
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

// config is the TLS configuration for address, never the caller's own.
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

// Interrupt closes the connection for good: Reopen does not open it again. It is for an endpoint that
// must not be used any more.
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
// which the next request would take for its answer. It never blocks. TLS's own messages, such as session tickets, are
// read and do not count. Sockets that cannot be examined (not the operating system's, or not on a Unix) count as alive.
func (c *Conn) Alive() bool { return c.link.Load().alive() }

func (l *Link) alive() bool {
	return !l.closed.Load() && l.nc.State().Idle()
}

// NetConn returns the connection that messages are written to and read from, for code that frames them itself. It is
// the dialled connection, as fiber.StreamOf has it, or a *fiber.TLSConn over it. The rules of Lease about releasing apply. After Reopen it is
// another one.
func (c *Conn) NetConn() fiber.Stream { return c.link.Load().nc }

// Use records that a request that began at the given time is about to be sent, and reports whether the connection may be
// stale: it was idle before, after another request or since it was opened ahead of demand, so that the server may be
// closing it just now. If the connection then ends before a byte of the answer comes, that is no failure of the endpoint,
// and Reopen gives the request a connection that is not stale.
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

// Unsent reports that no byte written since Use has left the process, or will; n is the number of bytes that were written
// without an error. It is for after Close: if Use reported that the connection may be stale, any request, also one that is
// not idempotent, can then be sent again.
func (c *Conn) Unsent(n int) bool { return c.link.Load().unsent(n) }

func (l *Link) unsent(n int) bool { return n == 0 || !l.nc.Sent() }

// ErrNotReopened: a Conn made by NewConn does not know how to connect, and an interrupted one must not.
var ErrNotReopened = errors.New("the connection cannot be opened again")

// Reopen closes the connection and opens another to the same server, under the same lease: the request keeps its slot in
// the pool, and idle connections, which may be stale too, are not tried. It may take as long as Dialer.Open; other fibers
// of the loop keep running. After an error, which is Open's or ErrNotReopened, the Conn is closed.
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
	if c.interrupted.Load() { // meanwhile, when there was nothing to close
		_ = l.close()
		return ErrNotReopened
	}
	return nil
}

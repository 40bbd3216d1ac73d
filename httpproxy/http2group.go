package httpproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool/httppool"
)

// Protocol is the version of HTTP that is used with an upstream's servers.
type Protocol string

// The protocols.
const (
	// ProtocolH1 is HTTP/1.1, the default.
	ProtocolH1 Protocol = "h1"
	// ProtocolH2 is HTTP/2 over TLS. A server that does not choose it by ALPN cannot be used.
	ProtocolH2 Protocol = "h2"
	// ProtocolH2C is HTTP/2 without TLS, with prior knowledge: the server must support it.
	ProtocolH2C Protocol = "h2c"
	// ProtocolAuto is HTTP/2 or HTTP/1.1, as each server chooses by ALPN. It needs TLS.
	ProtocolAuto Protocol = "auto"
)

// Values returns all protocols: the values allowed in a configuration file.
func (Protocol) Values() []string { return []string{"h1", "h2", "h2c", "auto"} }

// Multiplexes reports whether a connection may carry several requests at a time.
func (p Protocol) Multiplexes() bool { return p != "" && p != ProtocolH1 }

// Defaults of UpstreamOptions for HTTP/2, for fields that are zero.
const (
	// DefaultMaxConnStreams is what common servers allow, or less.
	DefaultMaxConnStreams = 100
	// DefaultPingAfter finds a dead connection within a minute. gRPC servers allow a single PING at that rate, but not a
	// series: see pingGap.
	DefaultPingAfter = 30 * time.Second
)

// verifyProtocol checks the options that concern HTTP/2.
func (o *UpstreamOptions) verifyProtocol() error {
	switch o.Protocol {
	case "", ProtocolH1:
	case ProtocolH2, ProtocolAuto:
		if o.TLS == nil {
			return fmt.Errorf("%w: the protocol %s is chosen by ALPN, which needs TLS; without TLS it is %s or %s", ErrConfig, o.Protocol, ProtocolH2C, ProtocolH1)
		}
	case ProtocolH2C:
		if o.TLS != nil {
			return fmt.Errorf("%w: the protocol h2c is HTTP/2 without TLS; with TLS it is %s or %s", ErrConfig, ProtocolH2, ProtocolAuto)
		}
	default:
		return fmt.Errorf("%w: there is no protocol %q", ErrConfig, o.Protocol)
	}
	if o.MaxConnStreams < 0 || o.PingAfter < 0 {
		return fmt.Errorf("%w: MaxConnStreams and PingAfter must not be negative", ErrConfig)
	}
	return nil
}

// opener opens what an upstream's pools lease. It is safe for concurrent use.
type opener struct {
	dialer          *httppool.Dialer
	plain           *httppool.Dialer // of HTTP/1.1, see withoutHTTP2
	protocol        Protocol
	scheme          byte // of all requests, as HPACK encodes it
	most            int  // streams on a connection
	pings           time.Duration
	settingsTimeout time.Duration // with a server that sends no SETTINGS
	logger          *slog.Logger
	lifetime        time.Duration // how long a connection takes new streams; 0 = no limit

	mu     sync.Mutex          // held for a few instructions
	groups map[string]*h2Group // by endpoint
}

// defaultConnectTimeout is httppool.Dialer's.
const defaultConnectTimeout = 5 * time.Second

func newOpener(o *UpstreamOptions) *opener {
	newDialer := func() *httppool.Dialer {
		return &httppool.Dialer{Dial: o.Dial, DialTimeout: o.ConnectTimeout, TLSTimeout: o.ConnectTimeout, TLS: o.TLS}
	}
	d := newDialer()
	switch o.Protocol {
	case ProtocolH2:
		d.ALPN = []string{"h2"}
	case ProtocolAuto:
		d.ALPN = []string{"h2", "http/1.1"}
	}
	scheme := byte(schemeHTTP)
	if o.TLS != nil {
		scheme = schemeHTTPS
	}
	return &opener{
		dialer: d, plain: newDialer(), protocol: o.Protocol, scheme: scheme, groups: map[string]*h2Group{}, lifetime: o.Limits.MaxLifetime,
		most: cmp.Or(o.MaxConnStreams, DefaultMaxConnStreams), pings: cmp.Or(o.PingAfter, DefaultPingAfter),
		settingsTimeout: cmp.Or(o.ConnectTimeout, defaultConnectTimeout), logger: cmp.Or(o.Logger, slog.Default()),
	}
}

// open opens a connection, or takes a place on an open one.
func (o *opener) open(ctx context.Context, endpoint string) (*httppool.Conn, error) {
	if !o.protocol.Multiplexes() {
		return o.dialer.Open(ctx, endpoint)
	}
	return httppool.OpenConn(ctx, func(ctx context.Context) (*httppool.Link, error) {
		if ctx.Value(withoutHTTP2{}) != nil {
			return o.plain.Link(ctx, endpoint)
		}
		g := o.group(endpoint)
		defer o.forgetUnused(g)
		return g.link(ctx)
	})
}

// withoutHTTP2 is the key of a context in which connections of HTTP/1.1 are opened: for an upgrade.
type withoutHTTP2 struct{}

// group returns the group of an endpoint and counts the caller as a user.
func (o *opener) group(endpoint string) *h2Group {
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.groups[endpoint]
	if g == nil {
		g = &h2Group{o: o, endpoint: endpoint}
		o.groups[endpoint] = g
	}
	g.users++
	return g
}

// forgetUnused removes a group that has neither users nor connections.
func (o *opener) forgetUnused(g *h2Group) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g.users--; g.users == 0 && g.empty() {
		delete(o.groups, g.endpoint)
	}
}

// h2Group is the set of HTTP/2 connections to one endpoint. Each connection counts as a user.
type h2Group struct {
	o        *opener
	endpoint string
	users    int // guarded by o.mu

	mu      sync.Mutex // held for a few instructions; a connection's is locked within it
	conns   []*h2Server
	dials   []*h2Dial // under way
	alone   bool      // the server chose HTTP/1.1: connections are not shared
	streams int       // the limit of streams of its last connection
}

// h2Dial is a connection attempt. The first caller that needs the connection makes it; others wait for a place. It is
// guarded by the group's mu.
type h2Dial struct {
	room    int // places for others, by the stream limit of the server's last connection
	waiters []*h2DialWaiter
}

// h2DialWaiter waits for an h2Dial, or for the end of its context.
type h2DialWaiter struct {
	woken fiber.Group
	d     *h2Dial
	done  bool  // guarded by the group's mu
	err   error // why there is no connection; nil = there may be one; read once over is done
}

// end wakes the waiter. The group's mu is held.
func (w *h2DialWaiter) end(err error) {
	if !w.done {
		w.done, w.err = true, err
		w.woken.Done()
	}
}

func (g *h2Group) empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns) == 0
}

// link returns a place on a connection with capacity, or on a new connection.
func (g *h2Group) link(ctx context.Context) (*httppool.Link, error) {
	for {
		l, mine, w := g.takePlace()
		switch {
		case l != nil:
			return l, nil
		case mine != nil:
			return g.dialFor(ctx, mine)
		case w == nil:
			return g.dial(ctx)
		}
		if err := g.await(ctx, w); err != nil {
			return nil, err
		}
	}
}

// await waits for another caller's attempt.
func (g *h2Group) await(ctx context.Context, w *h2DialWaiter) error {
	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !w.done {
			w.d.room++
			w.end(context.Cause(ctx))
		}
	})
	defer stop()
	w.woken.Wait()
	return w.err
}

// takePlace returns a place if there is one, or else what to wait for: an attempt that the caller makes (mine), or a waiter for
// another's. If it returns none of these, the caller needs its own connection.
func (g *h2Group) takePlace() (l *httppool.Link, mine *h2Dial, w *h2DialWaiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		if p := c.attach(); p != nil {
			return httppool.NewLink(p, c.opened), nil, nil
		}
	}
	if g.alone {
		return nil, nil, nil
	}
	for _, d := range g.dials {
		if len(d.waiters) < d.room {
			w = &h2DialWaiter{d: d}
			w.woken.Add(1)
			d.waiters = append(d.waiters, w)
			return nil, nil, w
		}
	}
	mine = &h2Dial{room: cmp.Or(g.streams, g.o.most) - 1}
	g.dials = append(g.dials, mine)
	return nil, mine, nil
}

// dialFor makes the attempt d. If the caller's context ends meanwhile, the waiters look for another.
func (g *h2Group) dialFor(ctx context.Context, d *h2Dial) (l *httppool.Link, err error) {
	err = errPanicked
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.dials = slices.DeleteFunc(g.dials, func(o *h2Dial) bool { return o == d })
		for _, w := range d.waiters {
			if ctx.Err() == nil {
				w.end(err)
			} else {
				w.end(nil)
			}
		}
	}()
	return g.dial(ctx)
}

// maxGoAways is how many connections are opened for one place if the server sends GOAWAY on each at once.
const maxGoAways = 3

// dial opens a connection.
func (g *h2Group) dial(ctx context.Context) (l *httppool.Link, err error) {
	for range maxGoAways {
		if l, err = g.dialOnce(ctx); !errors.Is(err, errNotBegun) {
			break
		}
	}
	return l, err
}

func (g *h2Group) dialOnce(ctx context.Context) (*httppool.Link, error) {
	raw, err := g.o.dialer.Link(ctx, g.endpoint)
	if err != nil {
		return nil, err
	}
	chosen := g.o.protocol == ProtocolH2C || negotiated(raw) == "h2"
	if !chosen && g.o.protocol == ProtocolH2 {
		_ = raw.Close()
		return nil, errNoALPN
	}
	g.mu.Lock()
	g.alone = !chosen
	g.mu.Unlock()
	if !chosen {
		return raw, nil
	}
	c := newH2Server(g, raw)
	p, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	g.streams = c.takes()
	g.mu.Unlock()
	return httppool.NewLink(p, c.opened), nil
}

var (
	errNoALPN  = errors.New("the server does not choose HTTP/2 by ALPN: let it offer h2, or set protocol to auto or h1")
	errNoPlace = errors.New("the server takes no request on a new HTTP/2 connection")
)

// negotiated returns the protocol chosen by ALPN.
func negotiated(l *httppool.Link) string {
	if c, ok := l.NetConn().(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().NegotiatedProtocol
	}
	return ""
}

// add and remove keep the list of connections.
func (g *h2Group) add(c *h2Server) {
	g.o.mu.Lock()
	g.users++
	g.o.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, c)
}

func (g *h2Group) remove(c *h2Server) {
	g.mu.Lock()
	for i := range g.conns {
		if g.conns[i] == c {
			g.conns = append(g.conns[:i:i], g.conns[i+1:]...)
			break
		}
	}
	g.mu.Unlock()
	g.o.forgetUnused(g)
}

package tcpproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// Defaults, used where a field is zero.
const (
	DefaultIdleTimeout    = time.Hour
	DefaultConnectTimeout = 10 * time.Second
	// DefaultOpenTimeout bounds one attempt to connect to an endpoint. It is half of DefaultConnectTimeout, so that
	// there is time to try another endpoint.
	DefaultOpenTimeout = 5 * time.Second
	// DefaultWarmAge is how long a connection waits for its client before it is
	// replaced: servers close silent connections, kube-apiserver after 32 s.
	DefaultWarmAge = 20 * time.Second
	// DefaultMaxSize is the number of connections to one endpoint: as many as a
	// listener has clients by default.
	DefaultMaxSize = listener.DefaultMaxConns
	// DefaultOpenConcurrency is how many connections to one endpoint may be opened at once. With the 16 of package pool,
	// an endpoint that is 50 ms away would get 320 sessions a second.
	DefaultOpenConcurrency = 256
)

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("tcpproxy: invalid configuration")

// Config describes a Proxy. Upstream is required unless there are Routes. The Proxy does not close or drain upstreams.
type Config struct {
	Listener listener.Config
	// Upstream provides connections that were never used; see NewUpstream. The Proxy discards each connection after its
	// use. With the balance RingHash the key is the client's IP address.
	Upstream *upstream.Upstream[net.Conn]
	// Routes choose an upstream by the client's TLS ClientHello. Upstream takes the clients without a matching route,
	// and those without TLS. Unless Config.TLS is set, the client's bytes pass unchanged, so that its TLS connection is
	// with the server. A client without a target gets the alert unrecognized_name. A client that does not send a whole
	// ClientHello of at most 16 KiB within ConnectTimeout is reset, so Routes exclude protocols in which the server
	// speaks first.
	Routes []Route
	// IdleTimeout ends a session in which no byte has moved in either direction for that long, or up to a quarter
	// longer; 0 = DefaultIdleTimeout, negative = never. A byte moves when the kernel accepts it for sending and, on
	// Linux, when the receiver's system acknowledges it, so that a slow receiver does not count as idle as long as it
	// reads something within the time-out. This and all time-outs below reset both connections, so that a partial
	// answer does not look complete.
	IdleTimeout time.Duration
	// ClientIdleTimeout ends a session in which nothing has moved from the client to the server for that long, or up to
	// a quarter longer, unless the client has ended its stream. ServerIdleTimeout is the same for the other direction.
	// 0 = never.
	ClientIdleTimeout, ServerIdleTimeout time.Duration
	// ClientFINTimeout ends a session whose client has ended its stream (a FIN) and has received nothing for that long,
	// or up to a quarter longer; 0 = never. A client that has given up looks the same as one that waits for the answer
	// to all it has sent.
	ClientFINTimeout time.Duration
	// StallTimeout ends a session whose client has sent something and received nothing for that long, or up to an
	// eighth longer; 0 = never. It is for protocols in which servers answer; an upload whose server sends nothing until
	// the end of the upload counts as stalled, too.
	StallTimeout time.Duration
	// DrainStagger is the last part of a Drain, at most half of it, in which the remaining sessions are cut off one
	// after the other, so that their clients do not all reconnect at once. 0 = all at the end.
	DrainStagger time.Duration
	// ConnectTimeout bounds the wait for a ready upstream connection, and the TLS handshake with the client; 0 =
	// DefaultConnectTimeout. While it waits, a client that resets its connection, or closes it without having sent a
	// byte, is dropped within about two seconds. A client that closes after sending may want the answer, and keeps its
	// place until the time-out.
	ConnectTimeout time.Duration
	// NoRetry ends a session whose endpoint closes or breaks the connection before it has sent a byte. Otherwise the
	// session moves to another endpoint that is in, if what the client has sent can be sent twice: nothing, or all or
	// part of a TLS ClientHello in one record and without early data. If the server ends its stream before the client
	// has sent anything, that end is passed on, because the server may only want to read. A session moves at most
	// twice, and only within ConnectTimeout of its first connection; it does not move if the Proxy speaks TLS to either
	// side. When more than ten sessions, and more than 20 percent, have had this failure in the last twenty seconds,
	// further sessions do not move.
	NoRetry bool
	// SendProxy sends the client's addresses ahead of the data, in a PROXY protocol header of version 1 or 2; 0 = none.
	SendProxy int
	// TLS terminates TLS from clients; nil = none. Its GetConfigForClient may return other settings for each name, but
	// all names share the session ticket keys unless these settings have their own. VerifyPeerCertificate is not called
	// for resumed sessions: use VerifyConnection.
	TLS *tls.Config
	// UpstreamTLS speaks TLS to the endpoints, after the PROXY header; nil = none. Without a ServerName the endpoint's
	// host is used. Sessions are resumed: without a ClientSessionCache the Proxy keeps a cache of its own, unless
	// VerifyPeerCertificate is set, which is not called for resumed sessions.
	UpstreamTLS *tls.Config
}

// Verify reports every problem of c, joined; each wraps ErrConfig or
// listener.ErrConfig.
func (c Config) Verify() error {
	errs := []error{c.Listener.Verify()}
	for i := range c.Routes {
		if err := c.Routes[i].verify(); err != nil {
			errs = append(errs, fmt.Errorf("%w: listener %q: route %d: %w", ErrConfig, c.Listener.Name, i+1, err))
		}
	}
	if c.Upstream == nil && len(c.Routes) == 0 {
		errs = append(errs, fmt.Errorf("%w: listener %q: Upstream is missing", ErrConfig, c.Listener.Name))
	}
	if c.ConnectTimeout < 0 {
		errs = append(errs, fmt.Errorf("%w: listener %q: ConnectTimeout %v is negative", ErrConfig, c.Listener.Name, c.ConnectTimeout))
	}
	if min(c.StallTimeout, c.DrainStagger, c.ClientIdleTimeout, c.ServerIdleTimeout, c.ClientFINTimeout) < 0 {
		errs = append(errs, fmt.Errorf("%w: listener %q: StallTimeout, DrainStagger, ClientIdleTimeout, ServerIdleTimeout and ClientFINTimeout must not be negative",
			ErrConfig, c.Listener.Name))
	}
	if c.SendProxy < 0 || c.SendProxy > 2 {
		errs = append(errs, fmt.Errorf("%w: listener %q: SendProxy is %d, want 0 (off), 1 or 2", ErrConfig, c.Listener.Name, c.SendProxy))
	}
	return errors.Join(errs...)
}

// listener returns the listener's settings. With TLS or Routes the client speaks first.
func (c Config) listener() listener.Config {
	l := c.Listener
	l.ClientFirst = l.ClientFirst || c.TLS != nil || len(c.Routes) > 0
	return l
}

func (c Config) withDefaults() *settings {
	c.IdleTimeout = cmp.Or(c.IdleTimeout, DefaultIdleTimeout)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, DefaultConnectTimeout)
	c.UpstreamTLS = tlsclient.WithSessions(c.UpstreamTLS)
	return c.prepare()
}

// UpstreamOptions are the settings of NewUpstream; the zero value is usable.
type UpstreamOptions struct {
	// Settings: Limits.MinIdle is the number of connections kept ready for each
	// endpoint, and Limits.MaxWarm how many that may become as more clients arrive; the defaults of WarmLimits apply.
	upstream.Settings
	// Dial connects to "host:port" or "unix:/path"; nil uses package net.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// DialFrom, unless nil, connects each session as its client: from the client's IP address, when the client is known. Nothing can
	// be kept ready then, so Limits.MinIdle and MaxWarm must be 0. Dial is used to find out whether an endpoint that failed works
	// again. A client without an IP address gets no connection. Failures to connect count against the endpoint only if it refuses.
	DialFrom DialFromFunc
	// Go starts a Dial; see pool.Config. Use fiber.Go if Dial is an engine's: a Dial on a fiber costs no trip to the
	// loop, but must not block.
	Go     func(fn func())
	Logger *slog.Logger
}

// NewUpstream returns an upstream of plain connections for a Proxy. It keeps unused connections ready, and replaces
// them as they age and, with CheckInterval, when the server has closed them. The caller must Close or Drain it.
func NewUpstream(name string, o UpstreamOptions) (*upstream.Upstream[net.Conn], error) {
	o.Limits = WarmLimits(o.Limits)
	var try func(context.Context, string) error
	if o.DialFrom != nil {
		if o.Limits.MaxWarm > 0 {
			return nil, fmt.Errorf("%w: upstream %q: with DialFrom, MinIdle and MaxWarm must be 0", ErrConfig, name)
		}
		try = o.try
	}
	return upstream.New(upstream.Config[net.Conn]{
		Name:      name,
		Settings:  o.Settings,
		Open:      o.openWarm,
		Go:        o.Go,
		Affinity:  fiber.LoopOf,
		Check:     checkWarm,
		Try:       try,
		Close:     func(c net.Conn) { _ = c.Close() },
		Interrupt: interrupt,
		Heard:     heard,
		Logger:    o.Logger,
	})
}

// WarmLimits returns l with defaults for connections that are used once: MaxSize DefaultMaxSize, MaxLifetime (the age
// of an unused connection, not of one in use) DefaultWarmAge, OpenTimeout DefaultOpenTimeout, OpenConcurrency
// DefaultOpenConcurrency, and MaxWarm, unless MinIdle is 0, DefaultMaxWarm. Pass its result to Upstream.Update.
func WarmLimits(l pool.Limits) pool.Limits {
	l.MaxSize = cmp.Or(l.MaxSize, max(DefaultMaxSize, l.MinIdle))
	l.MaxLifetime = cmp.Or(l.MaxLifetime, DefaultWarmAge)
	l.OpenTimeout = cmp.Or(l.OpenTimeout, DefaultOpenTimeout)
	l.OpenConcurrency = cmp.Or(l.OpenConcurrency, DefaultOpenConcurrency)
	if l.MaxWarm == 0 {
		l.MaxWarm = max(min(DefaultMaxWarm(l.MinIdle), cmp.Or(l.MaxIdle, l.MaxSize)), l.MinIdle)
	}
	return l
}

// DefaultMaxWarm is how many connections to one endpoint are kept ready at most where minIdle are kept at least: four
// times as many, and not less than 32; 0 for 0.
func DefaultMaxWarm(minIdle int) int {
	if minIdle == 0 {
		return 0
	}
	return max(4*minIdle, 32)
}

// warmConn remembers when a connection was opened.
type warmConn struct {
	fiber.Stream
	opened time.Time             // by fiber.Now
	relay  atomic.Pointer[relay] // relay that uses the connection; nil = none yet
	out    atomic.Pointer[error] // why interrupt has closed the connection before it had a relay; nil = it has not
}

// use records the relay that is about to use the connection. If the connection was interrupted before, it interrupts the relay.
func (w *warmConn) use(r *relay) {
	w.relay.Store(r)
	if why := w.out.Load(); why != nil {
		r.endpointOut(*why)
	}
}

// interrupt ends the session that uses a connection. A session that is still preparing the connection, or has received
// nothing on it, moves to another endpoint.
func interrupt(c net.Conn, why error) {
	if w, ok := c.(*warmConn); ok {
		w.out.Store(&why) // first: use looks in the other order
		if r := w.relay.Load(); r != nil {
			r.endpointOut(why)
			return
		}
	}
	_ = c.Close()
}

// heard reports whether the session that uses a connection has received something on it since the last call.
func heard(c net.Conn) bool {
	w, ok := c.(*warmConn)
	if !ok {
		return false
	}
	r := w.relay.Load()
	return r != nil && r.heard()
}

// try tests an endpoint without a client.
func (o *UpstreamOptions) try(ctx context.Context, endpoint string) error {
	c, err := o.dial(ctx, endpoint)
	if err == nil {
		_ = c.Close()
	}
	return err
}

func (o *UpstreamOptions) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	if o.Dial == nil {
		return netaddr.Dial(ctx, endpoint)
	}
	return o.Dial(ctx, endpoint)
}

func (o *UpstreamOptions) openWarm(ctx context.Context, endpoint string) (net.Conn, error) {
	if o.DialFrom != nil {
		return &warmConn{Stream: newPlace(o.DialFrom), opened: fiber.Now()}, nil
	}
	c, err := o.dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	return &warmConn{Stream: fiber.StreamOf(c), opened: fiber.Now()}, nil
}

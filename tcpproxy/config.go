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
	// DefaultOpenTimeout bounds one attempt to connect to an endpoint: half of
	// DefaultConnectTimeout, so that there is time for another endpoint when
	// one does not answer.
	DefaultOpenTimeout = 5 * time.Second
	// DefaultWarmAge is how long a connection waits for its client before it is
	// replaced: servers close silent connections, kube-apiserver after 32 s.
	DefaultWarmAge = 20 * time.Second
	// DefaultMaxSize is the number of connections to one endpoint: as many as a
	// listener has clients by default.
	DefaultMaxSize = listener.DefaultMaxConns
)

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("tcpproxy: invalid configuration")

// Config describes a Proxy. Upstream is required, unless there are Routes. Upstreams
// are not closed or drained by the Proxy.
type Config struct {
	Listener listener.Config
	// Upstream gives connections that were never used, see NewUpstream. The
	// Proxy discards each after its one use. With the balance RingHash the key
	// is the client's IP address.
	Upstream *upstream.Upstream[net.Conn]
	// Routes choose an upstream by the client's TLS ClientHello. Upstream takes the
	// clients that fit none, and those without TLS. Without TLS of the Proxy the client's bytes are passed on as they are, so that its TLS is
	// with the server. A client without a target gets the alert unrecognized_name. One
	// that has sent no whole ClientHello of at most 16 KiB within ConnectTimeout is
	// reset: protocols in which the server speaks first have no place beside routes.
	Routes []Route
	// IdleTimeout ends a session in which no byte moved in either direction
	// for that long, or up to a quarter longer; 0 = DefaultIdleTimeout, negative =
	// never. A byte moves when the kernel takes it for sending, and, on Linux, when the
	// receiver's system acknowledges it, so that a receiver that reads slowly, but
	// within the time-out, counts as reading. This and all time-outs below reset both connections, so
	// that a part of an answer does not look whole.
	IdleTimeout time.Duration
	// ClientIdleTimeout ends a session in which nothing moved from the client to the
	// server for that long, ServerIdleTimeout one in which nothing moved the other way,
	// each until that side has ended its stream, or up to a quarter later; 0 = never.
	ClientIdleTimeout, ServerIdleTimeout time.Duration
	// ClientFINTimeout ends a session whose client has ended its stream (a FIN), and
	// has got nothing since for that long, or up to a quarter longer; 0 = never. Clients
	// that have given up look the same as those that wait for the answer to all they sent.
	ClientFINTimeout time.Duration
	// StallTimeout ends a session whose client has sent something and heard nothing
	// for that long since, or up to an eighth longer; 0 = never. It is for protocols
	// in which servers answer: an upload whose server is silent until its end stalls,
	// too.
	StallTimeout time.Duration
	// DrainStagger is the last part of a Drain, at most half of it, over which remaining sessions
	// are cut off, so that their clients do not all reconnect at once. 0 = all at its end.
	DrainStagger time.Duration
	// ConnectTimeout bounds getting an upstream connection ready, and the TLS
	// handshake with the client; 0 = DefaultConnectTimeout. A client that resets
	// its connection, or closes it without having sent a byte, is dropped within
	// about two seconds; one that closes after sending may want the answer and
	// keeps its place until the time-out.
	ConnectTimeout time.Duration
	// NoRetry ends a session whose endpoint breaks off, or ends its stream, before it has sent a byte. Otherwise the session
	// continues with another endpoint, of those that are in, if what the client has sent may be sent twice: nothing,
	// or a TLS ClientHello without early data in one record, or a part of one. A stream that ends before the client has sent
	// anything is passed on: the server may only want to read. It does so twice at most, begins that within ConnectTimeout of
	// its first connection, and not where the Proxy speaks TLS to either side. If endpoints break off at more than ten of its
	// sessions, and more than 20 percent of them, in the last twenty seconds, the others are not moved.
	NoRetry bool
	// SendProxy sends the client's addresses first, in a PROXY protocol header
	// of version 1 or 2; 0 = none.
	SendProxy int
	// TLS terminates TLS from clients; nil = none. Its GetConfigForClient may return
	// other settings for each name, but all names share the keys of session tickets
	// unless it sets others, and VerifyPeerCertificate is not called for resumed sessions:
	// use VerifyConnection.
	TLS *tls.Config
	// UpstreamTLS speaks TLS to the endpoints, after the PROXY header; nil =
	// none. Without a ServerName the endpoint's host is used. Sessions are
	// resumed: without a ClientSessionCache the Proxy keeps its own, unless
	// there is VerifyPeerCertificate, which is not called for resumed ones.
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

// listener returns the listener's settings. A ClientHello is the client's to send.
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
	// endpoint; the defaults of WarmLimits apply.
	upstream.Settings
	// Dial connects to "host:port" or "unix:/path"; nil uses package net.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// Go starts a Dial, see pool.Config. fiber.Go saves the trip from a goroutine if Dial is an
	// engine's: on a fiber it must not block.
	Go     func(fn func())
	Logger *slog.Logger
}

// NewUpstream returns an upstream of plain connections as a Proxy needs it:
// warm ones that were never used, replaced as they age and, with CheckInterval,
// when the server has closed them. Close or Drain it.
func NewUpstream(name string, o UpstreamOptions) (*upstream.Upstream[net.Conn], error) {
	o.Limits = WarmLimits(o.Limits)
	return upstream.New(upstream.Config[net.Conn]{
		Name:      name,
		Settings:  o.Settings,
		Open:      o.openWarm,
		Go:        o.Go,
		Affinity:  fiber.LoopOf,
		Check:     checkWarm,
		Close:     func(c net.Conn) { _ = c.Close() },
		Interrupt: interrupt,
		Logger:    o.Logger,
	})
}

// WarmLimits returns l with the defaults that suit connections used once:
// MaxSize DefaultMaxSize, MaxLifetime (the age of a warm connection, not of one
// in use) DefaultWarmAge, OpenTimeout DefaultOpenTimeout. Give Upstream.Update
// its result.
func WarmLimits(l pool.Limits) pool.Limits {
	l.MaxSize = cmp.Or(l.MaxSize, max(DefaultMaxSize, l.MinIdle))
	l.MaxLifetime = cmp.Or(l.MaxLifetime, DefaultWarmAge)
	l.OpenTimeout = cmp.Or(l.OpenTimeout, DefaultOpenTimeout)
	return l
}

// warmConn remembers when a connection was opened.
type warmConn struct {
	fiber.Stream
	opened time.Time
	relay  atomic.Pointer[relay] // that has it; nil = none yet
}

// interrupt ends the session that has a connection. A session that is still preparing it, or has heard nothing on it, continues
// with another endpoint.
func interrupt(c net.Conn, why error) {
	if w, ok := c.(*warmConn); ok {
		if r := w.relay.Load(); r != nil {
			r.endpointOut(why)
			return
		}
	}
	_ = c.Close()
}

func (o *UpstreamOptions) openWarm(ctx context.Context, endpoint string) (net.Conn, error) {
	dial := o.Dial
	if dial == nil {
		dial = netaddr.Dial
	}
	c, err := dial(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	return &warmConn{Stream: fiber.StreamOf(c), opened: time.Now()}, nil
}

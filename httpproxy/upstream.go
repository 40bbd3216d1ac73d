package httpproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/upstream"
)

// Defaults of an upstream's pools.
const (
	// DefaultMaxSize is high because a response that streams keeps its connection.
	DefaultMaxSize = 1024
	// DefaultPoolIdleTimeout is below the keep-alive times of common servers (nginx 75s), so that our side closes
	// an idle connection first and no request meets a server that is just closing it.
	DefaultPoolIdleTimeout = 60 * time.Second
	// DefaultAcquireTimeout is how long a request waits for a connection before it is answered with 503.
	DefaultAcquireTimeout = 5 * time.Second
	// DefaultMaxWaiters bounds the requests that wait for one endpoint.
	DefaultMaxWaiters = 10_000
)

// UpstreamOptions are the optional parts of an upstream. The zero value is plain HTTP with every default.
type UpstreamOptions struct {
	upstream.Settings               // for zero fields of Limits see the function Limits
	ConnectTimeout    time.Duration // 0 = 5s; bounds connecting, and then the TLS handshake
	TLS               *tls.Config   // nil = plain HTTP
	// Protocol is the version of HTTP that the servers speak. With HTTP/2 many requests share a connection: a lease,
	// and each number in Limits, then means a place for one request, and the upstream opens as many connections as the
	// places need.
	Protocol Protocol
	// MaxConnStreams bounds the concurrent requests on one HTTP/2 connection, besides the server's own limit. 0 =
	// DefaultMaxConnStreams.
	MaxConnStreams int
	// PingAfter is how long an HTTP/2 connection with requests under way may be silent before the proxy sends a PING.
	// The server must answer it within 15 seconds, or within PingAfter if that is less. 0 = DefaultPingAfter.
	PingAfter time.Duration
	// Dial connects to an endpoint; nil uses package net.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// Go starts a Dial; see pool.Config. Use fiber.Go if Dial is an engine's: a Dial on a fiber costs no trip to the
	// loop, but must not block.
	Go     func(fn func())
	Logger *slog.Logger
}

// NewUpstream makes the upstream of a route: pooled connections of HTTP/1.1 or HTTP/2. The error wraps ErrConfig or
// upstream.ErrConfig. Connections are checked before and after each use, whatever o.Limits says. The caller must Close
// or Drain the upstream.
func NewUpstream(name string, o UpstreamOptions) (*Upstream, error) {
	if err := o.verifyProtocol(); err != nil {
		return nil, err
	}
	o.Limits = Limits(o.Limits)
	opener := newOpener(&o)
	return upstream.New(upstream.Config[*httppool.Conn]{
		Name:      name,
		Settings:  o.Settings,
		Open:      opener.open,
		Go:        o.Go,
		Affinity:  affinityOf,
		Close:     func(c *httppool.Conn) { _ = c.Close() },
		Interrupt: func(c *httppool.Conn, _ error) { c.Interrupt() },
		Check:     checkAlive,
		Traffic:   endpointTraffic,
		Logger:    o.Logger,
	})
}

// affinityOf returns the loop of a connection, or of an HTTP/2 connection's place.
func affinityOf(c *httppool.Conn) int { return c.NetConn().Loop() }

// Limits returns l with zero fields set to the defaults for HTTP. Use it for the limits of Upstream.Update.
func Limits(l pool.Limits) pool.Limits {
	l.MaxSize = cmp.Or(l.MaxSize, DefaultMaxSize)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, DefaultPoolIdleTimeout)
	l.AcquireTimeout = cmp.Or(l.AcquireTimeout, DefaultAcquireTimeout)
	l.MaxWaiters = cmp.Or(l.MaxWaiters, DefaultMaxWaiters)
	l.CheckAfter = cmp.Or(l.CheckAfter, -1) // the exchange checks each connection anyway
	return l
}

func checkAlive(_ context.Context, c *httppool.Conn) error {
	if !c.Alive() {
		return httppool.ErrServerGone
	}
	return nil
}

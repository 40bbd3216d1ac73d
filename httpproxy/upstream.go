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
	upstream.Settings               // zero fields of Limits: see the function Limits
	ConnectTimeout    time.Duration // 0 = 5s; bounds connecting, and again the TLS handshake
	TLS               *tls.Config   // nil = plain HTTP
	// Dial connects to an endpoint; nil uses package net.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// Go starts a Dial, see pool.Config. fiber.Go saves the trip from a goroutine if Dial is an engine's: on a fiber it
	// must not block.
	Go     func(fn func())
	Logger *slog.Logger
}

// NewUpstream makes the upstream of a route: pooled HTTP/1.1 connections.
// A connection is looked at before each use and after it, whatever o.Limits says. Close or Drain it in the end.
func NewUpstream(name string, o UpstreamOptions) (*Upstream, error) {
	dialer := &httppool.Dialer{Dial: o.Dial, DialTimeout: o.ConnectTimeout, TLSTimeout: o.ConnectTimeout, TLS: o.TLS}
	o.Limits = Limits(o.Limits)
	return upstream.New(upstream.Config[*httppool.Conn]{
		Name:      name,
		Settings:  o.Settings,
		Open:      dialer.Open,
		Go:        o.Go,
		Affinity:  func(c *httppool.Conn) int { return c.NetConn().Loop() },
		Close:     func(c *httppool.Conn) { _ = c.Close() },
		Interrupt: func(c *httppool.Conn, _ error) { c.Interrupt() },
		Check:     checkAlive,
		Traffic:   endpointTraffic,
		Logger:    o.Logger,
	})
}

// Limits fills the zero fields of l with the defaults for HTTP. Use it for the limits of Upstream.Update.
func Limits(l pool.Limits) pool.Limits {
	l.MaxSize = cmp.Or(l.MaxSize, DefaultMaxSize)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, DefaultPoolIdleTimeout)
	l.AcquireTimeout = cmp.Or(l.AcquireTimeout, DefaultAcquireTimeout)
	l.MaxWaiters = cmp.Or(l.MaxWaiters, DefaultMaxWaiters)
	l.CheckAfter = cmp.Or(l.CheckAfter, -1) // the exchange looks at each connection anyway
	return l
}

func checkAlive(_ context.Context, c *httppool.Conn) error {
	if !c.Alive() {
		return httppool.ErrServerGone
	}
	return nil
}

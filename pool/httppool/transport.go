package httppool

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/pool"
)

// Defaults of a Transport's own pools.
const (
	// DefaultMaxSize bounds the connections per address. It is high because a streaming answer keeps its connection.
	DefaultMaxSize = 1024
	// DefaultMaxIdle bounds the idle connections per address.
	DefaultMaxIdle = 100
	// DefaultIdleTimeout is below the keep-alive times of common servers (nginx 75s), so that our side closes first.
	DefaultIdleTimeout = 60 * time.Second
)

// Source returns the connection for a request, within ctx. It may use the request to choose one, and Failed to avoid endpoints.
type Source func(ctx context.Context, req *http.Request) (Lease, error)

// Config describes a Transport. The zero value is ready to use.
type Config struct {
	Options

	// Source replaces the pools per address; Limits, Dial, DialTimeout, TLS and TLSTimeout are then unused, and the
	// request's URL no longer decides where it goes.
	Source Source

	// Limits are the limits of connections to each address. Zero fields mean this package's defaults (MaxSize 1024,
	// MaxIdle 100, IdleTimeout 60s) and then those of pool.Limits.
	Limits pool.Limits
	// Dial connects to "host:port"; nil uses the standard library.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// DialTimeout bounds connecting, TLSTimeout the TLS handshake; 0 = 5s each.
	DialTimeout, TLSTimeout time.Duration
	// TLS is used for https URLs; nil = the standard library's defaults. See Dialer.TLS.
	TLS *tls.Config
}

// Transport is an http.RoundTripper over pooled HTTP/1.1 connections. It changes nothing about a message: it adds no
// User-Agent or Accept-Encoding, decompresses nothing and knows no proxies or cookies. It is safe for concurrent use.
// The end of a request's context ends it within 10 ms.
//
// A request is sent again only if the connection it was sent on had been idle, no byte of an answer came, and either no
// byte of the request was accepted or it is idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE, or with an
// Idempotency-Key), provided that its body is unread or GetBody is set. It is then sent on a connection opened for it, so
// that a server that closes idle connections costs a request one more attempt at most.
type Transport struct {
	cfg    Config
	plain  Dialer
	secure Dialer

	requests, retries, stale atomic.Uint64

	mu     sync.RWMutex // not held while dialling or exchanging
	pools  map[poolKey]*pool.Pool[*Conn]
	closed bool
}

type poolKey struct {
	secure  bool
	address string
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport checks cfg and makes a Transport; it opens nothing. The caller must Close it. The error wraps
// pool.ErrConfig.
func NewTransport(cfg Config) (*Transport, error) {
	l := &cfg.Limits
	l.MaxSize = cmp.Or(l.MaxSize, DefaultMaxSize)
	l.MaxIdle = cmp.Or(l.MaxIdle, min(DefaultMaxIdle, l.MaxSize))
	l.IdleTimeout = cmp.Or(l.IdleTimeout, DefaultIdleTimeout)
	if err := l.Verify(); err != nil {
		return nil, fmt.Errorf("httppool: %w", err)
	}
	if cfg.TLS == nil {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return &Transport{
		cfg: cfg, pools: map[poolKey]*pool.Pool[*Conn]{},
		plain:  Dialer{Dial: cfg.Dial, DialTimeout: cfg.DialTimeout},
		secure: Dialer{Dial: cfg.Dial, DialTimeout: cfg.DialTimeout, TLSTimeout: cfg.TLSTimeout, TLS: cfg.TLS},
	}, nil
}

// Info is how a request was carried out.
type Info struct {
	Endpoint string // of the last connection used; "" if there was none
	Reused   bool   // that connection had been idle before
	Retries  int    // how often the request was sent again
}

// RoundTrip implements http.RoundTripper. Its errors are *Error. A 101 response's Body is an io.ReadWriteCloser with a CloseWrite
// method; the request's context no longer ends it.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.roundTrip(req, nil)
}

// roundTrip is RoundTrip, for a forwarded request if p is not nil. Then p gets the interim responses and the fields of
// the final one, unless that is 101, and p.res.Info is set.
func (t *Transport) roundTrip(req *http.Request, p *passage) (*http.Response, error) {
	t.requests.Add(1)
	if err := checkRequest(req); err != nil {
		closeBody(req)
		return nil, &Error{Step: "send", Err: err}
	}
	var began time.Time
	if p != nil {
		began = p.began
	} else {
		began = time.Now()
	}
	var stale Stale
	x := &exchange{opt: &t.cfg.Options, p: p}
	err := t.lease(x, req, &stale)
	for retries := 0; err == nil; retries++ {
		x.begin(req, began)
		if p != nil {
			p.res.Info = Info{Endpoint: x.lease.Endpoint(), Reused: x.idled, Retries: retries}
		}
		var resp *http.Response
		if resp, err = x.run(); err == nil {
			return resp, nil
		}
		if !x.again {
			if x.bodyIsOurs() {
				closeBody(req)
			}
			return nil, err
		}
		var failed error
		if req, failed = replay(req, x); failed != nil {
			x.lease.Discard()
			return nil, err
		}
		t.retries.Add(1)
		x = &exchange{opt: x.opt, p: p, lease: x.lease} // the uploader of the former exchange may still run
		err = t.renew(x, req, &stale)
	}
	closeBody(req)
	return nil, err
}

// replay returns req with an unread body.
func replay(req *http.Request, x *exchange) (*http.Request, error) {
	if x.bodyIsOurs() {
		return req, nil
	}
	body, err := req.GetBody()
	if err != nil {
		return req, err
	}
	again := *req
	again.Body = body
	return &again, nil
}

// renew replaces the stale connection of x's lease.
func (t *Transport) renew(x *exchange, req *http.Request, stale *Stale) error {
	renewed, err := stale.Renew(req.Context(), x.lease)
	if renewed || err != nil {
		return err
	}
	return t.lease(x, req, stale)
}

// lease leases a live connection for x.
func (t *Transport) lease(x *exchange, req *http.Request, stale *Stale) error {
	for {
		if err := t.acquire(x, req, stale); err != nil {
			if _, known := errors.AsType[*Error](err); known {
				return err
			}
			return &Error{Step: "acquire", Err: err}
		}
		if c := x.lease.Value(); c.Alive() {
			c.NetConn().Adopt() // after Alive, as Adopt forgets what has arrived until the loop looks again
			return nil
		}
		t.stale.Add(1)
		if err := stale.Next(x.lease); err != nil {
			return err
		}
	}
}

// poolLease makes a pool's lease a Lease.
type poolLease struct {
	pool.Lease[*Conn]
	address string
}

func (l poolLease) Endpoint() string { return l.address }
func (l poolLease) Fail(error)       { l.Discard() }

// acquire leases a connection for x from the Source or, without one, from the pool of the scheme and address.
func (t *Transport) acquire(x *exchange, req *http.Request, stale *Stale) (err error) {
	if t.cfg.Source != nil {
		x.lease, err = t.cfg.Source(stale.within(req.Context()), req)
		return err
	}
	address, secure, err := addressOf(req)
	if err != nil {
		return &Error{Step: "acquire", Err: err}
	}
	for {
		p, err := t.poolFor(poolKey{secure, address})
		if err != nil {
			return &Error{Endpoint: address, Step: "acquire", Err: err}
		}
		l, err := p.Acquire(req.Context())
		switch {
		case err == nil:
			x.own = poolLease{l, address}
			x.lease = &x.own // avoids an allocation
			return nil
		case !errors.Is(err, pool.ErrClosed): // closed by a concurrent evict, or by Close
			return &Error{Endpoint: address, Step: "acquire", Err: err}
		}
	}
}

func addressOf(req *http.Request) (address string, secure bool, err error) {
	u := req.URL
	port := "80"
	switch u.Scheme {
	case "http":
	case "https":
		secure, port = true, "443"
	default:
		return "", false, fmt.Errorf("%w: scheme %.20q is not http or https", ErrInvalidRequest, u.Scheme)
	}
	if u.Hostname() == "" {
		return "", false, fmt.Errorf("%w: no host in the URL", ErrInvalidRequest)
	}
	if u.Port() != "" {
		return strings.ToLower(u.Host), secure, nil
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port), secure, nil
}

func (t *Transport) poolFor(key poolKey) (*pool.Pool[*Conn], error) {
	t.mu.RLock()
	p, closed := t.pools[key], t.closed
	t.mu.RUnlock()
	if p != nil || closed {
		return p, closedError(closed)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.pools[key]; p != nil || t.closed {
		return p, closedError(t.closed)
	}
	dialer := &t.plain
	if key.secure {
		dialer = &t.secure
	}
	p, err := pool.New(pool.Config[*Conn]{
		Name:   key.address,
		Open:   func(ctx context.Context) (*Conn, error) { return dialer.Open(ctx, key.address) },
		Close:  func(c *Conn) { c.Close() },
		Limits: t.cfg.Limits,
	})
	if err != nil {
		return nil, err
	}
	t.evict()
	t.pools[key] = p
	return p, nil
}

func closedError(closed bool) error {
	if closed {
		return ErrClosed
	}
	return nil
}

// maxPools is the number of addresses beyond which pools without a connection are removed, so that a program that
// connects to many hosts does not keep a pool for each.
const maxPools = 256

// evict removes unused pools if there are many. mu is held.
func (t *Transport) evict() {
	if len(t.pools) < maxPools {
		return
	}
	for key, p := range t.pools {
		if s := p.Stats(); s.Idle+s.InUse+s.Opening+s.Waiting+s.Direct == 0 {
			p.Close()
			delete(t.pools, key)
		}
	}
}

// Stats is a snapshot of a Transport's counters.
type Stats struct {
	Requests uint64 // RoundTrips
	Retries  uint64 // requests sent again on a fresh connection
	Stale    uint64 // connections found dead when leased
	// Pools has an entry for each address; none with a Source.
	Pools []pool.Stats
}

// Stats returns a snapshot.
func (t *Transport) Stats() Stats {
	s := Stats{Requests: t.requests.Load(), Retries: t.retries.Load(), Stale: t.stale.Load()}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.pools {
		s.Pools = append(s.Pools, p.Stats())
	}
	return s
}

// Close closes the idle connections now and those in use when their exchange ends. Later requests fail with
// ErrClosed. It does not touch a Source.
func (t *Transport) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, p := range t.pools {
		p.Close()
	}
}

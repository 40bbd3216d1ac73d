package tcppool

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/pool"
)

// Defaults of Config.
const (
	DefaultMaxSize     = 10
	DefaultIdleTimeout = 5 * time.Minute
	// DefaultCheckInterval is how often idle connections are examined, so that
	// those the server has closed do not linger.
	DefaultCheckInterval = time.Second
	// DefaultForgetAfter is how long an address without connections is kept.
	DefaultForgetAfter = time.Minute
)

// ErrClosed is returned by Get and DialContext after Close. It is net.ErrClosed
// and pool.ErrClosed too.
var ErrClosed = fmt.Errorf("tcppool: %w: %w", pool.ErrClosed, net.ErrClosed)

// Config makes a Dialer. The zero value is valid.
type Config struct {
	// Limits hold for each address. nil means MaxSize 10, IdleTimeout 5
	// minutes, CheckInterval 1 second and OverflowDirect; otherwise
	// pool.Limits' own defaults count. With MinIdle an address is never
	// forgotten; set CheckInterval too, so that connections that the server
	// has closed are replaced ahead of demand.
	Limits *pool.Limits
	// Dial opens a connection; nil means net.Dialer's DialContext. Connections
	// that do not give access to their socket (syscall.Conn), such as a
	// *tls.Conn, cannot be examined and are never kept: see TLS.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS speaks TLS on the connections Dial opens; nil does not. The handshake
	// is a part of opening, so that connections kept warm have done it. The
	// server's name is the address's host if ServerName is empty. Sessions are
	// resumed, see the package doc; a ClientSessionCache replaces the Dialer's.
	TLS *tls.Config
	// ForgetAfter is how long an address without connections is remembered.
	// 0 means a minute.
	ForgetAfter time.Duration
}

// Dialer lends out connections by network and address. Its methods are safe
// for concurrent use. End it with Close.
type Dialer struct {
	config Config
	limits pool.Limits

	mu     sync.Mutex // not held while dialling, checking or closing a connection
	pools  map[key]*entry
	closed bool
	sweep  *time.Timer

	last atomic.Pointer[entry] // of the last Get: most Dialers have one address only
}

type key struct{ network, address string }

// entry is the pool of one address.
type entry struct {
	key
	pool     *pool.Pool[*link]
	acquires uint64    // acquires that had begun when the sweep last looked
	seen     time.Time // when the sweep last found it in use; like acquires under Dialer.mu
}

// New makes a Dialer; it opens nothing. The error wraps pool.ErrConfig.
func New(cfg Config) (*Dialer, error) {
	limits := pool.Limits{MaxSize: DefaultMaxSize, IdleTimeout: DefaultIdleTimeout, CheckInterval: DefaultCheckInterval, Overflow: pool.OverflowDirect}
	if cfg.Limits != nil {
		limits = *cfg.Limits
	}
	err := limits.Verify()
	if cfg.ForgetAfter < 0 {
		err = errors.Join(err, fmt.Errorf("%w: ForgetAfter %v is negative", pool.ErrConfig, cfg.ForgetAfter))
	}
	if err != nil {
		return nil, fmt.Errorf("tcppool: %w", err)
	}
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	cfg.ForgetAfter = cmp.Or(cfg.ForgetAfter, DefaultForgetAfter)
	cfg.TLS = tlsclient.WithSessions(cfg.TLS)
	return &Dialer{config: cfg, limits: limits, pools: make(map[key]*entry)}, nil
}

// DialContext is Get in the form that net/http and others ask for. The result is a *Conn: its Close
// closes the connection; to keep it, the caller calls Release. With Config.TLS it replaces a
// DialTLSContext.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Get(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Get lends a connection to address: a kept one that is still open and quiet,
// or a new one. The caller calls Release or Close. Errors are those of
// pool.Pool.Acquire, wrapping the dial error, or ErrClosed.
func (d *Dialer) Get(ctx context.Context, network, address string) (*Conn, error) {
	k := key{network, address}
	e := d.last.Load()
	if e == nil || e.key != k {
		var err error
		if e, err = d.entry(k); err != nil {
			return nil, err
		}
	}
	for fresh := 0; ; {
		l, err := e.pool.Acquire(ctx)
		if err != nil {
			if e, err = d.replace(e, err); err != nil {
				return nil, err
			}
			continue
		}
		// A link that was never lent may have died while it was idle; one dialled for this Get is not replaced.
		c := l.Value()
		if c.fit() || !c.lent() && fresh >= d.limits.MinIdle {
			return c.loan(l), nil
		}
		if !c.lent() {
			fresh++
		}
		l.Discard()
	}
}

// replace returns the entry to acquire from after err of e's pool, or the error to return: the sweep may have forgotten e
// after Get had found it.
func (d *Dialer) replace(e *entry, err error) (*entry, error) {
	var failure *pool.Error
	if errors.As(err, &failure) && failure.Kind == pool.ErrClosed { //nolint:errorlint // the cause may be another pool's
		now, err := d.entry(e.key)
		if err == nil && now == e {
			err = ErrClosed
		}
		return now, err
	}
	return nil, fmt.Errorf("tcppool: connect to %s %s: %w", e.network, e.address, err)
}

// entry finds or makes the pool of an address.
func (d *Dialer) entry(k key) (*entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	e := d.pools[k]
	if e == nil {
		p, err := pool.New(pool.Config[*link]{
			Name:   k.network + " " + k.address,
			Open:   func(ctx context.Context) (*link, error) { return d.open(ctx, k) },
			Close:  func(l *link) { _ = l.Close() },
			Check:  alive,
			Limits: d.limits,
		})
		if err != nil {
			return nil, fmt.Errorf("tcppool: %w", err)
		}
		e = &entry{key: k, pool: p, seen: time.Now()}
		d.pools[k] = e
		if d.sweep == nil {
			d.sweep = time.AfterFunc(d.config.ForgetAfter, d.forget)
		}
	}
	d.last.Store(e)
	return e, nil
}

// open connects to k.
func (d *Dialer) open(ctx context.Context, k key) (*link, error) {
	c, err := d.config.Dial(ctx, k.network, k.address)
	if err != nil {
		return nil, err
	}
	if d.config.TLS == nil {
		return newLink(c), nil
	}
	endpoint := k.address
	if k.network == "unix" {
		endpoint = "unix:" + k.address
	}
	if c, err = secure(ctx, c, tlsclient.For(d.config.TLS, endpoint)); err != nil {
		return nil, err
	}
	return newLink(c), nil
}

// alive is the background check.
func alive(_ context.Context, l *link) error {
	if !l.fit() {
		return net.ErrClosed
	}
	return nil
}

// forget drops the pools of addresses that have had no connection for a while.
// It runs by timer as long as there is any address.
func (d *Dialer) forget() {
	var empty []*entry
	d.mu.Lock()
	for k, e := range d.pools {
		s := e.pool.Stats()
		acquires := s.Acquired + s.Waited + s.TimedOut + s.Rejected + s.Canceled + s.OpenFailed
		switch {
		case acquires != e.acquires || s.Waiting+s.Idle+s.InUse+s.Opening+s.Busy+s.Direct > 0:
			e.acquires, e.seen = acquires, time.Now()
		case time.Since(e.seen) >= d.config.ForgetAfter:
			// A Get that has found this entry already tries again with a new one (replace).
			d.last.CompareAndSwap(e, nil)
			delete(d.pools, k)
			empty = append(empty, e)
		}
	}
	switch {
	case d.closed:
	case len(d.pools) == 0:
		d.sweep = nil
	default:
		d.sweep.Reset(d.config.ForgetAfter)
	}
	d.mu.Unlock()
	for _, e := range empty {
		e.pool.Close()
	}
}

// Stats returns a snapshot of the pool of every known address, in no order; Name is
// network and address with a space between them.
func (d *Dialer) Stats() []pool.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	stats := make([]pool.Stats, 0, len(d.pools))
	for _, e := range d.pools {
		stats = append(stats, e.pool.Stats())
	}
	return stats
}

// Close closes the idle connections; those lent out stay usable and are closed
// when they are released. A second Close does nothing.
func (d *Dialer) Close() {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	d.closed = true
	d.last.Store(nil)
	if d.sweep != nil {
		d.sweep.Stop()
	}
	pools := d.pools
	d.pools = nil
	d.mu.Unlock()
	for _, e := range pools {
		e.pool.Close()
	}
}

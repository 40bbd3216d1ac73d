package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// backend is one upstream of the configuration, running.
type backend struct {
	cfg   config.Upstream
	files fingerprint
	impl  backendImpl
}

// backendImpl is what an upstream of any protocol can do.
type backendImpl interface {
	Status() upstream.Status
	Drain(ctx context.Context) error
	// update applies new endpoints, balance, limits, health and ejection in place. On an error nothing has changed.
	update(s settings) error
	// idle returns a channel that is closed when no session uses the backend any more; nil when Drain knows that itself.
	idle() <-chan struct{}
}

// settings are the parts of an upstream that change in place, translated.
type settings struct {
	name      string
	endpoints []string
	balance   upstream.Balance
	limits    pool.Limits
	health    upstream.Health
	ejection  upstream.Ejection
	dial      func(ctx context.Context, endpoint string) (net.Conn, error)
	start     func(fn func()) // pool.Config.Go
	pgProbe   bool            // the active check is PostgreSQL's own, which newPostgres knows how to make
	logger    *slog.Logger
}

// forever stands for "never" where a package reads 0 as its default.
const forever = 10 * 365 * 24 * time.Hour

// manyWaiters stands for "unlimited" where a package reads 0 as its default.
const manyWaiters = 1 << 30

// settingsOf translates an upstream's configuration.
func (g *Gateway) settingsOf(u *config.Upstream) (settings, error) {
	balance, err := upstream.ParseBalance(string(u.Balance))
	if err != nil {
		return settings{}, err
	}
	limits, err := limitsOf(u)
	if err != nil {
		return settings{}, err
	}
	dial, start := g.dialer(u)
	probeDial := netaddr.Dial
	if u.Tunnel != "" {
		probeDial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			return g.through(ctx, u.Tunnel, endpoint, true)
		}
	}
	health, err := healthOf(u, probeDial)
	if err != nil {
		return settings{}, err
	}
	ejection := upstream.Ejection{Failures: u.Eject.Failures, Base: u.Eject.Base, Max: u.Eject.Max}
	if ejection.Failures == 0 {
		ejection.Failures = -1
	}
	pgProbe := u.Health != nil && u.Health.Postgres
	return settings{u.Name, u.Endpoints, balance, limits, health, ejection, dial, start, pgProbe, g.logger}, nil
}

// limitsOf translates pool limits. The proxies' own defaults are kept out: config has filled in every value, so that what
// `headpond check` shows is what is used.
func limitsOf(u *config.Upstream) (pool.Limits, error) {
	p := u.Pool
	overflow, err := pool.ParseOverflow(string(p.Overflow))
	if err != nil {
		return pool.Limits{}, err
	}
	l := pool.Limits{
		MinIdle: p.MinIdle, MaxSize: p.MaxSize, MaxIdle: p.MaxIdle, IdleTimeout: p.IdleTimeout, MaxLifetime: p.MaxLifetime,
		AcquireTimeout: p.AcquireTimeout, MaxWaiters: p.MaxWaiters, CheckAfter: p.CheckAfter, CheckInterval: p.CheckInterval,
		OpenTimeout: u.ConnectTimeout, Overflow: overflow,
	}
	if l.MaxLifetime == 0 && (u.Protocol == config.TCP || u.Protocol == config.TunnelProtocol) {
		l.MaxLifetime = forever
	}
	if l.AcquireTimeout == 0 {
		l.AcquireTimeout = forever
	}
	if l.MaxWaiters == 0 {
		l.MaxWaiters = manyWaiters
	}
	return l, l.Verify()
}

// healthOf translates the active check; PostgreSQL's own probe is added by newPostgres.
func healthOf(u *config.Upstream, dial upstream.DialFunc) (upstream.Health, error) {
	if u.Health == nil {
		return upstream.Health{}, nil
	}
	h := upstream.Health{Interval: u.Health.Interval, Timeout: u.Health.Timeout, Rise: u.Health.Rise, Fall: u.Health.Fall}
	tlsConfig, err := clientConfig(u.TLS)
	if err != nil {
		return h, err
	}
	switch {
	case u.Health.HTTP != "":
		h.Probe = upstream.HTTPProbeBy(dial, u.Health.HTTP, tlsConfig)
	case u.Health.TCP:
		h.Probe = upstream.TCPProbeBy(dial)
	}
	return h, nil
}

// newBackend builds an upstream; its pools begin to warm up at once.
func (g *Gateway) newBackend(u *config.Upstream) (*backend, error) {
	wrap := func(err error) error { return fmt.Errorf("upstream %q: %w", u.Name, err) }
	files, err := fingerprintOf(upstreamFiles(u)...)
	if err != nil {
		return nil, wrap(err)
	}
	s, err := g.settingsOf(u)
	if err != nil {
		return nil, wrap(err)
	}
	b := &backend{cfg: *u, files: files}
	switch _, sqlite := u.SQLite(); {
	case sqlite:
		b.impl, err = newSQLite(u, s)
	case u.Protocol == config.Postgres:
		b.impl, err = newPostgres(u, s)
	case u.Protocol == config.HTTP:
		b.impl, err = newHTTP(u, s)
	case u.Protocol == config.TunnelProtocol:
		b.impl, err = newOffered(u, s)
	default:
		b.impl, err = newTCP(s)
	}
	if err != nil {
		return nil, wrap(err)
	}
	return b, nil
}

// fixed returns the parts of an upstream that need a new backend when they change.
func fixed(u *config.Upstream) config.Upstream {
	f := config.Upstream{Name: u.Name, Protocol: u.Protocol, Tunnel: u.Tunnel, TLS: u.TLS, ConnectTimeout: u.ConnectTimeout, Postgres: u.Postgres}
	if _, sqlite := u.SQLite(); sqlite {
		f = *u
	}
	if u.Protocol == config.TCP {
		f.TLS, f.ConnectTimeout = nil, 0 // the proxy's, which updates in place
	}
	return f
}

// canUpdate reports whether b can become u in place.
func (b *backend) canUpdate(u *config.Upstream, files fingerprint) bool {
	return reflect.DeepEqual(fixed(&b.cfg), fixed(u)) && (b.files == files || u.Protocol == config.TCP)
}

// tcpBackend is an upstream of tcp listeners.
type tcpBackend struct{ *upstream.Upstream[net.Conn] }

func newTCP(s settings) (backendImpl, error) {
	u, err := tcpproxy.NewUpstream(s.name, s.endpoints, tcpproxy.UpstreamOptions{
		Balance: s.balance, Limits: s.limits, Health: s.health, Ejection: s.ejection, Dial: s.dial, Go: s.start, Logger: s.logger,
	})
	return tcpBackend{u}, err
}

func (b tcpBackend) update(s settings) error {
	return b.Update(s.endpoints, s.balance, s.limits, s.health, s.ejection)
}

func (tcpBackend) idle() <-chan struct{} { return nil }

// httpBackend is an upstream of http listeners.
type httpBackend struct{ *httpproxy.Upstream }

func newHTTP(u *config.Upstream, s settings) (backendImpl, error) {
	tlsConfig, err := clientConfig(u.TLS)
	if err != nil {
		return nil, err
	}
	up, err := httpproxy.NewUpstream(s.name, s.endpoints, httpproxy.UpstreamOptions{
		Balance: s.balance, Limits: s.limits, Health: s.health, Ejection: s.ejection, Logger: s.logger,
		ConnectTimeout: u.ConnectTimeout, TLS: tlsConfig, Dial: s.dial, Go: s.start,
	})
	return httpBackend{up}, err
}

func (b httpBackend) update(s settings) error {
	return b.Update(s.endpoints, s.balance, s.limits, s.health, s.ejection)
}

func (httpBackend) idle() <-chan struct{} { return nil }

package gateway

import (
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// backend is one upstream of the configuration, running.
type backend struct {
	cfg    config.Upstream
	files  extend.Fingerprint
	source upstream.Source // nil: the endpoints are in the configuration
	impl   extend.Backend
	recent recentAnswers

	follows atomic.Bool // a reload has replaced it during a pause: see follow.go
}

// forever stands for "never" where a package reads 0 as its default.
const forever = 10 * 365 * 24 * time.Hour

// manyWaiters stands for "unlimited" where a package reads 0 as its default.
const manyWaiters = 1 << 30

// settingsOf translates an upstream's configuration; running is the running backend to update in place, nil if there is
// none.
func (g *Gateway) settingsOf(u *config.Upstream, running *backend) (extend.Settings, error) {
	source, err := sourceOf(u, running)
	if err != nil {
		return extend.Settings{}, err
	}
	balance, err := upstream.ParseBalance(string(u.Balance))
	if err != nil {
		return extend.Settings{}, err
	}
	limits, err := limitsOf(u)
	if err != nil {
		return extend.Settings{}, err
	}
	dialer, start := g.dialers(u)
	health, err := g.healthOf(u, dialer.Probe)
	if err != nil {
		return extend.Settings{}, err
	}
	ejection := upstream.Ejection{
		Failures: u.Eject.Failures, Base: u.Eject.Base, Max: u.Eject.Max, Errors: u.Eject.ServerErrors, Slow: u.Eject.SlowerThan, MaxEjected: u.Eject.MaxEjected,
	}
	if ejection.Failures == 0 {
		ejection.Failures = -1
	}
	return extend.Settings{
		Settings: upstream.Settings{
			Endpoints: config.EndpointsOf(u.Endpoints), Source: source, Balance: balance, Limits: limits, Health: health, Ejection: ejection,
			SlowStart: u.SlowStart, OnRemoved: removalOf(u), RemovedTimeout: u.RemovedTimeout, Rebalance: rebalanceOf(u),
		},
		Config: u, Dial: dialer.Dial, DialFrom: g.dialFrom(u.KeepAlive), Start: start, Logger: g.logger,
	}, nil
}

func removalOf(u *config.Upstream) upstream.Removal {
	if u.OnRemoved == config.CloseRemoved {
		return upstream.CloseRemoved
	}
	return upstream.DrainRemoved
}

func rebalanceOf(u *config.Upstream) (r upstream.Rebalance) {
	if u.Rebalance == nil {
		return r
	}
	r.PerMinute, r.Excess = u.Rebalance.PerMinute, u.Rebalance.Excess
	if u.Rebalance.Order == config.NewestFirst {
		r.Order = upstream.NewestFirst
	}
	return r
}

// sourceOf returns the source of an upstream's endpoints: the running backend's, if its settings are unchanged.
func sourceOf(u *config.Upstream, running *backend) (upstream.Source, error) {
	if running != nil && running.source != nil && reflect.DeepEqual(running.cfg.Discover, u.Discover) {
		return running.source, nil
	}
	return u.Source()
}

// limitsOf translates pool limits. The proxies' own defaults are not used: config has filled in every value, so that
// `headpond check` shows the values in use.
func limitsOf(u *config.Upstream) (pool.Limits, error) {
	p := u.Pool
	overflow, err := pool.ParseOverflow(string(p.Overflow))
	if err != nil {
		return pool.Limits{}, err
	}
	l := pool.Limits{
		MinIdle: p.MinIdle, MaxWarm: p.MaxWarm, MaxSize: p.MaxSize, MaxIdle: p.MaxIdle, IdleTimeout: p.IdleTimeout, MaxLifetime: p.MaxLifetime,
		AcquireTimeout: p.AcquireTimeout, MaxWaiters: p.MaxWaiters, CheckAfter: p.CheckAfter, CheckInterval: p.CheckInterval,
		OpenTimeout: u.ConnectTimeout, Overflow: overflow,
	}
	if l.MaxLifetime == 0 && config.DefaultPool(u.Protocol).MaxLifetime != 0 {
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

// newBackend builds an upstream that replaces old, if old is not nil; its pools begin to warm up at once.
func (g *Gateway) newBackend(u *config.Upstream, old *backend) (*backend, error) {
	build := func(list []upstream.Override) (*backend, error) {
		return g.makeBackend(u, extend.Settings{Settings: upstream.Settings{Overrides: list}})
	}
	if old == nil {
		return g.takeOver(u.Name, build)
	}
	b, err := build(old.kept())
	if err == nil {
		b.pauseUntil(old.impl.Status().PausedUntil)
	}
	return b, err
}

// makeBackend builds an upstream from its configuration. It reads only Overrides, Trial and StandIn from with.
func (g *Gateway) makeBackend(u *config.Upstream, with extend.Settings) (*backend, error) {
	wrap := func(err error) error { return fmt.Errorf("upstream %q: %w", u.Name, err) }
	files, err := extend.FingerprintOf(extend.TLSFiles(u.TLS)...)
	if err != nil {
		return nil, wrap(err)
	}
	s, err := g.settingsOf(u, nil)
	if err != nil {
		return nil, wrap(err)
	}
	s.Overrides, s.Trial, s.StandIn = with.Overrides, with.Trial, with.StandIn
	newImpl := protocols.TCPBackend
	if p := extend.ProtocolOf(u.Protocol); p != nil && p.Backend != nil {
		newImpl = p.Backend
	}
	b := &backend{cfg: *u, files: files, source: s.Source}
	if b.impl, err = newImpl(s); err != nil {
		return nil, wrap(err)
	}
	return b, nil
}

// canUpdate reports whether b can take the configuration u in place.
func (b *backend) canUpdate(u *config.Upstream, files extend.Fingerprint) bool {
	rebuilds := extend.ConnectsOtherwise
	if p := extend.ProtocolOf(u.Protocol); p != nil && p.Rebuilds != nil {
		rebuilds = p.Rebuilds
	}
	return b.cfg.Protocol == u.Protocol && b.cfg.SameParts(u) && !rebuilds(&b.cfg, u, b.files != files)
}

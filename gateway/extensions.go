package gateway

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/netaddr"
)

// view is a gateway as extensions see it.
type view struct{ g *Gateway }

var _ extend.Gateway = view{}

// Logger implements extend.Gateway.
func (v view) Logger() *slog.Logger { return v.g.logger }

// Upstream implements extend.Gateway.
func (v view) Upstream(name string) any {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	for _, b := range v.g.backends {
		if b.cfg.Name == name {
			return b.impl.Runs()
		}
	}
	return nil
}

// Proxies implements extend.Gateway.
func (v view) Proxies() iter.Seq2[string, extend.Proxy] {
	return func(yield func(string, extend.Proxy) bool) {
		v.g.mu.Lock()
		services := slices.Clone(v.g.services)
		names := make([]string, len(services))
		for i, s := range services {
			names[i] = s.cfg.Name
		}
		v.g.mu.Unlock()
		for i, s := range services {
			if !yield(names[i], s.proxy) {
				return
			}
		}
	}
}

// Parts implements extend.Gateway.
func (v view) Parts() []extend.Part { return v.g.parts }

// Cancel implements extend.Gateway.
func (v view) Cancel(ctx context.Context, processID uint32, key []byte) bool {
	return v.g.cancelAnywhere(ctx, processID, key)
}

// Vacated implements extend.Gateway.
func (v view) Vacated() <-chan struct{} { return v.g.vacated }

// Config implements extend.Operator.
func (v view) Config() *config.Config {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	return v.g.cfg
}

// Version implements extend.Operator.
func (v view) Version() string { return v.g.opts.Version }

// Addr implements extend.Operator.
func (v view) Addr(name string) string { return v.g.Addr(name) }

// Kill implements extend.Operator.
func (v view) Kill(id string) bool { return v.g.Kill(id) }

// HoldUpstream implements extend.Operator.
func (v view) HoldUpstream(name string, limit time.Duration) (undo func(), err error) {
	return v.g.HoldUpstream(name, limit)
}

// ResumeUpstream implements extend.Operator.
func (v view) ResumeUpstream(name string) error { return v.g.ResumeUpstream(name) }

// ReloadFile implements extend.Operator.
func (v view) ReloadFile() error { return v.g.ReloadFile() }

// newParts makes the parts of all extensions. It panics if two extensions or protocols show rows under one key, as
// registering panics.
func (g *Gateway) newParts() {
	for _, e := range extend.Extensions() {
		g.parts = append(g.parts, e.New(view{g}))
	}
	if err := admin.Distinct(g.additions(nil)); err != nil {
		panic(err)
	}
}

// planParts prepares the parts of extensions.
func (g *Gateway) planParts(p *plan) error {
	for _, part := range g.parts {
		if err := part.Plan(&p.Plan); err != nil {
			return err
		}
	}
	return nil
}

// carrier returns the part through which connections to an upstream's endpoints go, and the listener if it has the sessions.
func (g *Gateway) carrier(u *config.Upstream) (by extend.Part, listener string) {
	for _, part := range g.parts {
		if listener, ok := part.Carrier(u); ok {
			return part, listener
		}
	}
	return nil, ""
}

// dialers returns how to connect to an upstream's endpoints, for sessions and for health checks, and how the pool
// starts to open a connection in advance (pool.Config.Go).
func (g *Gateway) dialers(u *config.Upstream) (d extend.Dialer, start func(func())) {
	for _, part := range g.parts {
		if d, ok := part.Dialer(u); ok {
			return d, nil // opening may wait for something else than the engine
		}
	}
	if p := extend.ProtocolOf(u.Protocol); p != nil && p.Reuses {
		return extend.Dialer{Dial: dialWith(u.KeepAlive, g.dialKept), Probe: netaddr.Dial}, fiber.Go
	}
	return extend.Dialer{Dial: dialWith(u.KeepAlive, g.dial), Probe: netaddr.Dial}, fiber.Go
}

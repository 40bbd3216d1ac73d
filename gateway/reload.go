package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// ReloadFile reads the configuration file again and applies it. A file with problems is refused whole: every problem is logged, and the error
// lists them.
func (g *Gateway) ReloadFile() (err error) {
	if g.opts.Reloading != nil {
		over := g.opts.Reloading()
		defer func() { over(err) }()
	}
	g.mu.Lock()
	file := g.cfg.File
	g.mu.Unlock()
	switch {
	case file == "":
		return ErrNoFile
	case !g.mayReload():
		return g.refuse(errNotNow, file)
	}
	g.loading.Lock() // or a file that was read earlier could be applied later
	defer g.loading.Unlock()
	cfg, problems := config.Load(file)
	g.logProblems(problems)
	if err := problems.Err(); err != nil {
		g.noteReload(err)
		g.logger.Error("reload refused, the old configuration keeps running", "config", file, "problems", len(problems))
		return err
	}
	return g.Reload(cfg)
}

// logProblems logs what was found in a configuration, a line each.
func (g *Gateway) logProblems(problems config.Problems) {
	for _, p := range problems {
		level := g.logger.Error
		if p.Warning {
			level = g.logger.Warn
		}
		level("configuration", "problem", p.String())
	}
}

// Reload applies cfg, all of it or nothing: on an error the old configuration keeps running. The package comment says what happens to
// what changed.
func (g *Gateway) Reload(cfg *config.Config) error {
	if err := g.reload(cfg); err != nil {
		return g.refuse(err, cfg.File)
	}
	g.noteReload(nil)
	return nil
}

// refuse notes that a reload was refused.
func (g *Gateway) refuse(err error, file string) error {
	g.noteReload(err)
	g.logger.Error("reload refused, the old configuration keeps running", "config", file, "error", err)
	return err
}

var errNotNow = fmt.Errorf("%w: nothing can be reloaded now", ErrClosed)

func (g *Gateway) reload(cfg *config.Config) error {
	if !g.mayReload() { // without waiting: a drain holds the lock for as long as it lasts
		return errNotNow
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if !g.mayReload() {
		return errNotNow
	}
	if cfg.Engine != g.cfg.Engine || cfg.Loops != g.cfg.Loops {
		g.logger.Warn("engine and loops change at the next start only", "engine", g.engine.Kind())
	}
	p, err := g.newPlan(cfg)
	if err != nil {
		return err
	}
	return g.commit(p)
}

// mayReload reports whether the gateway runs and is not about to end.
func (g *Gateway) mayReload() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running && !g.draining
}

func (g *Gateway) noteReload(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reloads.Last = time.Now()
	if err != nil {
		g.reloads.Refused++
		g.reloads.LastError = err.Error()
		return
	}
	g.reloads.Applied++
	g.reloads.LastError = ""
}

// commit carries a plan out. Each step was checked when the plan was made; one that fails all the same is logged and the rest is done, for
// half of the way back would be no better.
func (g *Gateway) commit(p *plan) error {
	for _, apply := range p.commits {
		if err := apply(); err != nil {
			g.logger.Error("a part of the new configuration was not applied", "error", err)
		}
	}
	for _, s := range p.starts {
		g.startService(s.service, s.socket)
	}
	if p.admin != nil && p.admin != g.admin {
		g.startAdmin(p.admin)
	}
	g.mu.Lock()
	g.cfg, g.backends, g.services, g.links, g.admin = p.cfg, p.backends, p.services, p.links, p.admin
	g.leavers = slices.Concat(g.leavers, leaversOf(p))
	g.mu.Unlock()
	g.checkOpenFiles(p.cfg)
	g.watchTunnels(p.cfg)
	if g.logs != nil {
		g.logs.apply(p.cfg.Log)
	}
	for _, s := range p.retiredSockets {
		s.retire()
	}
	for _, b := range p.retiredBackends {
		if pg, ok := b.impl.(*pgBackend); ok {
			pg.retire()
		}
	}
	g.tasks.Go(func() { g.retire(p) })
	if len(p.changes) == 0 {
		p.changes = []string{"nothing"}
	}
	g.logger.Info("reloaded", "config", p.cfg.File, "changes", strings.Join(p.changes, ", "))
	return nil
}

// acceptGrace is how long connections that a removed listener has just accepted may take to become sessions, which a drain lets finish;
// and connections that are being opened through a replaced tunnel.
const acceptGrace = time.Second

// retireGrace is how long a replaced upstream still gives connections: a session that read the old settings just before the reload may be
// about to ask.
const retireGrace = 5 * time.Second

// retire drains what a reload took out of service.
func (g *Gateway) retire(p *plan) {
	if p.retiredAdmin != nil {
		p.retiredAdmin.close()
	}
	if len(p.retiredProxies)+len(p.retiredLinks) > 0 {
		wait(g.hard, acceptGrace)
	}
	ctx, cancel := context.WithTimeout(g.hard, p.cfg.DrainTimeout)
	defer cancel()
	var links sync.WaitGroup
	for _, l := range p.retiredLinks {
		links.Go(func() { g.retireLink(ctx, l) })
	}
	inParallel(p.retiredProxies, func(s *service) error {
		if err := s.proxy.Drain(ctx); err != nil {
			g.logger.Warn("sessions of a removed listener were cut off", "listener", s.cfg.Name, "error", err)
		}
		g.left(s)
		return nil
	})
	inParallel(p.retiredBackends, func(b *backend) error {
		b.retire(g.hard)
		g.left(b)
		return nil
	})
	links.Wait()
}

// retireLink drains a tunnel that was removed or replaced.
func (g *Gateway) retireLink(ctx context.Context, l *link) {
	defer g.left(l)
	if err := l.client.Drain(ctx); err != nil {
		g.logger.Warn("connections through a removed tunnel were cut off", "tunnel", l.cfg.Name, "error", err)
	}
}

// retire closes a backend once nobody uses it any more, or hard ends.
func (b *backend) retire(hard context.Context) {
	wait(hard, retireGrace)
	if idle := b.impl.idle(); idle != nil {
		select {
		case <-idle:
		case <-hard.Done():
		}
	}
	_ = b.impl.Drain(hard) // its error is that hard ended: leases still out are closed when they come back
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// drop closes a backend that was never used.
func (b *backend) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), backendGrace)
	defer cancel()
	_ = b.impl.Drain(ctx)
}

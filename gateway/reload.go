package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// ReloadFile reads the configuration file again and applies it. It refuses a file with problems as a
// whole: each problem is logged, and the error lists them.
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
	g.loading.Lock() // otherwise a file that was read earlier could be applied later
	defer g.loading.Unlock()
	cfg, problems := config.Load(file)
	g.logProblems(problems)
	if err := problems.Err(); err != nil {
		g.noteReload(err)
		g.logger.Error("reload refused, the old configuration keeps running", "config", file, "problems", len(problems))
		return err
	}
	return g.apply(cfg, problems)
}

// logProblems logs the problems of a configuration, a line each.
func (g *Gateway) logProblems(problems config.Problems) {
	for _, p := range problems {
		level := g.logger.Error
		if p.Warning {
			level = g.logger.Warn
		}
		level("configuration", "problem", p.String())
	}
}

// Reload applies cfg, all of it or nothing: on an error the old configuration keeps running. The package comment
// describes the effects.
func (g *Gateway) Reload(cfg *config.Config) error { return g.apply(cfg, nil) }

// apply is Reload of a file that has warnings.
func (g *Gateway) apply(cfg *config.Config, warnings config.Problems) error {
	if err := g.reload(cfg); err != nil {
		return g.refuse(err, cfg.File)
	}
	g.noteReload(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reloads.LastWarnings = nil
	for _, w := range warnings {
		g.reloads.LastWarnings = append(g.reloads.LastWarnings, w.String())
	}
	return nil
}

// refuse records and logs that a reload was refused.
func (g *Gateway) refuse(err error, file string) error {
	g.noteReload(err)
	g.logger.Error("reload refused, the old configuration keeps running", "config", file, "error", err)
	return err
}

var errNotNow = fmt.Errorf("%w: nothing can be reloaded now", ErrClosed)

func (g *Gateway) reload(cfg *config.Config) error {
	if !g.lockRunning() {
		return errNotNow
	}
	defer g.reloading.Unlock()
	if cfg.Engine != g.cfg.Engine || cfg.Loops != g.cfg.Loops {
		g.logger.Warn("engine and loops change at the next start only", "engine", g.engine.Kind())
	}
	p, err := g.newPlan(cfg)
	if err != nil {
		return err
	}
	return g.commit(p)
}

// lockRunning locks reloading and reports true, or reports false if the gateway does not run, or is about to end.
func (g *Gateway) lockRunning() bool {
	if !g.mayReload() { // does not wait: a drain holds the lock until it ends
		return false
	}
	g.reloading.Lock()
	if !g.mayReload() {
		g.reloading.Unlock()
		return false
	}
	return true
}

// mayReload reports whether the gateway runs and is not about to end.
func (g *Gateway) mayReload() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running && !g.draining && !g.left
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

// commit executes a plan. Each step was checked when the plan was made. If a step fails nevertheless,
// it is logged and the other steps are done: a half-applied configuration is better than a
// half-reverted one.
func (g *Gateway) commit(p *plan) error {
	for _, apply := range p.Commit {
		if err := apply(); err != nil {
			g.logger.Error("a part of the new configuration was not applied", "error", err)
		}
	}
	for _, s := range p.starts {
		g.startSocket(s.service, s.socket)
	}
	if p.admin != nil && p.admin != g.admin {
		g.startAdmin(p.admin)
	}
	if len(p.Changes) == 0 {
		p.Changes = []string{"nothing"}
	}
	g.mu.Lock()
	g.inForce(p)
	at := time.Now() // clients that come later meet the new configuration
	g.reloads.LastChanges = strings.Join(p.Changes, ", ")
	g.retiring = slices.Concat(g.retiring, retiringOf(p))
	for _, s := range p.closed {
		failures := s.socket.failures
		g.tasks.Go(func() { g.reopen(s.service, s.socket, failures) })
	}
	g.mu.Unlock()
	g.checkOpenFiles(p.New)
	g.watchCarriers(p.New)
	if g.logs != nil {
		g.logs.apply(p.New.Log)
	}
	for _, s := range p.retiredSockets {
		s.retire()
	}
	for _, b := range p.retiredBackends {
		b.impl.Retire()
	}
	g.tasks.Go(func() {
		g.retire(p, at)
		g.accessLogs.Release(logPaths(p.Old)) // the new configuration has its own references to the files it keeps
	})
	g.logger.Info("reloaded", "config", p.New.File, "changes", strings.Join(p.Changes, ", "))
	return nil
}

// inForce puts a plan into force. mu is held.
func (g *Gateway) inForce(p *plan) {
	g.cfg, g.backends, g.services, g.admin = p.New, p.backends, p.services, p.admin
	for _, swap := range p.Swap {
		swap()
	}
}

// acceptGrace is how long connections that a removed listener has just accepted may take to become
// sessions, which a drain lets finish. It also applies to connections that are being opened through a
// replaced part of an extension.
const acceptGrace = time.Second

// retire drains the listeners and upstreams that a reload took out of service at a moment.
func (g *Gateway) retire(p *plan, at time.Time) {
	if p.retiredAdmin != nil {
		p.retiredAdmin.close()
	}
	if len(p.retiredProxies)+len(p.Retired) > 0 {
		wait(g.hard, acceptGrace)
	}
	ctx, cancel := context.WithTimeout(g.hard, p.New.DrainTimeout)
	defer cancel()
	var others sync.WaitGroup
	for _, r := range p.Retired {
		others.Go(func() { g.retireOther(ctx, r) })
	}
	inParallel(p.retiredProxies, func(s *service) error {
		if err := s.proxy.Drain(ctx); err != nil {
			g.logger.Warn("sessions of a removed listener were cut off", "listener", s.cfg.Name, "error", err)
		}
		g.retired(s)
		return nil
	})
	inParallel(p.retiredBackends, func(b *backend) error {
		g.retireBackend(b, at)
		g.retired(b)
		return nil
	})
	others.Wait()
}

// retireOther drains a part that an extension took out of service.
func (g *Gateway) retireOther(ctx context.Context, r *extend.Retired) {
	if err := r.Drain(ctx); err != nil {
		g.logger.Warn(r.Sessions+" were cut off", r.Kind, r.Name, "error", err)
	}
	if g.retired(r); r.Gone != nil {
		r.Gone()
	}
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

package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/logfile"
	"github.com/headpond/headpond/listener"
)

// Options are settings of the program rather than of the configuration file. The zero value is usable.
type Options struct {
	// Logger gets the log; nil = standard error in the format and level of the configuration, which a reload may
	// change, written by a separate goroutine. Sessions that share a thread wait while a Logger writes.
	Logger *slog.Logger
	// Version is shown in the log, on the admin page and in metrics; empty = "development".
	Version string
	// Warnings are the warnings of config.Load; they are logged at the start.
	Warnings config.Problems
	// Sockets are those of the process that this one takes over from; see Gateway.Sockets. New uses those whose addresses
	// the configuration has, and closes the others. If they are not nil, an address of UDP that is still in use does not
	// make New fail: it is opened as soon as it is free. Pauses and changes of endpoints by operators are taken over, too.
	Sockets []Socket
	// Started, if set, is called by Run once everything is served.
	Started func()
	// Reloading, if set, is called when ReloadFile begins, and over when it has ended.
	Reloading func() (over func(err error))
}

// Gateway is a running configuration. Make one with New. All methods are safe for concurrent use.
type Gateway struct {
	opts    Options
	engine  *fiber.Engine
	logger  *slog.Logger
	logs    *logControl // nil when the program gave its own logger
	started time.Time
	room    listener.Room // for clients, of all listeners together
	senders listener.Room // for sessions of datagrams: forged addresses can begin any number of them, which must not use up clients' room
	spare   spares        // for the admin page
	parts   []extend.Part // of extensions

	processes processes     // the other ones of this gateway
	vacated   chan struct{} // closed when the previous process has vacated, or there is none
	vacating  sync.Once     // closes vacated

	inherited inherited       // Options.Sockets that are not used yet; nil: none, or New is over
	toTake    operatorChanges // of the previous process; nil: none, or New is over
	leftover  []string        // paths of Unix sockets in Options.Sockets that the configuration does not have

	accessLogs *logfile.Set // nil in a check

	// reloading is held by Reload and Drain, one at a time; long operations are allowed under it.
	reloading sync.Mutex
	// loading is held by ReloadFile, and taken before reloading.
	loading sync.Mutex

	// mu guards the fields below and is never held across I/O. Reload and Drain, which hold reloading, may read without
	// it.
	mu       sync.Mutex
	cfg      *config.Config
	backends []*backend
	services []*service
	admin    *adminServer
	running  bool // Run was called
	draining bool
	left     bool // Leave was called
	reloads  admin.Reloads
	retiring []retiring // taken out of service by a reload; replaced as a whole

	pauses map[string]*pause // guarded by reloading: by upstream; some have ended by themselves

	leftAt      time.Time // when the gateway stopped accepting; zero: it has not
	drainsUntil time.Time // when Drain cuts sessions off; zero: it does not drain yet

	cutOff error // guarded by reloading: the error of the first Drain that cut sessions off

	hard   context.Context // ends at Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // serving, opening again, retiring, watchCarriers

	watching sync.Once // watchCarriers
	closing  sync.Once // closeAll
}

// New builds all parts that cfg has and binds every address. Nothing is served until Run; a Gateway
// that is not run must be closed. Errors name the listener or upstream; those about an address wrap
// ErrListen.
func New(cfg *config.Config, opts Options) (*Gateway, error) {
	links, sockets := divide(opts.Sockets)
	defer closeSockets(links) // those that join has not taken
	g := &Gateway{opts: opts, logger: opts.Logger, started: time.Now(), inherited: newInherited(sockets), vacated: make(chan struct{}), pauses: map[string]*pause{}}
	defer func() { g.leftover, g.inherited, g.toTake = g.inherited.close(), nil, nil }()
	g.room.Guard(g.spare.guard)
	if g.opts.Version == "" {
		g.opts.Version = "development"
	}
	if g.logger == nil {
		g.logger, g.logs = newLog(os.Stderr, cfg.Log)
	}
	g.accessLogs = logfile.NewSet(g.logger)
	g.newParts() // panics, so before anything runs
	if err := g.newEngine(cfg); err != nil {
		g.logs.close()
		return nil, err
	}
	g.logger.Info("starting", "version", g.opts.Version, "engine", g.engine.Kind(), "reason", g.engine.Reason(), "config", cfg.File, "pid", os.Getpid())
	g.logProblems(opts.Warnings)
	g.hard, g.cancel = context.WithCancel(context.Background())
	g.join(links)
	g.inheritChanges()
	g.awaitVacated()
	p, err := g.newPlan(cfg)
	if err != nil {
		g.cancel()
		g.processes.close()
		g.tasks.Wait()
		err = errors.Join(err, g.engine.Close())
		g.logs.close()
		return nil, err
	}
	g.mu.Lock() // extensions may call the gateway already
	defer g.mu.Unlock()
	g.inForce(p)
	return g, nil
}

// Logger returns the gateway's log.
func (g *Gateway) Logger() *slog.Logger { return g.logger }

// Run serves until ctx ends, then drains within the configuration's drain_timeout, closes everything and returns: nil
// if every session ended in time, else an error that wraps ErrCutOff. It may be called once.
func (g *Gateway) Run(ctx context.Context) error {
	if err := g.serve(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-g.hard.Done():
	}
	g.mu.Lock()
	limit := g.cfg.DrainTimeout
	g.mu.Unlock()
	drain, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := g.Drain(drain)
	g.Close()
	return err
}

// serve starts everything that New prepared.
func (g *Gateway) serve() error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	g.mu.Lock()
	if g.running || g.draining {
		g.mu.Unlock()
		return ErrClosed
	}
	g.running = true
	services, adminServer := g.services, g.admin
	g.mu.Unlock()

	g.checkOpenFiles(g.cfg)
	for _, s := range services {
		for _, sock := range s.sockets() {
			if sock.awaits() {
				g.logger.Info("waiting for the address, which the previous process has", "listener", s.cfg.Name, "address", address(sock), "network", sock.Addr().Network())
			}
			g.startSocket(s, sock)
		}
	}
	if g.opts.Sockets != nil {
		g.ownPaths()
	}
	if adminServer != nil {
		g.startAdmin(adminServer)
	}
	g.watchCarriers(g.cfg)
	g.tasks.Go(g.watchHolders)
	g.tasks.Go(g.keepTotals)
	if g.opts.Started != nil {
		g.opts.Started()
	}
	return nil
}

// Trim returns memory to the system that is kept for the next burst.
func (g *Gateway) Trim() {
	g.engine.Trim()
	runtime.GC() // pooled objects are freed by the second collection
	debug.FreeOSMemory()
}

// Drain stops accepting and waits until every session has ended. When ctx ends first, or Close is called, the remaining
// sessions are cut off and the error wraps ErrCutOff, also that of every later Drain. The admin page stays up.
// Afterwards only Close is useful.
func (g *Gateway) Drain(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.hard, cancel)()
	g.mu.Lock()
	first := !g.draining
	g.draining = true // before the lock below: /readyz must report it at once
	if first {
		g.drainsUntil, _ = ctx.Deadline()
		g.noteLeft()
	}
	g.mu.Unlock()

	g.reloading.Lock()
	defer g.reloading.Unlock()
	if first {
		g.logger.Info("draining", "sessions", g.sessions(), "timeout", g.cfg.DrainTimeout)
	}
	begin := time.Now()
	for _, b := range g.backends {
		if f, ok := b.impl.(extend.Freezer); ok {
			f.Freeze()
		}
	}
	err := g.drainAll(ctx)
	for _, s := range g.services {
		for _, sock := range s.sockets() {
			sock.retire()
		}
	}
	switch {
	case err != nil:
		g.cutOff = fmt.Errorf("%w: %w", ErrCutOff, err)
		g.logger.Warn("drained, sessions were cut off", "duration", time.Since(begin), "error", err)
	case first:
		g.logger.Info("drained", "duration", time.Since(begin))
	}
	return g.cutOff
}

// drainAll drains listeners and extensions. Parts that carry connections of this gateway's upstreams are drained after
// the sessions and the connections kept ready for them.
func (g *Gateway) drainAll(ctx context.Context) error {
	var first, last []func(context.Context) error
	var carried []*backend
	carriers := map[string]bool{} // listeners
	for _, b := range g.backends {
		if by, listener := g.carrier(&b.cfg); by != nil {
			carried = append(carried, b)
			carriers[listener] = true
		}
	}
	g.mu.Lock()
	for _, l := range g.retiring {
		if l.drain != nil {
			first = append(first, l.drain)
		}
	}
	for _, s := range g.services {
		if carriers[s.cfg.Name] {
			last = append(last, s.proxy.Drain)
		} else {
			first = append(first, s.proxy.Drain)
		}
	}
	g.mu.Unlock()
	for _, p := range g.parts {
		first = append(first, func(ctx context.Context) error { return p.Drain(ctx, false) })
		last = append(last, func(ctx context.Context) error { return p.Drain(ctx, true) })
	}
	errs := inParallel(first, func(drain func(context.Context) error) error { return drain(ctx) })
	_ = inParallel(carried, func(b *backend) error { return b.impl.Drain(ctx) }) // leases that are out are closed when released
	errs = append(errs, inParallel(last, func(drain func(context.Context) error) error { return drain(ctx) })...)
	return errors.Join(errs...)
}

// sessions counts the sessions that run.
func (g *Gateway) sessions() int {
	n := 0
	for _, s := range g.services {
		n += s.proxy.Stats().Active
	}
	return n
}

// backendGrace is how long closing the connections to backends may take after the last session.
const backendGrace = 2 * time.Second

// Close ends everything now: it cuts sessions off and closes connections. It returns when no goroutine
// of the gateway is left; a second Close only waits.
func (g *Gateway) Close() {
	g.cancel()
	_ = g.Drain(g.hard)
	g.closing.Do(g.closeAll)
}

// closeAll closes everything that remains after a drain.
func (g *Gateway) closeAll() {
	ctx, cancel := context.WithTimeout(context.Background(), backendGrace)
	defer cancel()
	for _, err := range inParallel(g.backends, func(b *backend) error { return b.impl.Drain(ctx) }) {
		if err != nil {
			g.logger.Warn("upstream was not closed cleanly", "error", err)
		}
	}
	if g.admin != nil {
		g.admin.close()
	}
	g.processes.close()
	g.tasks.Wait()
	_ = g.engine.Close()
	if !g.accessLogs.Close(flushGrace) {
		g.logger.Warn("access logs were not written to their end: their files take no lines")
	}
	g.logger.Info("stopped")
	g.logs.close()
}

// inParallel runs fn for each item at once and returns the errors, nil where there was none.
func inParallel[T any](items []T, fn func(T) error) []error {
	errs := make([]error, len(items))
	var wg sync.WaitGroup
	for i, item := range items {
		wg.Go(func() { errs[i] = fn(item) })
	}
	wg.Wait()
	return errs
}

// Addr returns the address that a listener is bound to, as host:port or unix:/path, and "" if there is
// no such listener. It differs from the configuration if that has port 0. The admin page's is
// Addr("admin"), unless a listener has that name.
func (g *Gateway) Addr(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.services {
		if s.cfg.Name == name {
			return address(s.socket)
		}
	}
	if name == "admin" && g.admin != nil {
		return address(g.admin.socket)
	}
	return ""
}

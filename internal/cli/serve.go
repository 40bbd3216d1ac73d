package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
)

// serve is `headpond serve FILE`.
func serve(e env, args []string) int {
	fs := flags("serve", "FILE", "Runs until SIGTERM or SIGINT, then lets sessions finish; a second signal ends at once. SIGHUP reads FILE again. "+
		"SIGUSR2 starts the program again, which takes the listening sockets over, and lets sessions finish.")
	watch := fs.Bool("watch", false, "also read FILE again when it changes, or a file that it names, such as a password or a certificate")
	args, code, ok := parse(e, fs, args, 1, "want one configuration file")
	if !ok {
		return code
	}
	// One pending signal of each is enough. They would end a gateway that is about to start.
	hangups, upgrades := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	notifyUpgrade(upgrades)
	defer signal.Stop(upgrades)
	var follow func(context.Context)
	if *watch {
		w := newWatcher(args[0]) // before the file is loaded: it may change meanwhile
		follow = func(ctx context.Context) { w.run(ctx, hangups) }
	}
	cfg, problems := config.Load(args[0])
	if cfg == nil {
		fatalProblems(e, args[0], problems)
		return exitProblem
	}
	code, _ = runGateway(e, cfg, control{warnings: problems, hangups: hangups, follow: follow, upgrades: upgrades, before: findPredecessor()})
	return code
}

// control has what runGateway needs besides the configuration. The zero value is usable.
type control struct {
	warnings config.Problems        // of the file; they are logged
	hangups  <-chan os.Signal       // for each, the file is read again
	follow   func(context.Context)  // asks for reloads by hangups when files change, until the context ends; nil: nothing does
	upgrades <-chan os.Signal       // for each, a successor is started
	before   *predecessor           // nil: this process takes over from none
	started  func(*gateway.Gateway) // called when everything is served; nil: nothing is
}

// runGateway runs cfg until a signal ends it, or a successor serves. portTaken reports that an address could not be bound.
func runGateway(e env, cfg *config.Config, c control) (code int, portTaken bool) {
	signal.Ignore(syscall.SIGPIPE) // a log reader that ends must not end the gateway
	defer signal.Reset(syscall.SIGPIPE)
	notify, err := newNotifier()
	if err != nil {
		tell(e, cfg.Log, slog.LevelWarn, err)
	}
	defer notify.close()
	var gw *gateway.Gateway
	ready, done := make(chan struct{}), make(chan struct{})
	options := gateway.Options{Version: version, Warnings: c.warnings, Reloading: notify.reloading, Started: func() {
		close(ready)
		if c.before == nil {
			notify.ready()
		}
		c.before.serving()
		if c.started != nil {
			c.started(gw)
		}
	}}
	if c.before != nil {
		options.Sockets = c.before.sockets
	}
	gw, err = gateway.New(cfg, options)
	if err != nil {
		tell(e, cfg.Log, slog.LevelError, err)
		return exitProblem, errors.Is(err, gateway.ErrListen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, endSignals(cfg)...)
	defer signal.Stop(signals)
	var forced atomic.Bool
	var tasks sync.WaitGroup
	tasks.Go(func() { endOn(signals, gw, func() { notify.stopping(); cancel() }, &forced, done) })
	tasks.Go(func() { tidy(ready, done, func() { gw.Trim(); releaseProgramPages() }) })
	tasks.Go(func() { notify.keepAlive(done, gw.Alive) })
	tasks.Go(func() { upgradeOn(ctx, c.upgrades, gw, notify, cancel, ready) })
	go reloadOn(c.hangups, gw, ready, done) // not waited for: the configuration may name a pipe without a writer
	if c.follow != nil {
		go c.follow(ctx) // likewise
	}
	err = gw.Run(ctx)
	close(done)
	cancel() // for upgradeOn, if Run has ended by itself
	tasks.Wait()
	if forced.Load() || err != nil && !errors.Is(err, gateway.ErrCutOff) {
		return exitProblem, false
	}
	return exitOK, false // sessions that did not end in time were cut off as configured, and logged
}

// tell logs an error of the start in the log's format.
func tell(e env, log config.Log, level slog.Level, err error) {
	if log.Format != "json" {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
		return
	}
	msg := "cannot start"
	if level < slog.LevelError {
		msg = "start"
	}
	slog.New(slog.NewJSONHandler(e.stderr, nil)).Log(context.Background(), level, msg, "error", err)
}

// fatalProblems prints why a configuration cannot be used: one problem per line, or all in one log line if the file
// selects JSON and is readable enough to tell.
func fatalProblems(e env, file string, problems config.Problems) {
	if config.LogOf(file).Format != "json" {
		_, _ = fmt.Fprint(e.stderr, problems)
		return
	}
	lines := strings.Split(strings.TrimSuffix(problems.String(), "\n"), "\n")
	slog.New(slog.NewJSONHandler(e.stderr, nil)).Error("cannot start: the configuration has problems", "config", file, "problems", lines)
}

// endSignals are the signals that end a gateway. One without a configuration file also ends with its terminal, unless
// nohup ignores that signal.
func endSignals(cfg *config.Config) []os.Signal {
	ends := []os.Signal{syscall.SIGTERM, os.Interrupt}
	if cfg.File == "" && !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	return ends
}

// endOn drains at the first signal and closes at the second, until done is closed.
func endOn(signals <-chan os.Signal, gw *gateway.Gateway, drain func(), forced *atomic.Bool, done <-chan struct{}) {
	for act := drain; ; act = func() { forced.Store(true); go gw.Close() } {
		select {
		case <-done:
			return
		case <-signals:
			act()
		}
	}
}

// reloadOn reads the configuration file again for each signal, from ready until done is closed.
func reloadOn(hangups <-chan os.Signal, gw *gateway.Gateway, ready, done <-chan struct{}) {
	select {
	case <-ready:
	case <-done:
	}
	for {
		select {
		case <-done:
			return
		case <-hangups:
			_ = gw.ReloadFile() // ReloadFile logs its error
		}
	}
}

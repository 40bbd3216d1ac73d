package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
)

// serve is `headpond serve FILE`.
func serve(e env, args []string) int {
	fs := flags(e, "serve", "FILE", "Runs until SIGTERM or SIGINT, then lets sessions finish; a second signal ends at once. SIGHUP reads FILE again.")
	if code, ok := parse(e, fs, args, 1, "want one configuration file"); !ok {
		return code
	}
	cfg, problems := config.Load(fs.Arg(0))
	_, _ = fmt.Fprint(e.stderr, problems)
	if cfg == nil {
		return exitProblem
	}
	code, _ := runGateway(e, cfg, nil)
	return code
}

// runGateway runs cfg until a signal. started, if set, is called once everything is served. portTaken reports that an address could not be
// bound.
func runGateway(e env, cfg *config.Config, started func(*gateway.Gateway)) (code int, portTaken bool) {
	var gw *gateway.Gateway
	options := gateway.Options{Version: version, Started: func() {
		if started != nil {
			started(gw)
		}
	}}
	gw, err := gateway.New(cfg, options)
	if err != nil {
		_, _ = fmt.Fprintln(e.stderr, "headpond:", err)
		return exitProblem, errors.Is(err, gateway.ErrListen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var forced atomic.Bool
	stop := onSignals(gw, cancel, &forced)
	done := make(chan struct{})
	var tidying sync.WaitGroup
	tidying.Go(func() { tidy(done) })
	err = gw.Run(ctx)
	close(done)
	tidying.Wait()
	stop()
	if forced.Load() || err != nil && !errors.Is(err, gateway.ErrCutOff) {
		return exitProblem, false
	}
	return exitOK, false // sessions that did not end in time were cut off as configured, and the log says so
}

// onSignals ends or reloads the gateway on signals, until the function it returns is called.
func onSignals(gw *gateway.Gateway, drain func(), forced *atomic.Bool) (stop func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		draining := false
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				switch {
				case s == syscall.SIGHUP:
					go func() { _ = gw.ReloadFile() }() // it logs; not here, so that a slow one cannot keep signals waiting
				case draining:
					forced.Store(true)
					go gw.Close()
				default:
					draining = true
					drain()
				}
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

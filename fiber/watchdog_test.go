package fiber_test

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// watched runs a test on an engine with one loop on which nothing runs yet.
func watched(t *testing.T, run func(e *fiber.Engine, log *lines)) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			log := newLines()
			e := newEngine(t, fiber.Config{Engine: kind, Loops: 1, Logger: log.logger()})
			for !e.WatchdogSleeps() {
				runtime.Gosched()
			}
			run(e, log)
		})
	}
}

func waitsForIt(until <-chan struct{}) { <-until }

func computes(until *atomic.Bool) {
	for !until.Load() {
	}
}

// The watchdog names a fiber that waits without releasing its loop, and one that computes for long.
func TestWatchdogNamesAFiberThatHoldsItsLoop(t *testing.T) {
	watched(t, func(e *fiber.Engine, log *lines) {
		enough := make(chan struct{})
		e.Go(func() { waitsForIt(enough) })
		<-log.on
		close(enough)
		if got := log.String(); !strings.Contains(got, "waitsForIt") {
			t.Errorf("the fiber that waits is not named:\n%s", got)
		}
		var over atomic.Bool
		e.Go(func() { computes(&over) })
		<-log.on
		over.Store(true)
		if got := log.String(); !strings.Contains(got, "fiber_test.computes(") {
			t.Errorf("the fiber that computes is not named:\n%s", got)
		}
		if n := e.Stats().Held; n != 2 {
			t.Errorf("%d times counted, want 2", n)
		}
	})
}

// A fiber that gets no processor may hold its loop for any time: the watchdog does not report it.
func TestWatchdogLeavesTheStarvingAlone(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	watched(t, func(e *fiber.Engine, log *lines) {
		var over atomic.Bool
		defer over.Store(true)
		for range 4 {
			go computes(&over)
		}
		ended := make(chan struct{})
		e.Go(func() {
			defer close(ended)
			for range 10 {
				runtime.Gosched() // the others take 10 ms each
			}
		})
		<-ended
		if n := e.Stats().Held; n != 0 {
			t.Errorf("%d times counted:\n%s", n, log.String())
		}
	})
}

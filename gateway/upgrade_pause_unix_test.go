//go:build unix

package gateway_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
)

const upgradePaused = `
drain_timeout: 1m
listeners:
  - {name: a, protocol: tcp, listen: "{a}", upstream: a}
upstreams:
  a: {endpoints: ["127.0.0.1:1"]}
`

func paused(gw *gatewaytest.Gateway) bool { return !gw.Snapshot().Upstreams[0].PausedUntil.IsZero() }

func hold(t *testing.T, gw *gatewaytest.Gateway) (undo func()) {
	t.Helper()
	undo, err := gw.HoldUpstream("a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return undo
}

// TestUpgradeKeepsWhoPaused: after an upgrade a request for a pause can be taken back, wherever it was made, and only that one.
func TestUpgradeKeepsWhoPaused(t *testing.T) {
	old := run(t, parse(t, upgradePaused, "{a}", conntest.FreeAddress(t)))
	check := func(want bool, when string, gw *gatewaytest.Gateway) {
		t.Helper()
		if paused(gw) != want {
			t.Errorf("%s: paused is %v", when, !want)
		}
	}
	pause(t, old, "a") // by ctl: nobody takes it back
	byConsole := hold(t, old)
	next := upgrade(t, old)
	hold(t, next)()
	check(true, "a request of the new process was taken back", next)
	byConsole()
	check(true, "a request of the old process was taken back", next)
	resume(t, next, "a")
	byConsole = hold(t, next)
	third := upgrade(t, next)
	fourth := upgrade(t, third)
	hold(t, fourth)()
	check(true, "another's request was taken back", fourth)
	byConsole()
	check(false, "the only request was taken back in the first process", fourth)
	pause(t, fourth, "a")
	byConsole()
	check(true, "a second undo", fourth)
}

// TestUpgradePausesOldProcesses: a pause, and its end, are for the clients of an old process, too.
func TestUpgradePausesOldProcesses(t *testing.T) {
	at := conntest.FreeAddress(t)
	old := run(t, parse(t, webText, "{listen}", at, "{web}", webServer(t, "one"), "{more}", ""))
	pause(t, old, "web")
	got := make(chan string, 1)
	go func() {
		_, body, err := get(client(t), "http://"+at+"/")
		got <- errors.Join(errors.New(body), err).Error()
	}()
	waitsInOld(t, old)
	next := upgrade(t, old)
	old.Stop()
	resume(t, next, "web")
	if body := <-got; body != "one" {
		t.Errorf("a request that waited in the old process: %s", body)
	}
	<-old.Result

	old = run(t, parse(t, upgradePaused, "{a}", conntest.FreeAddress(t)))
	next = upgrade(t, old)
	for _, change := range []func(*testing.T, *gatewaytest.Gateway, string){pause, resume} {
		change(t, next, "a")
		if paused(old) != paused(next) {
			t.Errorf("the old process is paused: %v, the new one: %v", paused(old), paused(next))
		}
	}
}

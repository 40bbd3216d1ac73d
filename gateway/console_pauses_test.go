package gateway_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pgwire"
)

// waitingPause is a PAUSE that waits.
type waitingPause struct {
	conn   *pgconn.PgConn
	result chan error
}

// begin sends a PAUSE, and returns once the upstream is paused for it.
func (c *consoleTest) begin(sql string) *waitingPause {
	c.t.Helper()
	p, before := &waitingPause{c.connect("alice", "pgbouncer"), make(chan error, 1)}, gateway.PauseRequests(c.Gateway.Gateway, "pg")
	go func() { _, err := ask(p.conn, sql); p.result <- err }()
	conntest.Eventually(c.t, sql+" counts", func() bool { return gateway.PauseRequests(c.Gateway.Gateway, "pg") > before })
	return p
}

// cancel cancels the command, which must end with the error for that.
func (p *waitingPause) cancel(c *consoleTest) {
	c.t.Helper()
	if err := p.conn.CancelRequest(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	if e, ok := errors.AsType[*pgconn.PgError](<-p.result); !ok || e.Code != "57014" {
		c.t.Errorf("after a cancel: %v", e)
	}
}

// waits fails if the command has ended.
func (p *waitingPause) waits(c *consoleTest) {
	c.t.Helper()
	select {
	case err := <-p.result:
		c.t.Fatalf("PAUSE has not waited: %v", err)
	default:
	}
}

// TestConsoleTwoPauses: each of several who pause an upstream can take only its own request back.
func TestConsoleTwoPauses(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		paused := func() bool { return !c.Snapshot().Upstreams[0].PausedUntil.IsZero() }
		holder := c.connect("bob", "app")
		for name, cancel := range map[string]func(first, second *waitingPause) (left *waitingPause){
			"the first is canceled":  func(first, second *waitingPause) *waitingPause { first.cancel(c); return second },
			"the second is canceled": func(first, second *waitingPause) *waitingPause { second.cancel(c); return first },
		} {
			c.want(holder, "begin")
			first := c.begin("pause app")
			left := cancel(first, c.begin("pause other")) // of the same upstream
			left.waits(c)
			if !paused() {
				c.t.Errorf("%s: the other's pause has ended", name)
			}
			c.want(holder, "commit")
			if err := <-left.result; err != nil || !paused() {
				c.t.Errorf("%s: %v", name, err)
			}
			again := c.connect("alice", "pgbouncer")
			c.refused(again, "pause", "55000", "already suspended/paused")
			c.want(again, "pause app; pause app")
			_ = again.Close(context.Background())
			if !paused() {
				c.t.Errorf("%s: the pause has ended with the last session that asked for it", name)
			}
			c.want(c.connect("alice", "pgbouncer"), "resume")
		}
		c.want(holder, "begin")
		first := c.begin("pause")
		second := c.begin("pause app")
		second.cancel(c)
		first.waits(c)
		if err := c.PauseUpstream("pg", time.Hour); err != nil { // as ctl pause does
			c.t.Fatal(err)
		}
		first.cancel(c)
		if !paused() {
			c.t.Error("a cancel has ended the pause of ctl")
		}
		c.want(second.conn, "resume")
		first, second = c.begin("pause app"), c.begin("pause other")
		first.cancel(c)
		second.cancel(c)
		if paused() {
			c.t.Error("all have taken the pause back, and it is in force")
		}
		c.want(holder, "commit")
	})
}

// TestConsoleCancelsAText: a cancel request ends a text of many commands, also between two of them, and is not for the next.
func TestConsoleCancelsAText(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		const commands = 5000
		conn := c.connect("alice", "pgbouncer")
		results := conn.Exec(context.Background(), strings.Repeat("show config;", commands))
		if !results.NextResult() { // it runs; more than the buffers of both systems hold is to come
			c.t.Fatal(results.Close())
		}
		if err := conn.CancelRequest(context.Background()); err != nil {
			c.t.Fatal(err)
		}
		n := 1
		for results.NextResult() {
			n++
		}
		if e, ok := errors.AsType[*pgconn.PgError](results.Close()); !ok || e.Code != "57014" || n >= commands {
			c.t.Errorf("after %d commands: %v", n, e)
		}
		if err := conn.CancelRequest(context.Background()); err != nil { // there is nothing to cancel
			c.t.Fatal(err)
		}
		c.want(conn, "show version; show version")
	})
}

// TestConsolePortals: a session keeps the rows of one portal.
func TestConsolePortals(t *testing.T) {
	eachConsole(t, trusting, func(c *consoleTest) {
		a, b := &pgwire.Bind{Portal: "a"}, &pgwire.Bind{Portal: "b"}
		some := func(portal string) pgwire.Message { return &pgwire.Execute{Portal: portal, MaxRows: 1} }
		all := func(portal string) pgwire.Message { return &pgwire.Execute{Portal: portal} }
		show := &pgwire.Parse{Query: "show lists"}
		rows := strings.Repeat("D", 13)
		for want, send := range map[string][]pgwire.Message{
			"12Ds2EZ": {show, a, some("a"), b, all("b"), all("a"), &pgwire.Sync{}},
			"12Ds2" + rows + "C" + rows + "DC" + "CZ": {show, a, some("a"), b, all("a"), all("b"), all("a"), &pgwire.Sync{}},
			"12Ds32" + rows + "DCZ":                   {show, a, some("a"), &pgwire.Close{Object: 'P', Name: "a"}, b, all("b"), &pgwire.Sync{}},
		} {
			r := c.raw()
			r.send(send...)
			if got := r.types('Z', 1); got != want {
				c.t.Errorf("%s, want %s", got, want)
			}
		}
	})
}

package pgproxy_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
)

// session waits until the client of an application is in a state.
func (g *gateway) session(t *testing.T, application string, state listener.State) (found listener.Info) {
	t.Helper()
	conntest.Eventually(t, application+" is "+string(state), func() bool {
		for _, s := range g.Sessions() {
			if s.Application == application && s.State == state {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

func (g *gateway) kill(t *testing.T, s listener.Info) {
	t.Helper()
	id, stream, ok := listener.ParseID(s.ID)
	if !ok || !g.Kill(id, stream) {
		t.Errorf("cannot kill %+v", s)
	}
}

// asks has a client ask for something, whose error it returns in the end.
func asks(t *testing.T, c *pgx.Conn, sql string) <-chan error {
	said := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), sql)
		said <- err
	}()
	return said
}

func wantKilled(t *testing.T, err error) {
	t.Helper()
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "57P01" || e.Message != "terminating connection due to administrator command" {
		t.Errorf("a client that was killed got %v", err)
	}
}

// TestRegisterFollowsClients through everything they can do.
func TestRegisterFollowsClients(t *testing.T) {
	for name, change := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		t.Run(name, func(t *testing.T) {
			g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				change(c, pc)
				c.ShowStatements, pc.Limits.MaxSize = true, 1
			})
			c := g.connect(t, "application_name=one")
			var other *pgx.Conn
			if name == "transaction" {
				other = g.connect(t, "application_name=two")
			}
			idle := g.session(t, "one", listener.StateIdle)
			if idle.User != "app" || idle.Database != "app" || idle.Upstream != "pg" || idle.Held.IsZero() != (name == "transaction") {
				t.Errorf("idle: %+v", idle)
			}
			do(t, c, "begin")
			pid := one[uint32](t, c, "select pg_backend_pid()")
			open := g.session(t, "one", listener.StateInTransaction)
			if open.ServerPID != pid || open.Endpoint == "" || open.Held.IsZero() || open.Statement != "select pg_backend_pid()" {
				t.Errorf("in a transaction, on server %d: %+v", pid, open)
			}
			asked := asks(t, c, "select pg_sleep(0.5)")
			if active := g.session(t, "one", listener.StateActive); active.ServerPID != pid || active.Held != open.Held {
				t.Errorf("active: %+v, before %+v", active, open)
			}
			if err := <-asked; err != nil {
				t.Fatal(err)
			}
			if again := g.session(t, "one", listener.StateInTransaction); again.Since.Before(open.Since) || again.Held != open.Held {
				t.Errorf("back: %+v, before %+v", again, open)
			}
			if name == "transaction" {
				served := asks(t, other, "select 2")
				if waiting := g.session(t, "two", listener.StateWaiting); waiting.Endpoint != "" || !waiting.Held.IsZero() {
					t.Errorf("waiting: %+v", waiting)
				}
				do(t, c, "commit")
				if err := <-served; err != nil {
					t.Error(err)
				}
			} else {
				do(t, c, "commit")
			}
			if idle := g.session(t, "one", listener.StateIdle); idle.Held.IsZero() != (name == "transaction") {
				t.Errorf("idle again: %+v", idle)
			}
		})
	}
}

// TestKill ends clients whatever they do, and leaves a pool that serves.
func TestKill(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	served := func() {
		t.Helper()
		c := g.connect(t, "")
		if got := one[int](t, c, "select 7"); got != 7 {
			t.Errorf("got %d", got)
		}
		_ = c.Close(context.Background())
	}
	idle := g.connect(t, "application_name=idle")
	do(t, idle, "select 1")
	g.kill(t, g.session(t, "idle", listener.StateIdle))
	wantKilled(t, <-asks(t, idle, "select 1"))
	served()

	active := g.connect(t, "application_name=active")
	asked := asks(t, active, "select pg_sleep(601)")
	waitFor(t, g, "pg_sleep(601)") // a cancel request that comes before is lost, and another test would find the statement
	g.kill(t, g.session(t, "active", listener.StateActive))
	wantKilled(t, <-asked)
	served()

	waiter := g.connect(t, "application_name=waiter")
	open := g.connect(t, "application_name=open")
	do(t, open, "begin")
	do(t, open, "select 1")
	s := g.session(t, "open", listener.StateInTransaction)
	waits := asks(t, waiter, "select 1")
	g.kill(t, g.session(t, "waiter", listener.StateWaiting))
	wantKilled(t, <-waits)
	login := make(chan error, 1)
	go func() {
		_, err := pgx.Connect(t.Context(), g.dsn("application_name=login"))
		login <- err
	}()
	g.kill(t, g.session(t, "login", listener.StateWaiting)) // for a server that knows whether the name is one
	wantKilled(t, <-login)
	g.kill(t, s)
	id, _, _ := listener.ParseID(s.ID)
	if g.Kill(id, 0) {
		t.Error("killed twice")
	}
	wantKilled(t, <-asks(t, open, "select 1"))
	served()
	conntest.Eventually(t, "no session is left", func() bool { return len(g.Sessions()) == 0 })
	if n := g.Stats().Errors[listener.ReasonKilled]; n != 5 {
		t.Errorf("%d are counted as killed, want 5", n)
	}
}

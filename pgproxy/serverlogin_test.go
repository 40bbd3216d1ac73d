package pgproxy_test

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// TestServersLoginErrors makes servers refuse the gateway. All clients that wait for a server connection get the
// server's error, without addresses.
func TestServersLoginErrors(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithHBA("host all barred 127.0.0.1/32 reject", "host all all 127.0.0.1/32 scram-sha-256"))
	db.CreateUser(t, "one", "secret")
	db.CreateUser(t, "barred", "secret")
	db.Exec(t, "alter role one connection limit 0")
	for what, c := range map[string]struct {
		change        func(*pgproxy.PostgresConfig)
		code, message string
	}{
		"database":      {func(pc *pgproxy.PostgresConfig) { pc.DBName = "nowhere" }, "3D000", `database "nowhere" does not exist`},
		"role":          {func(pc *pgproxy.PostgresConfig) { pc.User = "nobody" }, "28P01", `password authentication failed for user "nobody"`},
		"password":      {func(pc *pgproxy.PostgresConfig) { pc.Password = "not it" }, "28P01", `password authentication failed for user "postgres"`},
		"limit":         {func(pc *pgproxy.PostgresConfig) { pc.User, pc.Password = "one", "secret" }, "53300", `too many connections for role "one"`},
		"pg_hba.conf":   {func(pc *pgproxy.PostgresConfig) { pc.User, pc.Password = "barred", "secret" }, "28000", "the server does not accept the gateway's login"},
		"startup":       {refusing(t, "57P03", "the database system is starting up"), "57P03", "the database system is starting up"},
		"role, trusted": {refusing(t, "28000", `role "app" does not exist`), "28000", `role "app" does not exist`},
		"addresses":     {refusing(t, "28000", "no entry for 2001:db8::7, too"), "28000", "the server does not accept the gateway's login"},
	} {
		t.Run(what, func(t *testing.T) {
			g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.change(pc) })
			var clients sync.WaitGroup
			for range 8 {
				clients.Go(func() {
					_, err := pgx.Connect(t.Context(), g.dsn(""))
					m, ok := errors.AsType[*pgconn.PgError](err)
					if !ok || m.Severity != "FATAL" || m.Code != c.code || m.Message != c.message || has(m.Hint, "127.0.0.1") {
						t.Errorf("%v, want %s %q", err, c.code, c.message)
					}
				})
			}
			clients.Wait()
			if !has(g.log.String(), "127.0.0.1") {
				t.Error("the log does not name the server")
			}
		})
	}
}

// refusing has the gateway connect to a server that refuses every login.
func refusing(t *testing.T, code, message string) func(*pgproxy.PostgresConfig) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w := newWire(t, conn)
			if _, err := w.r.Startup(); err == nil {
				_, _ = w.Write((&pgwire.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: message}).Append(nil))
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return func(pc *pgproxy.PostgresConfig) { pc.Endpoints = upstream.Endpoints(l.Addr().String()) }
}

// TestServersLoginErrorIsNoEnd takes the login away from under a client that is there, and gives it back.
func TestServersLoginErrorIsNoEnd(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithHBA("host all all 127.0.0.1/32 scram-sha-256"))
	db.CreateUser(t, "one", "secret")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.User, pc.Password = "one", "secret" })
	conn := g.connect(t, "")
	do(t, conn, "select 1")
	db.Exec(t, "alter role one password 'other'", "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = 'one'")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		_, err := conn.Exec(t.Context(), "select 1", mode)
		if m, ok := errors.AsType[*pgconn.PgError](err); !ok || m.Severity != "ERROR" || m.Code != "28P01" || m.Message != `password authentication failed for user "one"` {
			t.Errorf("%v", err)
		}
	}
	db.Exec(t, "alter role one password 'secret'")
	conntest.Eventually(t, "the client continues", func() bool { // the pool waits between two attempts
		_, err := conn.Exec(t.Context(), "select 1")
		return err == nil
	})
}

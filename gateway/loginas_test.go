package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
)

const loginAsText = `
drain_timeout: 10s
listeners:
  - name: db
    protocol: postgres
    listen: 127.0.0.1:0
    upstream: pg
    max_conns: {conns}
    postgres:
      auth_query: "SELECT rolname::text, rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1"
      auth_upstream: pg
upstreams:
  pg:
    endpoints: ["{server}"]
    health: {postgres: true}
    pool: {max_size: {size}, acquire_timeout: 2m} # a login takes long on a busy machine
    postgres: {login_as: client, max_connections: {most}, user: gateway, password: own, params: {statement_timeout: {timeout}}}
`

// TestLoginAsClient has clients log in to the server as themselves, over reloads and a pause.
func TestLoginAsClient(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db.CreateUser(t, "ada", "secret")
	db.CreateUser(t, "bob", "secret")
	db.Exec(t, "create role gateway login superuser password 'own'", "create database shop", "create database spare")
	text := func(conns, size, timeout int) []string {
		return []string{"{server}", db.Addr(), "{conns}", fmt.Sprint(conns), "{size}", fmt.Sprint(size), "{timeout}", fmt.Sprint(timeout), "{most}", "0"}
	}
	gw := run(t, parse(t, loginAsText, text(100, 2, 60000)...))
	login := func(user, database string) *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s:secret@%s/%s?sslmode=disable", user, gw.Addr("db"), database))
		if err != nil {
			t.Fatalf("%s, %s: %v", user, database, err)
		}
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
		return conn
	}
	who := func(conn *pgx.Conn) (name string, pid int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), "select current_user || '@' || current_database(), pg_backend_pid()").Scan(&name, &pid); err != nil {
			t.Fatal(err)
		}
		return name, pid
	}
	ada, bob := login("ada", "shop"), login("bob", "spare")
	name, first := who(ada)
	if other, _ := who(bob); name != "ada@shop" || other != "bob@spare" {
		t.Errorf("the server says %s and %s", name, other)
	}
	for _, reload := range [][]string{text(50, 2, 60000), text(50, 3, 60000)} { // the listener, the pools
		if err := gw.Reload(parse(t, loginAsText, reload...)); err != nil {
			t.Fatal(err)
		}
		if name, _ := who(login("ada", "shop")); name != "ada@shop" {
			t.Errorf("after a reload: %s", name)
		}
		var kept int
		if err := db.Connect(t).QueryRow(t.Context(), "select count(*) from pg_stat_activity where pid = $1", first).Scan(&kept); err != nil || kept != 1 {
			t.Errorf("a reload that changes no login has closed the server connection: %v", err)
		}
	}
	if err := gw.Reload(parse(t, loginAsText, text(50, 3, 50000)...)); err != nil {
		t.Fatal(err)
	}
	if name, pid := who(login("ada", "shop")); name != "ada@shop" || pid == first {
		t.Errorf("after a reload with other settings: %s, the old connection: %v", name, pid == first)
	}
	if name, _ := who(ada); name != "ada@shop" {
		t.Errorf("a session of before the reload is that of %s", name)
	}
	_ = ada.Close(t.Context())
	_ = bob.Close(t.Context())
	who(login("bob", "spare"))
	var pairs []string
	for _, u := range gw.Snapshot().Upstreams {
		for _, p := range u.Tenants {
			pairs = append(pairs, p.Name)
		}
	}
	if got := fmt.Sprint(pairs); got != "[ada@shop bob@spare]" {
		t.Errorf("the pairs are %s", got)
	}
	dropWhilePaused(t, gw, db)
}

// dropWhilePaused drops a database of which pairs have idle connections.
func dropWhilePaused(t *testing.T, gw *gatewaytest.Gateway, db *pgtest.Cluster) {
	if err := gw.PauseUpstream("pg", time.Minute); err != nil {
		t.Fatal(err)
	}
	look := db.Connect(t)
	conntest.Eventually(t, "no client has the database open", func() bool {
		var n int
		return look.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = 'spare'").Scan(&n) == nil && n == 0
	})
	db.Exec(t, "drop database spare")
	if err := gw.ResumeUpstream("pg"); err != nil {
		t.Error(err)
	}
}

// TestMaxConnections has clients of many pairs share a few server connections. Their transactions are counted, and not the
// server's processes: of these there is one more for a login on trial, and some live on after their connections are closed.
func TestMaxConnections(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db.Exec(t, "create role gateway login superuser password 'own'")
	const users, most = 8, 3
	for i := range users {
		db.CreateUser(t, fmt.Sprintf("user%d", i), "secret")
	}
	pairs := []string{"{server}", db.Addr(), "{conns}", "100", "{size}", "2", "{timeout}", "60000", "{most}"}
	gw := run(t, parse(t, loginAsText, append(pairs, fmt.Sprint(most))...))
	look := db.Connect(t)
	var wg sync.WaitGroup
	var served, peak atomic.Int64
	for i := range 2 * users {
		user := fmt.Sprintf("user%d", i%users)
		wg.Go(func() {
			conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s:secret@%s/postgres?sslmode=disable", user, gw.Addr("db")))
			if err != nil {
				t.Errorf("%s: %v", user, err)
				return
			}
			defer func() { _ = conn.Close(context.Background()) }()
			for range 5 {
				var name string
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Errorf("%s: %v", user, err)
					return
				}
				n := served.Add(1)
				for was := peak.Load(); n > was && !peak.CompareAndSwap(was, n); was = peak.Load() {
				}
				err = tx.QueryRow(t.Context(), "select current_user").Scan(&name)
				served.Add(-1)
				if err = errors.Join(err, tx.Commit(t.Context())); err != nil || name != user {
					t.Errorf("%s: %q, %v", user, name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := peak.Load(); n < 1 || n > most {
		t.Errorf("%d clients were served at once, want up to %d", n, most)
	}
	conntest.Eventually(t, "the server has no more connections of clients than the limit", func() bool {
		var n int
		return look.QueryRow(t.Context(), "select count(*) from pg_stat_activity where usename like 'user_'").Scan(&n) == nil && n <= most
	})
	if err := gw.Reload(parse(t, loginAsText, append(pairs, "1")...)); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "a reload closes what is too much", func() bool {
		n := 0
		for _, u := range gw.Snapshot().Upstreams {
			for _, e := range u.Endpoints {
				n += e.Pool.Idle + e.Pool.InUse
			}
		}
		return n <= 1
	})
}

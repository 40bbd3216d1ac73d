package pgproxy_test

import (
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestFullServer has one user's pool take all of the server's connections. Other pairs keep theirs: the endpoint works.
func TestFullServer(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM, pgtest.WithSetting("max_connections", "6"), pgtest.WithSetting("superuser_reserved_connections", "3"))
	g := startPairs(t, db, passwordsOf(t, db), nil)
	bob := g.login(t, "bob", "bob's secret", "shop")
	isUser(t, bob, "bob", "shop")
	for range 2 {
		c := g.login(t, "ada", "ada's secret", "shop")
		if _, err := c.Exec(t.Context(), "begin"); err != nil {
			t.Fatal(err)
		}
	}
	g.wantRefused(t, "ada", "ada's secret", "till", "53300", "remaining connection slots are reserved", "")
	isUser(t, bob, "bob", "shop")
	probe := pgproxy.PostgresConfig{LoginAs: pgproxy.AsClient, User: "bob", Password: "bob's secret"}
	if err := pgproxy.Probe(probe)(t.Context(), db.Addr()); err != nil {
		t.Errorf("the health check of a server that clients have filled: %v", err)
	}
	if err := pgproxy.Probe(pgproxy.PostgresConfig{LoginAs: pgproxy.AsClient, User: "bob", Password: "wrong"})(t.Context(), db.Addr()); err == nil {
		t.Error("the health check with a wrong password succeeds")
	}
}

// TestDatabaseThatWaits locks a database, as CREATE DATABASE ... TEMPLATE and DROP DATABASE do for long. Its logins wait,
// those to other databases do not: the endpoint works.
func TestDatabaseThatWaits(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, passwordsOf(t, db), nil)
	isUser(t, g.login(t, "bob", "bob's secret", "shop"), "bob", "shop")
	lockAs(t, db, "alter database till rename to gone")
	setOpenTimeout := func(limit time.Duration) {
		err := g.backend.Update(upstream.Settings{
			Endpoints: upstream.Endpoints(db.Addr()), Ejection: upstream.Ejection{Failures: 1}, Limits: pool.Limits{MaxSize: 3, OpenTimeout: limit},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	setOpenTimeout(4 * time.Second) // the server's first request has to come within it
	g.wantStalls(t, []string{"ada", "bob"}, []string{"till"})
	setOpenTimeout(conntest.Patience)
	if g.backend.Status().Endpoints[0].Ejected {
		t.Error("the endpoint is ejected")
	}
	isUser(t, g.login(t, "bob", "bob's secret", "shop"), "bob", "shop")
}

// lockAs runs a statement in a transaction that stays open.
func lockAs(t *testing.T, db *pgtest.Cluster, sql string) {
	t.Helper()
	lock := db.Connect(t)
	do(t, lock, "begin")
	do(t, lock, sql)
}

// wantStalls wants logins to fail, one for each user and database at the same time, because the server does not end them.
func (g *gateway) wantStalls(t *testing.T, users, databases []string) {
	t.Helper()
	var all sync.WaitGroup
	for _, user := range users {
		for _, database := range databases {
			all.Go(func() {
				if _, err := g.as(t.Context(), t, user, user+"'s secret", database); sqlstate(err) != "08006" {
					t.Errorf("user %s, database %s: %v, want 08006", user, database, err)
				}
			})
		}
	}
	all.Wait()
}

// TestServerThatStalls has a server begin all logins, and complete none. It is ejected if more than one pair sees that.
func TestServerThatStalls(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	var gateways []*gateway
	for range 3 {
		gateways = append(gateways, startPairs(t, db, passwordsOf(t, db), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.OpenTimeout = 4 * time.Second }))
	}
	lockAs(t, db, "lock table pg_database in access exclusive mode")
	var all sync.WaitGroup
	for i, names := range []struct{ users, databases []string }{{[]string{"ada"}, []string{"shop"}}, {[]string{"ada"}, []string{"shop", "till"}}, {[]string{"ada", "bob"}, []string{"shop"}}} {
		all.Go(func() {
			gateways[i].wantStalls(t, names.users, names.databases)
			if ejected := gateways[i].backend.Status().Endpoints[0].Ejected; ejected != (i > 0) {
				t.Errorf("%v: the endpoint is ejected: %v", names, ejected)
			}
		})
	}
	all.Wait()
}

// TestRefusedLoginsCloseNothing has logins fail while all of max_connections are in use or idle: the idle ones stay, until a
// login succeeds.
func TestRefusedLoginsCloseNothing(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	db.CreateUser(t, "eve", "eve's secret")
	users := passwordsOf(t, db)
	users["eve"] = "wrong"
	g := startPairs(t, db, users, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.MaxConnections = 2 })
	ada, bob := g.login(t, "ada", "ada's secret", "shop"), g.login(t, "bob", "bob's secret", "shop")
	isUser(t, ada, "ada", "shop")
	isUser(t, bob, "bob", "shop")
	before := pids(t, db, "ada") + " " + pids(t, db, "bob")
	for range 3 {
		g.wantRefused(t, "eve", "wrong", "shop", "28P01", `password authentication failed for user "eve"`, "")
	}
	if after := pids(t, db, "ada") + " " + pids(t, db, "bob"); after != before {
		t.Errorf("the server connections of ada and bob are %s, they were %s", after, before)
	}
	g.setUsers(t, pgproxy.Users{"ada": "ada's secret", "bob": "bob's secret", "eve": "eve's secret"})
	isUser(t, g.login(t, "eve", "eve's secret", "shop"), "eve", "shop")
	look := db.Connect(t)
	conntest.Eventually(t, "there are no more than max_connections", func() bool {
		return one[int](t, look, "select count(*) from pg_stat_activity where usename in ('ada', 'bob', 'eve')") == 2
	})
	isUser(t, ada, "ada", "shop")
	isUser(t, bob, "bob", "shop")
}

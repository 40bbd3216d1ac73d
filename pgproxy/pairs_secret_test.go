package pgproxy_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
)

// beside runs another listener of a gateway's upstream.
func (g *gateway) beside(t *testing.T, db *pgtest.Cluster, users pgproxy.Users) *gateway {
	t.Helper()
	other := start(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Auth, c.Users, c.Databases = pgproxy.AuthSCRAM, users, map[string]pgproxy.Backend{"*": g.backend}
	})
	other.backend = g.backend
	return other
}

// setUsers reloads the listener with other users.
func (g *gateway) setUsers(t *testing.T, users pgproxy.Users) {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(g.log, nil))
	cfg := pgproxy.Config{Listener: listener.Config{Name: "db", Logger: logger}, Auth: pgproxy.AuthSCRAM, Users: users, Databases: map[string]pgproxy.Backend{"*": g.backend}}
	if err := g.Update(cfg); err != nil {
		t.Fatal(err)
	}
}

// pids returns the server processes of a user.
func pids(t *testing.T, db *pgtest.Cluster, user string) string {
	t.Helper()
	return one[string](t, db.Connect(t), "select coalesce(string_agg(pid::text, ' ' order by pid), '') from pg_stat_activity where usename = $1", user)
}

// wantPairs waits for the sessions of each pair, as fmt prints a map.
func (g *gateway) wantPairs(t *testing.T, want string) {
	t.Helper()
	conntest.Eventually(t, "the pairs are "+want, func() bool { all, _ := g.backend.Pairs(); return fmt.Sprint(all) == "map["+want+"]" })
}

// TestSecretsOfListeners has listeners of one upstream with different secrets for a user. Who has proven one gets no server
// connection that was opened with another.
func TestSecretsOfListeners(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	right := secretsOf(t, db)
	g := startPairs(t, db, right, nil)
	first := g.login(t, "ada", "ada's secret", "shop")
	isUser(t, first, "ada", "shop")
	weak := g.beside(t, db, pgproxy.Users{"ada": "guess"})
	for range 2 {
		weak.wantRefused(t, "ada", "guess", "shop", "28P01", `password authentication failed for user "ada"`, "")
		g.wantPairs(t, "ada@shop:1")
	}
	before := pids(t, db, "ada")
	same := g.beside(t, db, right)
	isUser(t, same.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	g.wantPairs(t, "ada@shop:2")
	if after := pids(t, db, "ada"); after != before {
		t.Errorf("a listener with the same secret opens connections: %s, and then %s", before, after)
	}
	byPassword := g.beside(t, db, passwordsOf(t, db)) // accepted by the server, and still another secret
	isUser(t, byPassword.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	g.wantPairs(t, "ada@shop:2 ada@shop (2):1")
	isUser(t, first, "ada", "shop")
}

// TestSecretChangesInTurn has two listeners of a pair learn of a new password, one after the other, ten times. There is one
// pair, whose sessions stay, and the old server connections are closed.
func TestSecretChangesInTurn(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, secretsOf(t, db), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.MaxPairs = 1 })
	other := g.beside(t, db, secretsOf(t, db))
	old, oldest := g.login(t, "ada", "ada's secret", "shop"), other.login(t, "ada", "ada's secret", "shop")
	for n := range 10 {
		password := fmt.Sprint("new ", n)
		db.Exec(t, "alter role ada password '"+password+"'")
		before := pids(t, db, "ada")
		for i, l := range []*gateway{g, other} {
			l.setUsers(t, secretsOf(t, db))
			isUser(t, l.login(t, "ada", password, "shop"), "ada", "shop")
			isUser(t, old, "ada", "shop")
			isUser(t, oldest, "ada", "shop")
			g.wantPairs(t, fmt.Sprint("ada@shop:", 3+2*n+i))
		}
		look := db.Connect(t)
		conntest.Eventually(t, "the old server connections are closed", func() bool {
			return one[int](t, look, "select count(*) from pg_stat_activity where usename = 'ada' and pid::text = any(string_to_array($1, ' '))", before) == 0
		})
	}
}

// TestSecretChangedInPause has a user's password change while the server is stopped in a pause. Clients with the new one wait for
// the end of the pause, as others do, unless they leave or are killed.
func TestSecretChangedInPause(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "create role ada login password 'old'", "create database shop")
	g := startPairs(t, db, pgproxy.Users{"ada": "old"}, nil)
	before := g.login(t, "ada", "old", "shop")
	if err := g.backend.Pause(time.Hour); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, "alter role ada password 'new'")
	db.Stop(t)
	g.setUsers(t, pgproxy.Users{"ada": "new"})
	const clients = 3
	ended := make(chan error)
	login := func(ctx context.Context) {
		_, err := g.as(ctx, t, "ada", "new", "shop")
		ended <- err
	}
	for range clients {
		go login(t.Context())
	}
	g.awaitWaitersAhead(t, clients)
	ctx, leave := context.WithCancel(t.Context())
	go login(ctx)
	g.awaitWaitersAhead(t, clients+1)
	leave()
	if err := <-ended; err == nil {
		t.Error("it has logged in during the pause")
	}
	g.awaitWaitersAhead(t, clients)
	go login(t.Context())
	g.awaitWaitersAhead(t, clients+1)
	g.kill(t, g.session(t, "", listener.StateActive))
	if err := <-ended; sqlstate(err) != "57P01" {
		t.Errorf("a client that was killed got %v", err)
	}
	g.awaitWaitersAhead(t, clients)
	db.Restart(t)
	g.backend.Resume()
	for range clients {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	isUser(t, before, "ada", "shop")
}

// TestSecretThatNoServerAccepts gives a listener a secret that is not the server's. Sessions of the pair have their server
// connections as before, and the old secret works again once the listener has it.
func TestSecretThatNoServerAccepts(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	right := passwordsOf(t, db)
	g := startPairs(t, db, right, nil)
	old := g.login(t, "ada", "ada's secret", "shop")
	isUser(t, old, "ada", "shop")
	before := pids(t, db, "ada")
	g.setUsers(t, pgproxy.Users{"ada": "wrong", "bob": "bob's secret"})
	for range 2 {
		g.wantRefused(t, "ada", "wrong", "shop", "28P01", `password authentication failed for user "ada"`, "")
		isUser(t, old, "ada", "shop")
	}
	g.setUsers(t, right)
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	g.wantPairs(t, "ada@shop:2")
	if after := pids(t, db, "ada"); after != before {
		t.Errorf("the server connections are %s, want %s", after, before)
	}
}

// TestNewSecretOfMany has many clients log in at once after a change of the password.
func TestNewSecretOfMany(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, passwordsOf(t, db), nil)
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	db.Exec(t, "alter role ada password 'new'")
	g.setUsers(t, pgproxy.Users{"ada": "new"})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			c, err := g.as(t.Context(), t, "ada", "new", "shop")
			if err != nil {
				t.Error(err)
				return
			}
			isUser(t, c, "ada", "shop")
		})
	}
	all.Wait()
	g.wantPairs(t, "ada@shop:21")
}

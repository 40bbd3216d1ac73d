package pgproxy_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
)

// TestClientLimits: clients beyond the limit of their user or database get a server's own answer, others come in, and so does
// the next one when a client leaves. A reload that lowers a limit ends nobody.
func TestClientLimits(t *testing.T) {
	var cfg pgproxy.Config
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.MaxClients = pgproxy.ClientLimits{PerUser: 3, PerDatabase: 4, Users: map[string]int{"batch": 1, "any": 0}, Databases: map[string]int{"wide": 0}}
		cfg = *c
	})
	login := func(user, database string) (*pgx.Conn, error) {
		c, err := pgx.Connect(t.Context(), g.dsn("user="+user+" dbname="+database))
		if err == nil {
			t.Cleanup(func() { _ = c.Close(context.Background()) })
		}
		return c, err
	}
	accepts := func(user, database string) *pgx.Conn {
		t.Helper()
		c, err := login(user, database)
		if err != nil {
			t.Fatalf("%s in %s: %v", user, database, err)
		}
		return c
	}
	refuses := func(user, database, message string) {
		t.Helper()
		if _, err := login(user, database); sqlstate(err) != "53300" || !has(err.Error(), message) {
			t.Errorf("%s in %s got %v, want %q", user, database, err, message)
		}
	}
	first := accepts("ada", "shop")
	accepts("ada", "shop")
	accepts("ada", "wide")
	refuses("ada", "wide", `too many connections for role "ada"`)
	batch := accepts("batch", "shop")
	refuses("batch", "wide", `too many connections for role "batch"`)
	accepts("bob", "shop")
	refuses("bob", "shop", `too many connections for database "shop"`)
	for range 5 {
		accepts("any", "wide")
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var again *pgx.Conn
	conntest.Eventually(t, "the place of a client that has left is free", func() (ok bool) {
		var err error
		again, err = login("ada", "shop")
		return err == nil
	})
	conntest.Eventually(t, "three clients count as rejected", func() bool { return g.Stats().Errors[listener.ReasonRejected] >= 3 })
	cfg.Databases, cfg.MaxClients = map[string]pgproxy.Backend{"*": g.backend}, pgproxy.ClientLimits{PerUser: 1}
	if err := g.Update(cfg); err != nil {
		t.Fatal(err)
	}
	do(t, again, "select 1")
	do(t, batch, "select 1")
	refuses("ada", "shop", `too many connections for role "ada"`)
	cfg.MaxClients = pgproxy.ClientLimits{}
	if err := g.Update(cfg); err != nil {
		t.Fatal(err)
	}
	accepts("ada", "shop")
}

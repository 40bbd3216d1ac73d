package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
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

package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// TestPairKeepsItsUser has clients of a superuser become somebody else by all ways, and leave. The next client of the pair
// is itself.
func TestPairKeepsItsUser(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	db.Exec(t, "alter role ada superuser")
	const become = "create or replace function public.become(who text, what text) returns text language plpgsql as $$ begin return set_config(what, who, false); end $$"
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := startPairs(t, db, passwordsOf(t, db), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode = mode; pc.Limits.MaxSize = 1 })
		first := g.login(t, "ada", "ada's secret", "shop")
		if _, err := first.Exec(t.Context(), become); err != nil {
			t.Fatal(err)
		}
		_ = first.Close(t.Context())
		for _, sql := range []string{
			"set session authorization bob", "set role bob", "select set_config('session_authorization', 'bob', false)",
			"do $$ begin set session authorization bob; end $$", "do $$ begin perform set_config('ro' || 'le', 'bob', false); end $$",
			"select become('bob', 'session_authorization')", "select become('bob', 'role')",
			"begin; set session authorization bob; commit", "set role bob; set session authorization bob",
		} {
			c := g.login(t, "ada", "ada's secret", "shop")
			if _, err := c.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
			_ = c.Close(t.Context())
			next := g.login(t, "ada", "ada's secret", "shop")
			if got := one[string](t, next, whoAmI); got != "ada ada shop" {
				t.Errorf("%v, after %q: the next client is %q", mode, sql, got)
			}
			_ = next.Close(t.Context())
		}
	}
}

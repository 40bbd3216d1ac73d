package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/pgproxy"
)

// TestChecksAreCounted has a client call a function that may leave something: a check follows. Statements without such calls
// are not followed by one.
func TestChecksAreCounted(t *testing.T) {
	db, name := ownDatabase(t, "create function runs() returns int language plpgsql as $$ begin execute 'select 1'; return 1; end $$")
	for catalogs, want := range map[pgproxy.Catalogs]uint64{pgproxy.CatalogsEvident: 3, pgproxy.CatalogsTrusted: 3} {
		g := start(t, db, readingCatalogs(name, catalogs, 1))
		c := g.connect(t, "")
		settle(t, g)
		before := g.Stats().StateChecks
		for range 3 {
			simple(t, c, "select runs()")
			simple(t, c, "select 1")
		}
		_ = c.Close(t.Context())
		if n := g.Stats().StateChecks - before; n != want {
			t.Errorf("%v: %d transactions are checked, want %d", catalogs, n, want)
		}
	}
}

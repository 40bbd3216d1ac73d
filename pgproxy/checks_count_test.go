package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/pgproxy"
)

// TestChecksAreCounted has a client call a function that leaves nothing: a check follows, unless the gateway trusts what it
// has read about functions. Statements without such calls are not followed by one.
func TestChecksAreCounted(t *testing.T) {
	db, name := ownDatabase(t, "create function harmless() returns int language sql as 'select 1'")
	for catalogs, want := range map[pgproxy.Catalogs]uint64{pgproxy.CatalogsEvident: 3, pgproxy.CatalogsTrusted: 0} {
		g := start(t, db, readingCatalogs(name, catalogs, 1))
		c := g.connect(t, "")
		settle(t, g)
		before := g.Stats().StateChecks
		for range 3 {
			simple(t, c, "select harmless()")
			simple(t, c, "select 1")
		}
		_ = c.Close(t.Context())
		if n := g.Stats().StateChecks - before; n != want {
			t.Errorf("%v: %d transactions are checked, want %d", catalogs, n, want)
		}
	}
}

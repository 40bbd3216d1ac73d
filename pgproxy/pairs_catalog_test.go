package pgproxy_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// inShop runs statements in the database shop, as the superuser.
func inShop(t *testing.T, db *pgtest.Cluster, statements ...string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), "shop"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	for _, sql := range statements {
		do(t, c, sql)
	}
}

// TestCatalogsOfOthers has one user fail to read the catalogs, for good: what another one has read counts for both, and
// that one reads again after DDL.
func TestCatalogsOfOthers(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	inShop(t, db, "create view by_view as select set_config('work_mem', '1MB', false)", "grant select on by_view to public", "grant create on schema public to ada",
		"revoke select on pg_proc from public", "grant select on pg_proc to bob")
	g := startPairs(t, db, passwordsOf(t, db), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.ReadCatalogs, pc.Limits.MaxSize = pgproxy.CatalogsHidden, 1
	})
	clients := map[string][2]*pgx.Conn{}
	for _, user := range []string{"ada", "bob"} {
		clients[user] = [2]*pgx.Conn{g.login(t, user, user+"'s secret", "shop"), g.login(t, user, user+"'s secret", "shop")}
	}
	ada, bob := g.backend.Pair("ada", "shop"), g.backend.Pair("bob", "shop")
	conntest.Eventually(t, "bob reads", func() bool { return bob.ReadCatalog() && bob.CatalogSettled() })
	conntest.Eventually(t, "ada tries to read", func() bool { return ada.ReadCatalog() })
	for user, c := range clients {
		simple(t, c[0], "select * from by_view")
		hasOwnWorkMem(t, c[0], c[1], user)
	}
	simple(t, clients["ada"][0], "create view later as select set_config('work_mem', '1MB', false)")
	simple(t, clients["ada"][0], "reset work_mem")
	was := bob.CatalogVersion()
	conntest.Eventually(t, "bob reads again", func() bool { simple(t, clients["bob"][0], "select 1"); return bob.CatalogVersion() != was })
	simple(t, clients["ada"][0], "select * from later")
	hasOwnWorkMem(t, clients["ada"][0], clients["ada"][1], "later")
}

// TestCatalogsOfOddSettings has a user read the catalogs whose settings change what a text of SQL means.
func TestCatalogsOfOddSettings(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	db.Exec(t, "alter role ada set standard_conforming_strings = off")
	inShop(t, db, "create function sets() returns int language plpgsql as $$ begin set work_mem = '1MB'; return 1; end $$", "create view by_function as select sets()", "grant select on by_function to public")
	g := startPairs(t, db, passwordsOf(t, db), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.ReadCatalogs, pc.Limits.MaxSize = pgproxy.CatalogsEvident, 1
	})
	c, other := g.login(t, "ada", "ada's secret", "shop"), g.login(t, "ada", "ada's secret", "shop")
	ada := g.backend.Pair("ada", "shop")
	conntest.Eventually(t, "ada reads", func() bool { return ada.ReadCatalog() && ada.CatalogSettled() })
	simple(t, c, "select * from by_function")
	for client, want := range map[*pgx.Conn]string{other: "4MB", c: "1MB"} { // pgx itself asks for another setting
		got, err := client.PgConn().Exec(t.Context(), "show work_mem").ReadAll()
		if err != nil || string(got[0].Rows[0][0]) != want {
			t.Errorf("%s, %v, want %s", got[0].Rows, err, want)
		}
	}
}

package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pgproxy"
)

// hidesBehind makes what nobody sees in the text of a statement.
const hidesBehind = `
create sequence numbers;
create view last_number as select currval('numbers') as n;
create function told() returns bigint language sql as 'select lastval()';
create view last_told as select told() as n;
create view next_number as select nextval('numbers') as n;
create view set_number as select setval('numbers', 7) as n;
create function next() returns bigint language plpgsql as $$ begin return nextval('numbers'); end $$;
create view next_told as select n from next() as n;
create view next_view as select n from next_told;
create table numbered (n bigint default nextval('numbers'));
create view by_view as select set_config('work_mem', '1MB', false);
create function sets() returns trigger language plpgsql as $$ begin perform set_config('work_mem', '1MB', false); return new; end $$;
create table by_trigger (n int);
create trigger g before insert on by_trigger for each row execute function sets();
create function locks(n int) returns int language plpgsql as $$ begin perform pg_advisory_lock(n); return n; end $$;
create view by_lock as select locks(1) as n;
create function harmless() returns int language sql as 'select 1';
create view plain as select harmless() as n;`

// TestHiddenCatalogs has views and triggers leave something, and ask for others' sequences, where the catalogs only add to what texts say.
func TestHiddenCatalogs(t *testing.T) {
	db, name := ownDatabase(t, hidesBehind)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsHidden, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	for _, sql := range []string{"select * from by_view", "insert into by_trigger values (1)"} {
		simple(t, c, "reset work_mem")
		simple(t, c, sql)
		hasOwnWorkMem(t, c, other, sql)
	}
	for _, draws := range []string{"select nextval('numbers')", "select n from next_number", "select n from set_number", "select n from next_told", "select n from next_view", "insert into numbered default values"} {
		for _, asks := range []string{"select n from last_number", "select n from last_told", "select currval('numbers')"} {
			simple(t, c, draws)
			if _, err := other.PgConn().Exec(t.Context(), asks).ReadAll(); sqlstate(err) != "55000" {
				t.Errorf("after %s another client reads %s: %v", draws, asks, err)
			}
		}
	}
	simple(t, c, "begin")
	simple(t, c, "select nextval('numbers')")
	if got := sees(t, c, "select (n > 0)::text from last_number"); got != "true" {
		t.Errorf("the client itself: %s", got)
	}
	simple(t, c, "commit")
	simple(t, c, "select * from by_lock")
	conntest.Eventually(t, "the client is pinned for its lock", func() bool { return g.Stats().Pinned == 1 })
	simple(t, c, "select pg_advisory_unlock_all()")
}

// TestHiddenCatalogsTakeNothingAway has a function that was harmless when the catalogs were read set something, by DDL that the gateway does not
// see: it is not believed to be harmless.
func TestHiddenCatalogsTakeNothingAway(t *testing.T) {
	db, name := ownDatabase(t, hidesBehind)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsHidden, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	straight, err := pgx.Connect(t.Context(), db.DSN(db.Superuser(), db.Password(), name))
	if err != nil {
		t.Fatal(err)
	}
	simple(t, straight, "create or replace function harmless() returns int language plpgsql as $$ begin set work_mem = '1MB'; return 1; end $$; "+
		"create procedure plain_call() language plpgsql as $$ begin set work_mem = '1MB'; end $$")
	_ = straight.Close(t.Context())
	for _, sql := range []string{"select harmless()", "call plain_call()"} {
		simple(t, c, sql)
		if got := sees(t, other, "show work_mem"); got != "4MB" {
			t.Errorf("%s: another client sees %s", sql, got)
		}
		simple(t, c, "reset work_mem")
	}
	judge, err := g.backend.HiddenByCatalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range append(strings.Split(hidesBehind, ";\n"), "select 1", "select harmless()", "call harmless()", "select n from plain", "insert into by_trigger values (1) on conflict (n) do nothing",
		"prepare x as select 1", "create table t as select 1", "select conflict(n)", "listen x", "select currval('numbers')", "do $$ begin load 'x'; end $$", "with harmless (n) as (select 1) select n from harmless",
		"declare c cursor with hold for select 1", "create temp table x (n int)", "select pg_advisory_lock(1), told()", "execute x", "select * from pg_prepared_statements") {
		if alone, hidden := judge(sql); alone&^hidden != 0 {
			t.Errorf("%s: %b by its text, %b with the catalogs", sql, alone, hidden)
		}
	}
}

// TestHiddenCatalogsAndDDL has a client define something that calls no function: what was read still counts. After a view, the catalogs are read again.
func TestHiddenCatalogsAndDDL(t *testing.T) {
	db, name := ownDatabase(t, hidesBehind)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsHidden, 2))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	was := g.backend.CatalogVersion()
	simple(t, c, "begin")
	simple(t, c, "alter table numbered add column m int")
	if !g.backend.CatalogSettled() {
		t.Error("what was read counts no longer")
	}
	simple(t, other, "select 1")
	simple(t, c, "create view later as select set_config('work_mem', '1MB', false)")
	simple(t, c, "commit")
	settle(t, g)
	if g.backend.CatalogVersion() == was {
		t.Error("the new view is not known")
	}
	simple(t, c, "select * from later")
	if got := sees(t, other, "show work_mem"); got != "4MB" {
		t.Errorf("another client sees %s", got)
	}
}

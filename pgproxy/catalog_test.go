package pgproxy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// hiddenFixture makes functions that leave something and functions that do not, and everything that calls some.
const hiddenFixture = `
create function sets(v text) returns text language plpgsql as $$ begin set work_mem = '1MB'; return v; end $$;
create function sets_by_config(v text) returns text language sql as $$ select set_config('work_mem', v, false) $$;
create function sets_behind(v text) returns text language sql as $$ select upper(Sets_By_Config(v)) $$;
create function sets_atomic(v text) returns text language sql begin atomic select set_config('work_mem', v, false); end;
create function calls_atomic(v text) returns text language sql begin atomic select sets(v); end;
create function seeds() returns void language sql as $$ select setseed(0.5) $$;
create function locks(n int) returns int language plpgsql as $$ begin if n > 0 then perform pg_advisory_lock(n); end if; return n; end $$;
create function makes() returns void language plpgsql as $$ begin create temp table made (n int); end $$;
create function runs(s text) returns int language plpgsql as $$ begin execute s; return 1; end $$;
create function initcap(n point) returns text language sql as $$ select sets('x') $$;
create function "Quoted Name"(v text) returns text language sql as $$ select sets(v) $$;
create function touches_view() returns bigint language sql as $$ select count(*) from by_view $$;
create aggregate sums(int) (sfunc = locks2, stype = int, initcond = '0');
create procedure proc_sets() language plpgsql as $$ begin perform sets('x'); end $$;
create function sets_quoted() returns text language sql as $$ select pg_catalog."set_config"('work_mem', '1MB', false) $$;
create function updates_settings() returns void language sql as $$ update pg_catalog.pg_settings set setting = '1024' where name = 'work_mem' $$;
create function updates_quoted() returns void language plpgsql as $$ begin update "pg_settings" set setting = '1024' where name = 'work_mem'; end $$;
create function updates_atomic() returns void language sql begin atomic update pg_settings set setting = '1024' where name = 'work_mem'; end;
create function loaded(n text) returns text language sql as $$ select set_config('work_mem', n, false) $$;
create function loaded(n int) returns text language sql as $$ select loaded(n::text) $$;
create view by_overload as select loaded(1024);
create table tidied (id int);
create function tidied() returns trigger language plpgsql as $$ begin insert into tidied values (1); perform sets('x'); return new; end $$;
create function cleans() returns void language plpgsql as $$ begin drop table if exists nothing; end $$;
do $do$ begin execute format('create function long() returns int language sql as $$ select 1 -- %s$$', repeat('x', 2 << 20)); end $do$;
create aggregate setter(text, bool) (sfunc = set_config, stype = text, initcond = 'app.x');
create function my_crosstab(text) returns setof record language c stable strict as '$libdir/tablefunc', 'crosstab';
create function quiet(float8) returns void language internal immutable as 'pg_sleep';
create function last_id() returns bigint language sql as $$ select lastval() $$;
create function links() returns void language plpgsql as $$ begin perform dblink_connect('x'); perform dblink_disconnect(); end $$;
create function audit() returns trigger language plpgsql as $$ begin perform links(); return new; end $$;
create function alters() returns trigger language plpgsql as $$ begin alter table tidied add column if not exists n int; return new; end $$;

create function harmless(v text) returns text language plpgsql stable as $$
declare r record; n int := 0;
begin
	-- set work_mem = '1MB'; execute
	if (v is null) then return 'it''s' || regexp_replace('a.b', '\d+\.', ''); elsif (v = 'x') then n := length(v); end if;
	for r in select 1 as a loop n := n + coalesce(r.a, 0); end loop;
	select count(*) into n from plain where id = n;
	update plain set v = lower(v) where id = n;
	insert into plain (id, v) values (n, v) on conflict ((id)) do update set v = excluded.v;
	perform set_config('app.who', v, true), pg_advisory_xact_lock(1);
	return also_harmless(v);
end $$;
create function also_harmless(v text) returns text language sql as $$ select case when v = '' then v else harmless(v) end $$;
create procedure proc_harmless() language plpgsql as $$ begin perform harmless('x'); commit; end $$;
create aggregate joins(text) (sfunc = textcat, stype = text, initcond = '');
create domain plain_domain as text check (also_harmless(value) is not null);

create view by_view as select set_config('work_mem', '1MB', false);
create view by_function as select sets('1MB');
create view by_view_of_view as select * from by_function;
create view "By Quoted" as select * from by_view;
create materialized view by_materialized as select 1 as n, sets('1MB');
create table by_default (id int, v text default sets('x'));
create table by_generated (id int, v text);
create table by_check (id int check (locks(id) > 0));
create table by_trigger (id int);
create function trigger_sets() returns trigger language plpgsql as $$ begin perform set_config('work_mem', new.id::text, false); return new; end $$;
create trigger t before insert on by_trigger for each row execute function trigger_sets();
create table by_rule (id int);
create rule r as on delete to by_rule do also select sets('x');
create table by_policy (id int, owner text);
alter table by_policy enable row level security;
create policy p on by_policy using (owner = sets(owner));
create function pure(n int) returns int language plpgsql immutable as $$ begin perform set_config('work_mem', '1MB', false); return n; end $$;
create table by_index (id int);
create index on by_index (pure(id));
create domain by_domain as text check (sets(value) is not null);
create table by_column (v by_domain[]);
create type by_composite as (a by_domain);
create table by_column_of_composite (v by_composite);
create table by_column_of_composites (v by_composite[]);
create table by_rule_on_settings (id int);
create rule r as on insert to by_rule_on_settings do also update pg_settings set setting = '1024' where name = 'work_mem';
create table by_statistics (id int, v text);
create statistics stats on (pure(id)), v from by_statistics;
create table by_key (id int) partition by list (pure(id));
create table key_part partition of by_key for values in (1);
create table altered (id int);
create trigger t before insert on altered for each row execute function alters();
create table by_reference (id int primary key);
create table referring (id int references by_reference on delete cascade);
create trigger t before delete on referring for each row execute function trigger_sets();
create table by_partition (id int) partition by list (id);
create table part partition of by_partition for values in (1);
create trigger t before insert on part for each row execute function trigger_sets();

create table plain (id int primary key, v text default now()::text, w plain_domain);
create view plain_view as select id, harmless(v) as v, joins(w) over () from plain;
create function trigger_harmless() returns trigger language plpgsql as $$ begin new.v := lower(new.v); return new; end $$;
create trigger t before insert on plain for each row execute function trigger_harmless();
`

// TestCatalog has the gateway judge statements, knowing the functions of the database and what calls them.
func TestCatalog(t *testing.T) {
	db, name := ownDatabase(t, "create function locks2(a int, b int) returns int language sql as 'select locks(b)';", hiddenFixture)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName = name })
	judged, err := g.backend.JudgedByCatalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"select sets('x')", "select sets_behind('x')", "select sets_atomic('x')", "select calls_atomic('x')", "select locks(1)", "select makes()", "select runs('x')",
		"select initcap('(1,2)'::point)", `select "Quoted Name"('x')`, "select touches_view()", "select sums(n) from plain", "call proc_sets()", "select unheard_of(1)",
		"select p.sets from plain p", // a function that is called without parentheses
		"select * from by_view", "select * from BY_FUNCTION", "table by_view_of_view", `select * from "By Quoted"`, "refresh materialized view by_materialized",
		"insert into by_default (id) values (1)", "insert into by_check values (1)", "insert into public.by_trigger values (1)", "copy by_trigger from stdin",
		"delete from by_rule", "select * from by_policy", "insert into by_index values (1)", "select 'x'::by_domain", "insert into by_column values ('{x}')",
		"select long()", "select sets_quoted()", "select updates_settings()", "select updates_quoted()", "select updates_atomic()", "select * from by_overload", "select loaded(1)",
		"select setter('x', false)", "select * from my_crosstab('select 1')", "select quiet(0)", "select tidied()", "select row(1)::by_composite",
		"select * from json_populate_record(null::by_composite, '{}')", "insert into by_column_of_composite values (row(1))", "insert into by_column_of_composites values ('{}')",
		"insert into by_rule_on_settings values (1)", "analyze by_statistics", "insert into key_part values (1)", "insert into altered values (1)",
		"delete from by_reference", "insert into by_partition values (1)", "with w as (select 1) insert into by_trigger table w",
	} {
		if got := judged(sql); !strings.HasPrefix(got, "?") {
			t.Errorf("%s: judged %q", sql, got)
		}
	}
	// The types of parameters: int4, and one that is not PostgreSQL's own.
	if a, b := judged("select $1\x00\x00\x01\x00\x00\x00\x17"), judged("select $1\x00\x00\x01\x00\x00\x40\x00"); a != "" || b != "?" {
		t.Errorf("parameters: judged %q and %q", a, b)
	}
	for _, sql := range []string{"select seeds()", "select links()", "select last_id()", "select audit from plain", "select seeds from plain"} { // neither is certain: it must not pin, nor be refused
		if got := judged(sql); got != "?" {
			t.Errorf("%s: judged %q", sql, got)
		}
	}
	for _, sql := range []string{
		"select cleans()", "select harmless('x')", "select public.also_harmless('x')", "call proc_harmless()", "select joins(v) from plain", "select * from plain_view", "insert into plain values (1, 'x', 'y')",
		"insert into plain (id) values (1) on conflict ((id + 1), lower(v)) where id > 0 do update set v = excluded.v", "select 'by_view'", "select 1 -- by_view", "update plain set v = 'x'",
		"select * from information_schema.tables, information_schema._pg_expandarray(array[1])", "begin",
	} {
		if got := judged(sql); got != "" {
			t.Errorf("%s: judged %q", sql, got)
		}
	}
}

// ownDatabase makes a database of the test's own, with what the fixtures make.
func ownDatabase(t *testing.T, fixtures ...string) (db *pgtest.Cluster, name string) {
	return ownDatabaseNamed(t, strings.ToLower(t.Name()), fixtures...)
}

// ownDatabaseNamed is ownDatabase for a database of that name.
func ownDatabaseNamed(t *testing.T, name string, fixtures ...string) (*pgtest.Cluster, string) {
	db := pgtest.Shared(t)
	db.Exec(t, "drop database if exists "+name+" with (force)")
	db.Exec(t, "create database "+name)
	g := start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName, cfg.Mode = name, pgproxy.Session })
	c := g.connect(t, "")
	for _, sql := range append([]string{"set check_function_bodies = off"}, fixtures...) {
		simple(t, c, sql)
	}
	_ = c.Close(t.Context())
	return db, name
}

// readingCatalogs has a gateway read the catalogs of a database, with up to maxSize server connections.
func readingCatalogs(name string, what pgproxy.Catalogs, maxSize int) func(*pgproxy.Config, *pgproxy.PostgresConfig) {
	return func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.ReadCatalogs, pc.Limits.MaxSize = name, what, maxSize
	}
}

// TestCatalogOfUnseenCalls has operators, casts and event triggers call a function: what calls them cannot be seen.
func TestCatalogOfUnseenCalls(t *testing.T) {
	const sets = "create function sets(a point, b point) returns bool language plpgsql as $$ begin perform set_config('work_mem', '1MB', false); return true; end $$;"
	for i, hidden := range []string{
		sets + "create operator === (leftarg = point, rightarg = point, function = sets)",
		"create type pair as (a int, b int); create function sets(p pair) returns text language sql as $$ select set_config('work_mem', '1MB', false) $$; create cast (pair as text) with function sets(pair) as implicit",
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			db, name := ownDatabaseNamed(t, fmt.Sprintf("unseen_calls_%d", i), hidden)
			g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName = name })
			judged, err := g.backend.JudgedByCatalog(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := judged("select 1"); got != "?" {
				t.Errorf("judged %q", got)
			}
		})
	}
}

// TestCatalogOfOddNames has names that cannot be looked up: only texts with such names are suspected.
func TestCatalogOfOddNames(t *testing.T) {
	db, name := ownDatabase(t, `create view "unusual ""name""" as select set_config('work_mem', '1MB', false);
		create function größe() returns void language plpgsql as $$ begin perform dblink_connect('x'); end $$; create view "!" as select set_config('work_mem', '1MB', false)`)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName = name })
	judged, err := g.backend.JudgedByCatalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]string{
		"select 1": "", `select "a b" from c`: "", "select 'ü'": "", `select "!"`: "?", `select * from "unusual ""name"""`: "?", "select größe()": "?", `table "größe"`: "?", "select v from größe": "?",
	} {
		if got := judged(sql); got != want {
			t.Errorf("%s: judged %q", sql, got)
		}
	}
}

// TestCatalogBehindClients has the catalogs read on a server connection in which a client has left what would mislead the query, or stop it.
func TestCatalogBehindClients(t *testing.T) {
	db, name := ownDatabase(t, "create view v as select set_config('work_mem', '1MB', false); revoke all on pg_catalog.pg_proc from public")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName = name })
	judged, err := g.backend.JudgedByCatalog(t.Context(),
		"create temp view pg_rewrite as select * from pg_catalog.pg_rewrite where false",
		"create function pg_temp.quote_ident(text) returns text language sql as 'select null'",
		"set enable_hashjoin = off; set enable_mergejoin = off; set search_path = pg_temp; set lock_timeout = '1ms'; set default_transaction_isolation = serializable",
		"set role pg_monitor")
	if err != nil {
		t.Fatal(err)
	}
	if got := judged("select * from v"); got != "?" {
		t.Errorf("judged %q", got)
	}
}

// TestCatalogReadingLeavesNothing has the catalogs read on a client's server connection: its settings and its prepared statement are still there.
func TestCatalogReadingLeavesNothing(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.ReadCatalogs, pc.Limits.MaxSize = pgproxy.CatalogsTrusted, 1
	})
	c := g.connect(t, "")
	simple(t, c, "set work_mem = '1MB'; set role pg_monitor")
	for range 2 {
		settle(t, g)
		if got := sees(t, c, "select current_setting('work_mem') || current_user"); got != "1MBpg_monitor" {
			t.Errorf("the client sees %s", got)
		}
		if got := sees(t, g.connect(t, ""), "show work_mem"); got != "4MB" {
			t.Errorf("another client sees %s", got)
		}
	}
}

// TestCatalogOfEventTriggers has DDL call a function.
func TestCatalogOfEventTriggers(t *testing.T) {
	db, name := ownDatabase(t, `create function sets() returns event_trigger language plpgsql as $$ begin set work_mem = '1MB'; end $$;
		create event trigger watch on ddl_command_end execute function sets();
		create function cleans() returns void language plpgsql as $$ begin drop table if exists nothing; end $$`)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName = name })
	judged, err := g.backend.JudgedByCatalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]bool{"create table x (n int)": true, "comment on table x is 'x'": true, "select cleans()": true, "select 1 as n into x": true, "select 1": false, "insert into x values (1)": false} {
		if got := judged(sql); strings.HasPrefix(got, "?") != want {
			t.Errorf("%s: judged %q", sql, got)
		}
	}
}

// TestHiddenSettingsFollow has a trigger, a view and a default change a setting: it follows the client, and no other has it.
func TestHiddenSettingsFollow(t *testing.T) {
	db, name := ownDatabase(t, "create function locks2(a int, b int) returns int language sql as 'select locks(b)';", hiddenFixture)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	for range 2 { // before and after the catalogs have been read
		for _, sql := range []string{"insert into by_trigger values (1024)", "select * from by_view", "insert into by_default (id) values (1)", "select sets('x')"} {
			simple(t, c, "reset work_mem")
			simple(t, c, sql)
			hasOwnWorkMem(t, c, other, sql)
		}
		settle(t, g)
	}
}

// settle has the catalogs be read, and waits until judge uses them.
func settle(t *testing.T, g *gateway) {
	t.Helper()
	conntest.Eventually(t, "the catalogs are read", func() bool { return g.backend.ReadCatalog() && g.backend.CatalogSettled() })
}

// TestDDLIsNoticed has a client make a function that was harmless set something, and another one call it.
func TestDDLIsNoticed(t *testing.T) {
	db, name := ownDatabase(t, "create function f() returns int language sql as 'select 1'; create view shown as select '1'::text as set_config")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	for _, ddl := range []string{
		"create or replace function f() returns int language plpgsql as $$ begin set work_mem = '1MB'; return 1; end $$",
		"begin; create or replace function f() returns int language sql as 'select 1'; create view hides as select set_config('work_mem', '1MB', false); commit",
		"do $$ begin create or replace view shown as select set_config('work_mem', '1MB', false); end $$",
	} {
		settle(t, g)
		simple(t, other, ddl)
		use := "select f()"
		for _, view := range []string{"hides", "shown"} {
			if strings.Contains(ddl, view) {
				use = "select * from " + view
			}
		}
		simple(t, c, use)
		hasOwnWorkMem(t, c, other, ddl)
		simple(t, c, "reset work_mem")
	}
	settle(t, g)
}

// TestDDLIsNoticedAtItsEnd has the catalogs read between DDL and its COMMIT, for which a client waits: they are read again, and the client's
// transaction is followed by a check.
func TestDDLIsNoticedAtItsEnd(t *testing.T) {
	db, name := ownDatabase(t, "create view v as select '1'::text as set_config")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 3))
	c, other, defines := g.connect(t, ""), g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	simple(t, defines, "begin")
	simple(t, defines, "create or replace view v as select set_config('work_mem', '1MB', false)")
	conntest.Eventually(t, "the catalogs are read", g.backend.ReadCatalog)
	waits := uses(t, c, "select * from v")
	waitsForLock(t, other)
	simple(t, defines, "commit")
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	followsOnly(t, g, c)
	settle(t, g)
}

// startWithUnseen starts a gateway that reads the catalogs, with two clients. The DDL of the third, unseen, is not seen by this gateway.
func startWithUnseen(t *testing.T, fixture string) (g *gateway, unseen, c, other *pgx.Conn) {
	t.Helper()
	db, name := ownDatabase(t, fixture)
	g = start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 3))
	session := start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName, cfg.Mode = name, pgproxy.Session })
	unseen, c, other = session.connect(t, ""), g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	return g, unseen, c, other
}

// usesDuringDDL has c read view v, which the transaction of ddl has locked. While c waits, other runs DDL. Then ddl commits.
func usesDuringDDL(t *testing.T, c, other, ddl *pgx.Conn) {
	t.Helper()
	waits := uses(t, c, "select * from v")
	waitsForLock(t, other)
	simple(t, other, "create view w as select 1")
	simple(t, ddl, "commit")
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
}

// TestDDLWhileClientsWait has a client wait for DDL that the gateway does not see, while there is other DDL: what it was judged by is out of date.
func TestDDLWhileClientsWait(t *testing.T) {
	g, past, c, other := startWithUnseen(t, "create view v as select '1'::text as set_config")
	simple(t, past, "begin; create or replace view v as select set_config('work_mem', '1MB', false)")
	usesDuringDDL(t, c, other, past)
	followsOnly(t, g, c)
}

// TestDDLWhileClientsLeave is TestDDLWhileClientsWait for a client that leaves in its transaction: what a view has locked is unlocked.
func TestDDLWhileClientsLeave(t *testing.T) {
	_, past, c, other := startWithUnseen(t, "create view v as select 1 as n")
	simple(t, past, "begin; create or replace view v as select 1 as n from pg_advisory_lock(5)")
	simple(t, c, "begin")
	usesDuringDDL(t, c, other, past)
	const locks = "select count(*)::text from pg_locks join pg_database d on d.oid = database where locktype = 'advisory' and datname = current_database()"
	if got := sees(t, past, locks); got != "1" {
		t.Errorf("%s locks while the client is there", got)
	}
	_ = c.Close(t.Context())
	conntest.Eventually(t, "the lock is gone", func() bool { return sees(t, past, locks) == "0" })
}

// TestCatalogOfManyNames has functions of one name call each other, as in a schema for each tenant: what is kept grows with their number only.
func TestCatalogOfManyNames(t *testing.T) {
	if n := pgproxy.CatalogEdges(5000); n != 10000 {
		t.Errorf("%d edges", n)
	}
}

// TestCatalogOfAnotherServer has the catalogs read from one server, and clients use another one that differs: they are followed by a check.
func TestCatalogOfAnotherServer(t *testing.T) {
	db, name := ownDatabase(t, "create view v as select 1 as n")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	past := start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName, cfg.Mode = name, pgproxy.Session }).connect(t, "")
	settle(t, g)
	g.backend.CatalogIsFrom("elsewhere:5432")
	for range 2 {
		simple(t, past, "create or replace view v as select 1 as n where set_config('work_mem', '1MB', false) = '1MB'")
		simple(t, c, "select * from v")
		hasOwnWorkMem(t, c, other, "")
		simple(t, c, "reset work_mem")
	}
}

// TestCatalogExpires has nobody cause the next reading: what was read does not count any more.
func TestCatalogExpires(t *testing.T) {
	db, name := ownDatabase(t)
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.ReadCatalogs = name, pgproxy.CatalogsTrusted
	})
	c := g.connect(t, "")
	for range 2 {
		settle(t, g)
		g.backend.ExpireCatalog()
		conntest.Eventually(t, "the catalog is out of date", func() bool { return !g.backend.CatalogSettled() })
	}
	conntest.Eventually(t, "the next client has it read", func() bool { simple(t, c, "select 1"); return g.backend.CatalogSettled() })
}

// uses runs a statement of a client's while the test goes on.
func uses(t *testing.T, c *pgx.Conn, sql string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.PgConn().Exec(t.Context(), sql).Close() }()
	return done
}

// waitsForLock waits until a session of the database waits for a lock.
func waitsForLock(t *testing.T, by *pgx.Conn) {
	t.Helper()
	conntest.Eventually(t, "a client waits for a lock", func() bool {
		return sees(t, by, "select count(*)::text from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") != "0"
	})
}

// hasOwnWorkMem checks that work_mem, which something hidden has set, is that of one client and not of another.
func hasOwnWorkMem(t *testing.T, c, other *pgx.Conn, sql string) {
	t.Helper()
	if got := sees(t, other, "show work_mem"); got != "4MB" {
		t.Errorf("%s: another client sees %s", sql, got)
	}
	if got := sees(t, c, "show work_mem"); got != "1MB" {
		t.Errorf("%s: the client sees %s", sql, got)
	}
}

// followsOnly checks that work_mem, which something hidden has set, is that of one client only.
func followsOnly(t *testing.T, g *gateway, c *pgx.Conn) {
	t.Helper()
	others := []*pgx.Conn{g.connect(t, ""), g.connect(t, ""), g.connect(t, "")}
	for _, o := range others { // each has a server connection of its own
		simple(t, o, "begin")
	}
	for _, o := range others {
		if got := sees(t, o, "show work_mem"); got != "4MB" {
			t.Errorf("another client sees %s", got)
		}
		simple(t, o, "commit")
	}
	if got := sees(t, c, "show work_mem"); got != "1MB" {
		t.Errorf("the client sees %s", got)
	}
}

// TestHiddenSeed has a function call setseed: no other client gets the server connection, and many clients may do so.
func TestHiddenSeed(t *testing.T) {
	db, name := ownDatabase(t, "create function seeds() returns void language sql as 'select setseed(0.5)'")
	g := start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.ReadCatalogs, pc.Limits.MaxSize, cfg.MaxPinned = name, pgproxy.CatalogsTrusted, 1, 1
	})
	settle(t, g)
	const pid = "select pg_backend_pid()::text"
	c := g.connect(t, "")
	for range 3 {
		other := g.connect(t, "")
		was := sees(t, c, pid)
		simple(t, other, "select seeds()")
		if sees(t, c, pid) == was {
			t.Error("another client has the seeded server connection")
		}
	}
}

// TestTextsThatDefine tells statements after which what is known may be wrong from others.
func TestTextsThatDefine(t *testing.T) {
	for sql, want := range map[string]bool{
		"create table t (id serial primary key, at timestamptz default now(), r int references o on delete cascade)": false,
		"create unlogged table t (id int check (id > 0))":                                                            false,
		"create temp table t as select lower('X')":                                                                   false,
		"create temp table t as select mine()":                                                                       false,
		"create temporary table if not exists t on commit drop as select mine()":                                     false,
		"create temp table t (as_of text default mine())":                                                            true,
		"create unique index on t (lower(v))":                                                                        false,
		"create table t (v text default mine())":                                                                     true,
		"create table t (v text default set_config('a.b', 'c', false))":                                              true,
		"create temp table t (v bool default pg_try_advisory_lock(1))":                                               true,
		"create index on t (mine(v))":                                                                                true,
		"create view v as select 1":                                                                                  true,
		"select 1; create or replace function f() returns int language sql as 'select'":                              true,
		"create schema s create view v as select 1":                                                                  true,
		"alter table t attach partition p for values in (1)":                                                         true,
		"alter role r set work_mem = '1MB'":                                                                          false,
		"alter sequence q restart":                                                                                   false,
		"alter sequence q cache 10":                                                                                  true,
		"create sequence q cache 10":                                                                                 true,
		"insert into cache values (1)":                                                                               false,
		"commit prepared 'x'":                                                                                        true,
		"commit":                                                                                                     false,
		"commit and chain":                                                                                           false,
		"drop function f":                                                                                            false,
		"insert into t values ('create view')":                                                                       false,
		"do $$ begin create view v as select 1; end $$":                                                              true,
	} {
		if got := pgproxy.Defines(sql); got != want {
			t.Errorf("%s: %v", sql, got)
		}
	}
}

// TestCatalogOfPastDDL has somebody else run DDL, past the gateway: it is noticed when the catalogs are read again.
func TestCatalogOfPastDDL(t *testing.T) {
	db, name := ownDatabase(t, "create view v as select 1")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	was := g.backend.CatalogVersion()
	past := start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName, cfg.Mode = name, pgproxy.Session })
	simple(t, past.connect(t, ""), "drop view v; create view v as select set_config('work_mem', '1MB', false)")
	conntest.Eventually(t, "the catalogs are read", func() bool { g.backend.ReadCatalog(); return g.backend.CatalogVersion() != was })
	simple(t, c, "select * from v")
	if got := sees(t, other, "show work_mem"); got != "4MB" {
		t.Errorf("another client sees %s", got)
	}
}

// TestDDLInSessionMode has a client in session mode, or one with a long text, run DDL on a backend that others use in transaction mode.
func TestDDLInSessionMode(t *testing.T) {
	const hides = "create or replace view v as select set_config('work_mem', '1MB', false)"
	db, name := ownDatabase(t, "create view v as select '1'::text as set_config")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 1))
	inSession := start(t, db, func(cfg *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		cfg.Mode, cfg.Databases = pgproxy.Session, map[string]pgproxy.Backend{"*": g.backend}
	})
	c := g.connect(t, "")
	other := func(sql string) {
		s := inSession.connect(t, "")
		simple(t, s, sql)
		_ = s.Close(t.Context())
	}
	for _, run := range []func(){
		func() { other(hides) },
		func() { other("begin;" + hides + ";commit") },
		func() { simple(t, c, hides+"-- "+strings.Repeat("x", 70<<10)) },
		func() { do(t, c, hides+"-- "+strings.Repeat("x", 300<<10)) },
	} {
		simple(t, c, "drop view v; create view v as select '1'::text as set_config")
		settle(t, g)
		other("create temp table mails (n text); insert into mails values ('please create an account')")
		if !g.backend.CatalogSettled() {
			t.Error("a literal, or a temporary table, counts as DDL")
		}
		run()
		simple(t, c, "select * from v")
		hasOwnWorkMem(t, c, g.connect(t, ""), "")
		simple(t, c, "reset work_mem")
	}
}

// TestCatalogRefused has a server refuse the query for the catalogs: texts are judged alone from then on.
func TestCatalogRefused(t *testing.T) {
	g, f := startFake(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.ReadCatalogs = pgproxy.CatalogsTrusted })
	w := g.dial(t) // behind its login they are due
	srv := <-f.conns
	if typ, sql := srv.read(); typ != pgwire.TypeQuery || !strings.Contains(sql, "pg_proc") {
		t.Fatalf("%c %q", typ, sql)
	}
	srv.send(&pgwire.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "42P01", Message: "relation pg_proc does not exist"},
		&pgwire.ReadyForQuery{Status: pgwire.TxFailed})
	if got := srv.answerQuery(); got != "ROLLBACK" {
		t.Fatal(got)
	}
	conntest.Eventually(t, "the gateway gives up", g.backend.TextsAlone)
	for i, sql := range []string{"select 2", "create view v as select 1", "select 3"} {
		w.send(query(sql))
		if got := srv.answerQuery(); got != sql {
			t.Fatalf("%q, want %q", got, sql)
		}
		w.until(pgwire.TypeReadyForQuery)
		if i == 1 { // a temporary one, perhaps
			srv.answerLook("0")
		}
	}
	if !strings.Contains(g.log.String(), "cannot be read") {
		t.Error("the log does not tell of it")
	}
}

// TestDrainEndsCatalogReading has a server not answer while the catalogs are read: a drain does not wait for it.
func TestDrainEndsCatalogReading(t *testing.T) {
	g, f := startFake(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.ReadCatalogs = pgproxy.CatalogsTrusted })
	g.dial(t)
	srv := <-f.conns
	if _, sql := srv.read(); !strings.Contains(sql, "pg_proc") {
		t.Fatal(sql)
	}
	ctx, stop := context.WithTimeout(t.Context(), pgproxy.CatalogTimeout*2/3)
	defer stop()
	if err := g.backend.Drain(ctx); err != nil {
		t.Error(err)
	}
}

// TestRetiredBackendKnowsNothing has a backend be replaced: it does not hear of DDL any more, so that every transaction is followed by a check.
func TestRetiredBackendKnowsNothing(t *testing.T) {
	db, name := ownDatabase(t, "create view v as select 1")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	g.backend.Retire()
	next := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.ReadCatalogs = name, pgproxy.CatalogsTrusted
	})
	simple(t, next.connect(t, ""), "drop view v; create view v as select set_config('work_mem', '1MB', false)")
	simple(t, c, "select * from v")
	hasOwnWorkMem(t, c, other, "")
}

// TestTemporaryTableHides has a temporary table call a function by a default: what that sets follows its client, pinned or not.
func TestTemporaryTableHides(t *testing.T) {
	db, name := ownDatabase(t, "create function sets() returns text language plpgsql as $$ begin set work_mem = '1MB'; return 'x'; end $$")
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsTrusted, 2))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	simple(t, c, "create temp table own (n int, v text default sets())")
	settle(t, g)
	simple(t, c, "insert into own (n) values (1)")
	simple(t, c, "drop table own")
	hasOwnWorkMem(t, c, other, "")
}

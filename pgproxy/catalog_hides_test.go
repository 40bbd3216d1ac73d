package pgproxy_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pgproxy"
)

// plainDDL are texts after which no statement calls a function that it does not show.
var plainDDL = []string{
	"create table t (id bigint generated always as identity primary key, n numeric(10,2) not null default 0, v varchar(20) unique, at timestamptz default now(), r int references o (id) on delete cascade, check (n > 0), foreign key (r) references o (id))",
	"create table if not exists s.t (like u including all) with (fillfactor = 70)",
	"create table t (id int, at date) partition by range (at)",
	"create table t_1 partition of t for values from ('2024-01-01') to ('2024-02-01')",
	"create table t_2 partition of t for values with (modulus 4, remainder 0)",
	"create unlogged table t (d text default current_user)",
	"create temp table t (id serial, v text) on commit drop", "create temporary table t as select f()", "create temp table t (v text default f(), w geometry(point))", "create temp view w as select f() from t", "create or replace temporary view w as select count(*) from t",
	"create index on t (a, b desc)", "create index concurrently if not exists i on only s.t using btree (a, lower(b)) include (c) where a > 0", "create unique index i on t (a)", "create index on t using hnsw (v vector_l2_ops) with (m = 16)",
	"create sequence q cache 10", "create schema s", "create schema if not exists s authorization r", "create type e as enum ('a', 'b')", "create type p as (a int, b text)",
	"create domain d as text not null check (length(value) < 10)", "create role r", "create server w foreign data wrapper f", "create statistics s on a, b from t",
	"alter table t add column n int not null default 0", "alter table t add n numeric(10,2) default now(), drop column c", "alter table t rename column a to b", "alter table t alter a type bigint using a::bigint",
	"alter table t attach partition p for values in (1)", "alter table t detach partition p concurrently", "alter table t add constraint c foreign key (a) references o (id) not valid", "alter table t validate constraint c",
	"alter table t add constraint u unique using index i", "alter table t set (fillfactor = 70)", "alter table t alter a set default 1", "alter table t alter a drop default", "alter table t owner to r", "alter table t add check (a > 0)",
	"alter type e add value 'c' after 'b'", "alter type p add attribute c int", "alter domain d add check (value <> '')", "alter view v rename to w", "alter index i rename to j", "alter sequence q restart", "alter sequence q cache 5",
	"alter role r set work_mem = '1MB'", "alter default privileges grant select on tables to r",
	"truncate t", "drop trigger g on t", "drop function f(int)", "drop table t", "comment on table t is 'create trigger'", "grant select on t to r", "vacuum t", "analyze", "refresh materialized view m", "insert into t values ('create trigger')",
	"do $$ begin create temp table t (n int); end $$", "do $$ begin create table if not exists t_3 partition of t for values in (3); end $$", "do $$ begin execute format('alter table %I add column n int', 't'); end $$",
}

// hidingDDL are texts after which statements may call a function that they do not show.
var hidingDDL = []string{
	"create trigger g before insert on t for each row execute function f()", "create or replace trigger g after insert on t execute function f()", "create constraint trigger g after insert on t for each row execute function f()",
	"create event trigger e on ddl_command_start execute function f()", "alter event trigger e enable", "create rule r as on insert to t do also select f()", "create policy p on t using (true)", "alter policy p on t using (f())",
	"create operator === (leftarg = int, rightarg = int, function = f)", "create operator class c for type t using btree as function 1 f(t, t)", "create cast (a as b) with function f(a)", "create aggregate f(int) (sfunc = g, stype = int)",
	"create type r as range (subtype = float8, subtype_diff = f)", "create type b (input = f, output = g)", "create domain d as text check (f(value))", "alter domain d set default f()", "alter type b set (receive = f)",
	"create function f() returns int language sql as 'select 1'", "create or replace function f() returns trigger language plpgsql as $$ begin return new; end $$", "create or replace procedure p() language sql as ''",
	"alter function f() rename to g", "alter trigger g on t rename to h", "create view v as select 1", "create or replace view v as select n from t", "create materialized view m as select 1", "create extension e", "alter extension e update",
	"create table t (v text default f())", "create table t (v text check (f(v)))", "create table t (v text generated always as (f(w)) stored)", "create table t (v text default set_config('a.b', 'c', false))",
	"create table t (v text default f()); create table u as select 1", "create index on t (f(v))", "create index i on t (lower(v)) where f(v)", "create statistics s on (f(a)), b from t",
	"alter table t alter v set default f()", "alter table t alter v set default set_config('work_mem', '1MB', false)", "alter table t add column v text default f()", "alter table t add check (f(v)) not valid", "alter table t enable trigger g",
	"alter table t enable row level security", "alter table t enable always rule r", "alter view v alter n set default f()", "alter table t alter v type text using f(v)",
	"create schema s create view v as select 1", "select 1; create trigger g before insert on t execute function f()", "create /* long */ function f() returns int language sql as ''", "import foreign schema a from server b into c",
	"do $$ begin create view v as select 1; end $$", "do $$ begin execute 'create ' || x; end $$", "do $$ begin alter table t alter v set default f(); end $$", "do $$ begin create or replace function f() returns int language sql as ''; end $$",
}

// TestTextsThatHide tells statements after which others call functions unseen from other definitions.
func TestTextsThatHide(t *testing.T) {
	for want, texts := range map[bool][]string{false: plainDDL, true: hidingDDL} {
		for _, sql := range texts {
			if got := pgproxy.Hides(sql); got != want {
				t.Errorf("%s: %v", sql, got)
			}
			if want && !pgproxy.Defines(sql) {
				t.Errorf("%s: defines nothing", sql)
			}
		}
	}
}

// beforeHiding makes tables, and functions that leave a setting or a lock.
const beforeHiding = `
create table t (n int); create table d (n int, s text); create table k (n int); create table l (n int); create table ruled (n int); create table m (n int); create table b (n int); create table plain (n int);
create function sets() returns text language plpgsql as $$ begin perform set_config('work_mem', '1MB', false); return 'x'; end $$;
create function fires() returns trigger language plpgsql as $$ begin perform set_config('work_mem', '1MB', false); return new; end $$;
create function locks() returns trigger language plpgsql as $$ begin perform pg_advisory_lock(4711); return new; end $$;
create function calm() returns trigger language plpgsql as $$ begin return new; end $$;
create function equal(a point, b point) returns bool language plpgsql as $$ begin perform set_config('work_mem', '1MB', false); return true; end $$;
create table calmed (n int); create trigger g before insert on calmed for each row execute function calm();
create table sleeps (n int); create trigger g before insert on sleeps for each row execute function fires();
create table p (n int) partition by list (n); create trigger g before insert on p for each row execute function fires();
create table q (n int) partition by list (n); create table q1 (n int)`

// hidden are definitions, each with a statement that they make change work_mem.
var hidden = [][2]string{
	{"create trigger g before insert on t for each row execute function fires()", "insert into t values (1)"},
	{"alter table d alter s set default sets()", "insert into d values (1)"},
	{"alter table k add check (sets() is not null) not valid", "insert into k values (1)"},
	{"create rule r as on insert to ruled do also select sets()", "insert into ruled values (1)"},
	{"create or replace function calm() returns trigger language plpgsql as $$ begin perform set_config('work_mem', '1MB', false); return new; end $$", "insert into calmed values (1)"},
	{"create view v as select sets()", "select * from v"},
	{"create operator === (leftarg = point, rightarg = point, function = equal)", "select point '(1,1)' === point '(1,1)'"},
	{"create table u (n int, s text default sets())", "insert into u values (1)"},
	{"do $$ begin execute 'create trigger g before insert on m for each row execute function fires()'; end $$", "insert into m values (1)"},
	{"do $$ begin create table p1 partition of p for values in (1); end $$", "insert into p1 values (1)"},
	{"begin; alter table b add c int; create trigger g before insert on b for each row execute function fires(); commit", "insert into b values (1)"},
}

// TestHiddenAtOnce has a client define something that changes a setting behind another one's statement, before the catalogs are read again: no third
// client sees it. Of a lock of the session, the client keeps the server connection.
func TestHiddenAtOnce(t *testing.T) {
	for what, cases := range map[pgproxy.Catalogs][][2]string{pgproxy.CatalogsEvident: hidden, pgproxy.CatalogsHidden: hidden[:2]} {
		db, name := ownDatabase(t, beforeHiding)
		g := start(t, db, readingCatalogs(name, what, 1))
		defines, uses, other := g.connect(t, ""), g.connect(t, ""), g.connect(t, "")
		for _, c := range cases {
			settle(t, g)
			simple(t, defines, c[0])
			simple(t, uses, c[1])
			hasOwnWorkMem(t, uses, other, what.String()+": "+c[0])
			simple(t, uses, "reset work_mem")
		}
		settle(t, g)
		simple(t, defines, "create trigger g before insert on l for each row execute function locks()")
		simple(t, uses, "insert into l values (1)")
		conntest.Eventually(t, "the client is pinned for its lock", func() bool { return g.Stats().Pinned == 1 })
		_ = uses.Close(t.Context())
		if n := sees(t, other, "select count(*)::text from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"); n != "0" {
			t.Errorf("%v: another client has %s locks", what, n)
		}
	}
}

// TestHiddenAtFirst has a client use a trigger before the catalogs have been read for the first time.
func TestHiddenAtFirst(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	_ = g.backend.HoldReading()
	c, other := g.connect(t, ""), g.connect(t, "")
	simple(t, c, "insert into sleeps values (1)")
	hasOwnWorkMem(t, c, other, "")
}

// TestHiddenWhileClientsWait has a statement wait for a transaction that makes a trigger for it: it was judged before.
func TestHiddenWhileClientsWait(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 3))
	defines, c, other := g.connect(t, ""), g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	simple(t, defines, "begin")
	simple(t, defines, "alter table t add column c int")
	waits := uses(t, c, "insert into t values (1)")
	waitsForLock(t, other)
	simple(t, defines, "create trigger g before insert on t for each row execute function fires()")
	simple(t, defines, "commit")
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	followsOnly(t, g, c)
}

// TestHiddenWhileCatalogsAreRead has a client make a trigger, and a table a partition of the trigger's while the catalogs are read for that.
func TestHiddenWhileCatalogsAreRead(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	defines, c, other := g.connect(t, ""), g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	end := g.backend.HoldReading()
	simple(t, defines, "create trigger g before insert on q for each row execute function fires()")
	end(true)
	end = g.backend.HoldReading()
	simple(t, defines, "alter table q attach partition q1 for values in (1)")
	end(true)
	simple(t, c, "insert into q1 values (1)")
	hasOwnWorkMem(t, c, other, "")
}

// TestHiddenInSessionMode has a client in session mode make triggers and defaults on a backend that others use in transaction mode.
func TestHiddenInSessionMode(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	inSession := start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		cfg.Mode, cfg.Databases = pgproxy.Session, map[string]pgproxy.Backend{"*": g.backend}
	})
	settle(t, g)
	for _, of := range []struct {
		ddl, dml string
		prepared bool // the text comes long before it is run
	}{
		{"create trigger g before insert on t for each row execute function fires()", "insert into t values (1)", false},
		{"alter table d alter s set default sets()", "insert into d values (1)", true},
		{"create table u (n int, s text default sets())", "insert into u values (1)", true},
	} {
		defines := inSession.connect(t, "")
		if of.prepared {
			if _, err := defines.Prepare(t.Context(), of.ddl, of.ddl); err != nil {
				t.Fatal(err)
			}
		}
		// No reading has a server connection here: the client in session mode has it.
		end := g.backend.HoldReading()
		end(true)
		if _, err := defines.Exec(t.Context(), of.ddl); err != nil {
			t.Fatal(err)
		}
		_ = defines.Close(t.Context())
		c, other := g.connect(t, ""), g.connect(t, "")
		simple(t, c, of.dml)
		hasOwnWorkMem(t, c, other, of.ddl)
	}
}

// TestHiddenBehindRetiredBackend has a backend be replaced, whose clients remain: it does not hear of DDL any more.
func TestHiddenBehindRetiredBackend(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	g.backend.Retire()
	next := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	simple(t, next.connect(t, ""), "create trigger g before insert on t for each row execute function fires()")
	simple(t, c, "insert into t values (1)")
	hasOwnWorkMem(t, c, other, "")
}

// TestPlainDDLCostsNoChecks has a client run DDL that hides no calls: the transactions of others, beside it and behind it, are followed by no check.
func TestPlainDDLCostsNoChecks(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 2))
	c, other := g.connect(t, ""), g.connect(t, "")
	for _, ddl := range []string{
		"create table a (id bigint generated always as identity primary key, n numeric(10,2) default 0 check (n >= 0), at timestamptz default now()) partition by range (id)", "create table a_1 partition of a for values from (1) to (10)",
		"create index on a (n, at desc)", "alter table a add column v varchar(20) not null default ''", "alter table a detach partition a_1", "alter table a attach partition a_1 for values from (1) to (10)", "truncate a",
		"create type e as enum ('x')", "create schema own", "alter table a rename to b2", "drop table b2", "create temp table m (n int) on commit drop",
	} {
		settle(t, g)
		before := g.Stats().StateChecks
		simple(t, c, "begin")
		simple(t, c, ddl)
		for range 3 {
			simple(t, other, "insert into plain values (1)")
		}
		simple(t, c, "commit")
		for range 3 {
			simple(t, other, "insert into plain values (1)")
		}
		if n := g.Stats().StateChecks - before; n != 0 {
			t.Errorf("%s: %d checks", ddl, n)
		}
	}
}

// TestChecksEndWithReading has a client define a trigger: while the transaction is open every other transaction is followed by a check, and none is
// once the catalogs have been read again, which is soon. So it is if the DDL is rolled back.
func TestChecksEndWithReading(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 2))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	for _, end := range []string{"rollback", "commit"} {
		simple(t, c, "begin")
		simple(t, c, "create trigger g before insert on t for each row execute function fires()")
		if !checked(t, g, other) {
			t.Error("no check beside the DDL")
		}
		simple(t, c, end)
		conntest.Eventually(t, "the catalogs are read", func() bool { simple(t, other, "select 1"); return g.backend.CatalogSettled() })
		simple(t, other, "select 1") // the last one that may have been judged before
		if checked(t, g, other) {
			t.Errorf("a check after %s, and after the catalogs were read", end)
		}
	}
}

// checked reports whether checks follow plain statements of a client. The client's next statement comes after the check.
func checked(t *testing.T, g *gateway, c *pgx.Conn) bool {
	t.Helper()
	simple(t, c, "begin; commit")
	before := g.Stats().StateChecks
	simple(t, c, "select 1")
	simple(t, c, "select 1")
	return g.Stats().StateChecks > before
}

// TestChecksEndWithoutReading has the catalogs not be read after DDL, in spite of many attempts: checks follow for a time, not for good.
func TestChecksEndWithoutReading(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	c, other := g.connect(t, ""), g.connect(t, "")
	settle(t, g)
	end := g.backend.HoldReading()
	simple(t, c, "create trigger g before insert on t for each row execute function fires()")
	for range 5 {
		end(false)
		end = g.backend.HoldReading()
		if !checked(t, g, other) {
			t.Error("no check before the catalogs have been read")
		}
	}
	g.backend.EndPatience()
	end(false)
	_ = g.backend.HoldReading()
	simple(t, other, "select 1")
	if checked(t, g, other) {
		t.Error("checks for good")
	}
	simple(t, c, "drop trigger g on t; create rule r as on insert to ruled do also select sets()")
	simple(t, other, "insert into ruled values (1)")
	hasOwnWorkMem(t, other, c, "")
}

// TestNeverReadCatalogs has catalogs that were never read, in spite of several attempts: DDL causes no checks.
func TestNeverReadCatalogs(t *testing.T) {
	db, name := ownDatabase(t, beforeHiding)
	g := start(t, db, readingCatalogs(name, pgproxy.CatalogsEvident, 1))
	end := g.backend.HoldReading()
	c, other := g.connect(t, ""), g.connect(t, "")
	if !checked(t, g, other) {
		t.Error("no check before the first attempt")
	}
	for range 3 {
		end(false)
		end = g.backend.HoldReading()
	}
	for _, ddl := range []string{"select 1", "create rule r as on insert to ruled do also select sets()"} {
		simple(t, c, ddl)
		simple(t, other, "select 1")
		if checked(t, g, other) {
			t.Errorf("a check after %s", ddl)
		}
	}
}

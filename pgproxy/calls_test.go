package pgproxy_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// callsFixture has functions that leave nothing.
const callsFixture = `
create table entries (n int);
create function inner_one(n int) returns int language sql as $$ select n + 1 $$;
create function outer_one(n int) returns int language plpgsql as $$ begin return inner_one(n); end $$;
create function writes(n int) returns void language plpgsql as $$ begin insert into entries values (n); end $$;
create function local_set() returns text language plpgsql as $$ begin return set_config('app.user', 'x', true); end $$;
create procedure commits() language plpgsql as $$ begin insert into entries values (1); commit; insert into entries values (2); end $$;
create function fails() returns int language plpgsql as $$ begin raise exception 'no'; end $$;
create function runs() returns int language plpgsql as $$ begin execute 'select 1'; return 1; end $$;
create function locks(n int) returns int language plpgsql as $$ begin execute 'select pg_advisory_lock(4711)'; return 1; end $$;
`

// startCalls runs a gateway with one server connection before a database with callsFixture, and one that the first gateway
// does not know of, whose DDL it does not see. The first one has read the functions.
func startCalls(t *testing.T, name string, change func(*pgproxy.Config)) (g, aside *gateway) {
	t.Helper()
	db, name := ownDatabaseNamed(t, "calls_"+name, callsFixture)
	read := readingCatalogs(name, pgproxy.CatalogsEvident, 1)
	g = start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		read(cfg, pc)
		if change != nil {
			change(cfg)
		}
	})
	readCalls(t, g)
	return g, asideOf(t, db, name)
}

// asideOf runs a gateway for DDL that another one does not see.
func asideOf(t *testing.T, db *pgtest.Cluster, name string) *gateway {
	return start(t, db, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.DBName, cfg.Mode = name, pgproxy.Session })
}

// readCalls has a gateway read the functions of its database: a client calls one.
func readCalls(t *testing.T, g *gateway) {
	t.Helper()
	c := g.connect(t, "")
	defer func() { _ = c.Close(t.Context()) }()
	conntest.Eventually(t, "no check follows a call", func() bool {
		settle(t, g)
		before := g.Stats().StateChecks
		simple(t, c, "select outer_one(1)")
		return g.Stats().StateChecks == before
	})
}

// checksOf returns how many transactions are checked while f runs.
func checksOf(g *gateway, f func()) uint64 {
	before := g.Stats().StateChecks
	f()
	return g.Stats().StateChecks - before
}

// TestCallsAreNotChecked has clients call functions that leave nothing in all ways: no check follows, and the client can go on
// with whatever it had.
func TestCallsAreNotChecked(t *testing.T) {
	g, _ := startCalls(t, "unchecked", nil)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		c, other := g.connect(t, ""), g.connect(t, "")
		n := checksOf(g, func() {
			for i := range 3 {
				for _, sql := range []string{
					"select outer_one(1)", "select inner_one(outer_one(2)), local_set()", "select writes(3)", "call commits()",
					"begin", "select outer_one(4)", "select inner_one(5)", "commit",
					"begin", "select outer_one(4)", "rollback", "begin", "select writes(6)", "end",
				} {
					do(t, c, sql, mode)
				}
				if got := sees(t, other, fmt.Sprintf("select outer_one(%d)::text", i)); got != fmt.Sprint(i+1) {
					t.Errorf("another client gets %s", got)
				}
				if _, err := c.Exec(t.Context(), "select fails()", mode); err == nil {
					t.Error("a function that fails did not")
				}
			}
		})
		if n != 0 {
			t.Errorf("%v: %d transactions were checked", mode, n)
		}
		before := g.Stats().StateChecks
		do(t, c, "select runs()", mode)
		conntest.Eventually(t, "a check follows a function that runs a text", func() bool { return g.Stats().StateChecks == before+1 })
	}
}

// TestCallsInBatches has a client send several statements with calls at once.
func TestCallsInBatches(t *testing.T) {
	g, _ := startCalls(t, "batches", nil)
	c, other := g.connect(t, ""), g.connect(t, "")
	n := checksOf(g, func() {
		for range 5 {
			batch := &pgx.Batch{}
			for i := range 20 {
				batch.Queue("select outer_one($1)", i)
			}
			results := c.SendBatch(t.Context(), batch)
			for i := range 20 {
				var got int
				if err := results.QueryRow().Scan(&got); err != nil || got != i+1 {
					t.Fatalf("%d, %v; want %d", got, err, i+1)
				}
			}
			if err := results.Close(); err != nil {
				t.Fatal(err)
			}
			simple(t, c, "select outer_one(1); select inner_one(1); begin; select outer_one(2)")
			simple(t, c, "select inner_one(1); commit; select outer_one(3)")
			if got := sees(t, other, "select 'x'||outer_one(1)"); got != "x2" {
				t.Errorf("another client gets %s", got)
			}
		}
	})
	if n != 0 {
		t.Errorf("%d transactions were checked", n)
	}
}

// TestReplacedFunctionsAreNoticed has functions that were harmless replaced unseen: what they leave is its client's.
func TestReplacedFunctionsAreNoticed(t *testing.T) {
	const sets = " returns int language plpgsql as $$ begin set work_mem = '1MB'; return 1; end $$;"
	for name, ddl := range map[string]string{
		"itself":   "create or replace function outer_one(n int)" + sets,
		"callee":   "create or replace function inner_one(n int)" + sets,
		"overload": "create function inner_one(n int, more int default 1)" + sets + "drop function inner_one(int)",
		"schema":   "create schema app; create function app.inner_one(n int)" + sets,
		"clause":   "create schema more; create function more.inner_one(n int)" + sets + "alter function outer_one(int) set search_path = more",
		"name":     "create function other(n int)" + sets + "alter function outer_one(int) rename to was_outer; alter function other(int) rename to outer_one",
	} {
		for _, block := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s_%t", name, block), func(t *testing.T) {
				t.Parallel()
				g, aside := startCalls(t, fmt.Sprintf("%s_%t", name, block), nil)
				c, other, mode := g.connect(t, ""), g.connect(t, ""), pgx.QueryExecModeExec
				if block {
					mode = pgx.QueryExecModeSimpleProtocol
				}
				simple(t, c, "set search_path = app, public")
				do(t, c, "select outer_one(1)", mode)
				simple(t, aside.connect(t, ""), ddl)
				n := checksOf(g, func() {
					if block {
						simple(t, c, "begin")
					}
					do(t, c, "select outer_one(1)", mode)
					if block {
						simple(t, c, "commit")
					}
					hasOwnWorkMem(t, c, other, ddl)
				})
				if n == 0 {
					t.Error("no check has followed")
				}
			})
		}
	}
}

// TestFunctionsReplacedForATransaction has a client define a function, call it, and undo the definition: a lock is left.
func TestFunctionsReplacedForATransaction(t *testing.T) {
	const locks = "create or replace function inner_one(n int) returns int language plpgsql as $$ begin perform pg_advisory_lock(4711); return 1; end $$"
	for i, statements := range [][]string{
		{"begin", locks, "select outer_one(1)", "rollback"},
		{"begin", "select outer_one(1)", "savepoint a", locks, "select outer_one(1)", "rollback to a", "commit"},
		{"begin", "select outer_one(1); " + locks + "; select outer_one(1); rollback"},
		{"begin; " + locks + "; select outer_one(1); rollback"},
		{"begin", "alter function inner_one rename to was_inner", "alter function locks rename to inner_one", "select outer_one(1)", "rollback"},
		{"begin", "select outer_one(1)", "alter function inner_one rename to was_inner; alter function locks rename to inner_one; select outer_one(1); rollback"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			g, aside := startCalls(t, fmt.Sprintf("undone_%d", i), nil)
			c := g.connect(t, "")
			for _, sql := range statements {
				simple(t, c, sql)
			}
			conntest.Eventually(t, "the client is pinned for its lock", func() bool { return g.Stats().Pinned == 1 })
			if got := sees(t, aside.connect(t, ""), "select pg_try_advisory_lock(4711)::text"); got != "false" {
				t.Errorf("the lock is free: %s", got)
			}
			simple(t, c, "select pg_advisory_unlock_all()")
			conntest.Eventually(t, "the client is not pinned any more", func() bool { return g.Stats().Pinned == 0 })
		})
	}
}

// TestQuestionsThatAreRefused has a role that may not read pg_proc call functions: checks follow, and it notices nothing.
func TestQuestionsThatAreRefused(t *testing.T) {
	g, aside := startCalls(t, "refused", nil)
	simple(t, aside.connect(t, ""), "drop role if exists no_catalogs; create role no_catalogs; revoke select on pg_proc from public")
	c, other := g.connect(t, ""), g.connect(t, "")
	simple(t, c, "set role no_catalogs")
	n := checksOf(g, func() {
		for range 3 {
			do(t, c, "select outer_one(1)", pgx.QueryExecModeExec)
			simple(t, c, "select outer_one(1)")
			if got := sees(t, other, "select current_user||outer_one(1)"); got == "" || got == "no_catalogs2" {
				t.Errorf("another client is %s", got)
			}
		}
	})
	if n == 0 {
		t.Error("no check has followed")
	}
}

// TestCallsWithAnAccessLog has clients that the fast path does not serve.
func TestCallsWithAnAccessLog(t *testing.T) {
	g, aside := startCalls(t, "logged", func(cfg *pgproxy.Config) { cfg.Listener.AccessLog = true })
	c, other := g.connect(t, ""), g.connect(t, "")
	calls := func() {
		for _, sql := range []string{"select outer_one(1)", "begin", "select outer_one(1)", "commit"} {
			simple(t, c, sql)
			do(t, c, sql, pgx.QueryExecModeExec)
		}
		simple(t, other, "select outer_one(1)")
	}
	if n := checksOf(g, calls); n != 0 {
		t.Errorf("%d transactions were checked", n)
	}
	simple(t, aside.connect(t, ""), "create or replace function inner_one(n int) returns int language plpgsql as $$ begin set work_mem = '1MB'; return 1; end $$")
	simple(t, c, "select outer_one(1)")
	hasOwnWorkMem(t, c, other, "a replaced function")
}

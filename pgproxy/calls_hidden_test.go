package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// TestCallsThatHideState has functions whose text is harmless leave a setting by what they use: it reaches no other client.
func TestCallsThatHideState(t *testing.T) {
	const leak = `create function leak() returns int language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return 1; end $$;
create function leak2(a int, b int) returns bool language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return true; end $$;
create function leaks(a int, b int) returns int language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return 1; end $$;
`
	for name, c := range map[string][2]string{
		"operator":  {"create operator === (leftarg = int, rightarg = int, procedure = leak2); create function f() returns bool language sql volatile as $$ select 1 === 2 $$;", "select f()"},
		"operatorp": {"create operator === (leftarg = int, rightarg = int, procedure = leak2); create function f() returns bool language plpgsql volatile as $$ begin return 1 === 2; end $$;", "select f()"},
		"default":   {"create function f(a int default leak()) returns int language sql as $$ select 1 $$;", "select f()"},
		"defaultb":  {"create function f(a text default set_config('work_mem', '1MB', false)) returns int language sql as $$ select 1 $$;", "select f()"},
		"atomic":    {"create function f() returns int language sql begin atomic select leak(); end;", "select f()"},
		"atomicb":   {"create function f() returns text language sql begin atomic select set_config('work_mem', '1MB', false); end;", "select f()"},
		"aggregate": {"create aggregate f(int) (sfunc = leaks, stype = int, initcond = '0');", "select f(n) from generate_series(1,3) n"},
		"domain":    {"create domain dom as int check (leak2(value, 1)); create function f(d dom) returns int language sql as $$ select 1 $$;", "select f(7)"},
		"domainvar": {"create domain dom as int check (leak2(value, 1)); create function f() returns int language plpgsql as $$ declare d dom := 1; begin return 1; end $$;", "select f()"},
		"domainret": {"create domain dom as int check (leak2(value, 1)); create function f() returns dom language plpgsql as $$ begin return 1; end $$;", "select f()"},
		"cast":      {"create type pair as (a int, b int); create function to_pair(int) returns pair language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return row(1,2)::pair; end $$; create cast (int as pair) with function to_pair(int) as implicit; create function f() returns pair language sql as $$ select 7::pair $$;", "select f()"},
		"attribute": {"create type pair as (a int, b int); create function total(pair) returns int language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return 1; end $$; create function f() returns int language sql as $$ select (row(1,2)::pair).total $$;", "select f()"},
		"trigger":   {"create table tt (n int); create function tg() returns trigger language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return new; end $$; create trigger x before insert on tt for each row execute function tg(); create function f() returns void language sql as $$ insert into tt values (1) $$;", "select f()"},
		"stable":    {"create function f() returns int language plpgsql stable as $$ begin perform set_config('work_mem', '1MB', false); return 1; end $$;", "select f()"},
		"variadic":  {"create function f(variadic a int[]) returns int language plpgsql as $$ begin perform leak(); return 1; end $$;", "select f(1,2,3)"},
		"nested":    {"create function f() returns int language plpgsql as $$ begin do $x$ begin perform set_config('work_mem', '1MB', false); end $x$; return 1; end $$;", "select f()"},
		"unicode":   {"create function f() returns int language sql as $$ select U&\"l\\0065ak\"() $$;", "select f()"},
		"ordering":  {"create function f() returns int language sql as $$ select n from (values (1),(2)) v(n) group by n having leak() = 1 order by leak() limit 1 $$;", "select f()"},
		"callquote": {"create function \"F G\"() returns int language sql as $$ select leak() $$; create function f() returns int language sql as $$ select \"F G\"() $$;", "select f()"},
		"spaced":    {"create function f() returns int language sql as $$ select leak /* ( */ () $$;", "select f()"},
		"assign":    {"create function f() returns int language plpgsql as $$ declare x int = leak(); begin return x; end $$;", "select f()"},
		"update":    {"create function f() returns void language sql as $$ update pg_settings set setting = '1MB' where name = 'work_mem' $$;", "select f()"},
		"proc":      {"create procedure p() language plpgsql as $$ begin commit; set work_mem = '1MB'; commit; end $$; create procedure q() language plpgsql as $$ begin call p(); end $$;", "call q()"},
		"loop":      {"create function f() returns int language plpgsql as $$ declare r record; begin for r in execute 'select set_config(''work_mem'', ''1MB'', false)' loop end loop; return 1; end $$;", "select f()"},
		"label":     {"create function f() returns int language plpgsql as $$ begin <<l>> begin set work_mem = '1MB'; end; return 1; end $$;", "select f()"},
		"exception": {"create function f() returns int language plpgsql as $$ begin perform 1/0; return 1; exception when others then set work_mem = '1MB'; return 2; end $$;", "select f()"},
		"case":      {"create function f() returns int language plpgsql as $$ begin case 1 when 1 then reset work_mem; set work_mem = '1MB'; end case; return 1; end $$;", "select f()"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, aside := startCalls(t, "hides_"+name, nil)
			simple(t, aside.connect(t, ""), leak+c[0])
			conn, other := g.connect(t, ""), g.connect(t, "")
			for range 4 {
				simple(t, conn, c[1])
				if got := sees(t, other, "show work_mem"); got != "4MB" {
					t.Fatalf("another client sees work_mem = %s", got)
				}
				// DDL that the gateway sees makes it read the catalogs again
				simple(t, other, "create or replace function touch() returns int language sql as $$ select 1 $$")
				settle(t, g)
				simple(t, conn, "set work_mem = '4MB'")
				simple(t, conn, "reset work_mem")
				settle(t, g)
			}
		})
	}
}

// TestCallsAfterDDL has a client of the same gateway change what a function uses: what the function leaves from then on is its
// client's.
func TestCallsAfterDDL(t *testing.T) {
	const tg = `create function tg() returns trigger language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return new; end $$; `
	for name, c := range map[string][2]string{
		"trigger": {tg + "create trigger x before insert on entries for each row execute function tg()", "select writes(1)"},
		"check":   {"create function lk(n int) returns bool language plpgsql as $$ begin execute 'set work_mem = ''1MB'''; return true; end $$; alter table entries add check (lk(n)) not valid", "select writes(1)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, _ := startCalls(t, "after_"+name, nil)
			conn, other := g.connect(t, ""), g.connect(t, "")
			simple(t, conn, c[1])
			simple(t, other, c[0])
			simple(t, conn, c[1])
			if got := sees(t, other, "show work_mem"); got != "4MB" {
				t.Fatalf("another client sees work_mem = %s", got)
			}
		})
	}
}

// TestCallsInCopies has a COPY that calls a function take its data behind the request.
func TestCallsInCopies(t *testing.T) {
	g, _ := startCalls(t, "copies", nil)
	w := g.dial(t)
	const sql = "copy entries from stdin where outer_one(n) > 0"
	data := []pgwire.Message{&pgwire.CopyData{Data: []byte("5\n")}, &pgwire.CopyDone{}}
	for range 3 {
		w.send(query(sql))
		w.until(pgwire.TypeCopyInResponse)
		if types, bodies := w.ask(data...); types != "CZ" {
			t.Fatalf("a Query gets %s: %q", types, bodies)
		}
		w.send(&pgwire.Parse{Query: sql}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
		w.until(pgwire.TypeCopyInResponse)
		if types, bodies := w.ask(append(data, &pgwire.Sync{})...); types != "CZ" {
			t.Fatalf("an Execute gets %s: %q", types, bodies)
		}
	}
}

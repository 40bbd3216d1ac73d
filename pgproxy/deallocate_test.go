package pgproxy_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestDeallocate takes prepared statements away in every way a client can, through both modes: transaction mode, where servers have other names
// for them, answers as session mode does, where they have the client's.
func TestDeallocate(t *testing.T) {
	sync := pgwire.Message(&pgwire.Sync{})
	parse := func(name, sql string) pgwire.Message { return &pgwire.Parse{Name: name, Query: sql} }
	extended := func(sql string) []pgwire.Message {
		return []pgwire.Message{parse("", sql), &pgwire.Bind{}, &pgwire.Describe{Object: 'P'}, &pgwire.Execute{}, sync}
	}
	gone := []pgwire.Message{&pgwire.Bind{Statement: "s1"}, &pgwire.Execute{}, sync}
	for what, c := range map[string]struct {
		sent []pgwire.Message // at once, after s1 and s2 were prepared
		want string
	}{
		"by name":                {extended("deallocate s1"), "12nCZ"},
		"with comments":          {extended("/* app */ DEALLOCATE PREPARE \"s1\"; -- done"), "12nCZ"},
		"all":                    {extended("deallocate all"), "12nCZ"},
		"discard all":            {extended("discard all"), "12nCZ"},
		"twice":                  {append(extended("deallocate s1"), extended("deallocate s1")...), "12nCZ12nEZ"},
		"another's name":         {append(extended("deallocate nobody"), extended("deallocate s1")...), "12nEZ12nCZ"},
		"and again":              {append(append(extended("deallocate s1"), parse("s1", "select 'new'"), sync), extended("deallocate s1")...), "12nCZ1Z12nCZ"},
		"by a named statement":   {[]pgwire.Message{parse("d", "deallocate s1"), &pgwire.Bind{Statement: "d", Portal: "p"}, &pgwire.Execute{Portal: "p"}, sync}, "12CZ"},
		"after another portal":   {[]pgwire.Message{parse("", "deallocate s1"), &pgwire.Bind{Portal: "p"}, parse("", "deallocate s2"), &pgwire.Bind{}, &pgwire.Execute{Portal: "p"}, sync}, "1212CZ"},
		"in a transaction":       {append(append([]pgwire.Message{query("begin")}, extended("deallocate s1")...), query("rollback")), "CZ12nCZCZ"},
		"by a query, pipelined":  {[]pgwire.Message{parse("s3", "select 3"), sync, query("deallocate s1")}, "1ZCZ"},
		"by a query, no sync":    {[]pgwire.Message{parse("s3", "select 3"), query("deallocate s1")}, "1CZ"},
		"by a query, commented":  {[]pgwire.Message{query("/* app */ deallocate s1 -- done")}, "CZ"},
		"with other statements":  {[]pgwire.Message{query("select 1; deallocate s1; select 2")}, "TDCCTDCZ"},
		"several":                {[]pgwire.Message{query("deallocate s2; deallocate s1")}, "CCZ"},
		"one twice":              {[]pgwire.Message{query("deallocate s1; deallocate s1")}, "CEZ"},
		"one of SQL's, too":      {[]pgwire.Message{query("prepare p as select 1; deallocate p; deallocate s1")}, "CCCZ"},
		"as a text, too":         {[]pgwire.Message{query("select ';deallocate s2;', $$;deallocate s2;$$; /*;deallocate s2;*/ deallocate s1")}, "TDCCZ"},
		"and a failure":          {[]pgwire.Message{query("deallocate s1; select 1/0; deallocate s2")}, "CEZ"},
		"after a begin":          {[]pgwire.Message{query("begin; deallocate s1; rollback")}, "CCCZ"},
		"with others, pipelined": {[]pgwire.Message{parse("s3", "select 3"), sync, query("deallocate s1; deallocate s3"), query("select 1")}, "1ZCCZTDCZ"},
	} {
		for mode, change := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
			t.Run(what+"/"+mode, func(t *testing.T) {
				g := start(t, pgtest.Shared(t), change)
				w := g.dial(t)
				w.send(parse("s1", "select 'old'"), parse("s2", "select 'other'"), sync)
				w.until(pgwire.TypeReadyForQuery)
				w.send(c.sent...)
				got := ""
				for n := 0; n < len(c.want); {
					types, _ := w.until(pgwire.TypeReadyForQuery)
					got += types
					n += len(types)
				}
				if got != c.want {
					t.Fatalf("answered with %s, want %s", got, c.want)
				}
				w.send(gone...)
				if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "EZ" || !has(bodies, "C26000\x00") {
					t.Errorf("the statement afterwards: %s %q", types, bodies)
				}
			})
		}
	}
}

// TestDeallocateThatFailed: the stand-in of the client's statement on the server is removed before the next client.
func TestDeallocateThatFailed(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w := g.dial(t)
	w.send(&pgwire.Parse{Name: "s1", Query: "select 'kept'"}, &pgwire.Sync{},
		&pgwire.Parse{Query: "deallocate s1"}, &pgwire.Bind{Portal: "p"}, &pgwire.Close{Object: 'P', Name: "p"}, &pgwire.Execute{Portal: "p"}, &pgwire.Sync{},
		&pgwire.Bind{Statement: "s1"}, &pgwire.Execute{}, &pgwire.Sync{})
	w.until(pgwire.TypeReadyForQuery)
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "123EZ" || !has(bodies, "C34000\x00") {
		t.Errorf("a portal that is closed: %s %q", types, bodies)
	}
	if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "2DCZ" || !has(bodies, "kept") {
		t.Errorf("the statement afterwards: %s %q", types, bodies)
	}
	other := g.connect(t, "")
	if n := one[int](t, other, "select count(*)::int from pg_prepared_statements where name = 's1'", pgx.QueryExecModeSimpleProtocol); n != 0 {
		t.Errorf("%d statements are left for the next client", n)
	}
}

// TestDeallocateSomeAndFail: of the statements that a Query deallocates, those before its error are gone.
func TestDeallocateSomeAndFail(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w := g.dial(t)
	w.send(&pgwire.Parse{Name: "s1", Query: "select 1"}, &pgwire.Parse{Name: "s2", Query: "select 'kept'"}, &pgwire.Sync{},
		query("deallocate s1; select 1/0; deallocate s2"), &pgwire.Bind{Statement: "s1"}, &pgwire.Sync{},
		&pgwire.Bind{Statement: "s2"}, &pgwire.Execute{}, &pgwire.Sync{},
		&pgwire.Close{Object: 'S', Name: "s2"}, &pgwire.Sync{}, query("select 1; deallocate s2"), &pgwire.Bind{Statement: "s2"}, &pgwire.Sync{})
	for _, want := range []string{"11Z", "CEZ", "EZ", "2DCZ", "3Z", "TDCEZ", "EZ"} {
		if types, bodies := w.until(pgwire.TypeReadyForQuery); types != want {
			t.Errorf("%s %q, want %s", types, bodies, want)
		}
	}
	other := g.connect(t, "")
	if n := one[int](t, other, "select count(*)::int from pg_prepared_statements where name in ('s1', 's2')", pgx.QueryExecModeSimpleProtocol); n != 0 {
		t.Errorf("%d statements are left for the next client", n)
	}
}

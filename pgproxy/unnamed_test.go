package pgproxy_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestUnnamedStatementAfterAnError has pipelines fail before and at the Parse of another unnamed
// statement. The server has the one it parsed last, and so must the client, whichever clients have
// used the server connections in between.
func TestUnnamedStatementAfterAnError(t *testing.T) {
	parse := func(sql string) pgwire.Message { return &pgwire.Parse{Query: sql} }
	bad, sync := parse("selec"), pgwire.Message(&pgwire.Sync{})
	fails := &pgwire.Bind{Statement: "nobody's"}
	run := func(m ...pgwire.Message) []pgwire.Message { return append(m, &pgwire.Bind{}, &pgwire.Execute{}, sync) }
	long := "select length('" + strings.Repeat("x", 300<<10) + "')"
	for what, c := range map[string]struct {
		sent []pgwire.Message // after "select 'kept'" was parsed
		want string           // the types of the answer
		then string           // the result of the unnamed statement after it; "" = there is none
	}{
		"skipped":                       {run(fails, parse("select 'new'")), "EZ", "kept"},
		"skipped, twice":                {append(run(fails, parse("select 'new'")), run(fails, parse("select 'newer'"))...), "EZEZ", "kept"},
		"skipped, then another":         {append(run(fails, parse("select 'new'")), run(parse("select 'newer'"))...), "EZ12DCZ", "newer"},
		"one parsed, one skipped":       {run(parse("select 'new'"), fails, parse("select 'newer'")), "1EZ", "new"},
		"skipped, and used at once":     {append(run(fails, parse("select 'new'")), run()...), "EZ2DCZ", "kept"},
		"used in vain, and used again":  {append(run(fails), run()...), "EZ2DCZ", "kept"},
		"failed itself":                 {run(bad), "EZ", ""},
		"close skipped":                 {run(fails, &pgwire.Close{Object: 'S'}), "EZ", "kept"},
		"closed":                        {[]pgwire.Message{&pgwire.Close{Object: 'S'}, sync}, "3Z", ""},
		"query skipped":                 {append(run(fails, query("select 1")), run()...), "EZ2DCZ", "kept"},
		"query":                         {[]pgwire.Message{query("select 1")}, "TDCZ", ""},
		"query after skipped messages":  {append(run(fails, &pgwire.Close{Object: 'S'}), query("select 1"), bad, sync), "EZTDCZEZ", ""},
		"too long to be kept, skipped":  {run(fails, parse(long)), "EZ", "kept"},
		"too long to be kept, and used": {append(run(fails, parse(long)), run()...), "EZ2DCZ", "kept"},
	} {
		for mode, change := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
			t.Run(what+"/"+mode, func(t *testing.T) {
				g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
					change(c, pc)
					if pc.Limits.MaxSize = 1; c.Mode == pgproxy.Session {
						pc.Limits.MaxSize = 2
					}
				})
				w, other := g.dial(t), g.dial(t)
				others := func() {
					other.send(parse("select 'another''s'"), sync)
					other.until(pgwire.TypeReadyForQuery)
				}
				w.send(parse("select 'kept'"), sync)
				w.until(pgwire.TypeReadyForQuery)
				others()
				w.send(c.sent...)
				got := ""
				for range strings.Count(c.want, "Z") {
					types, bodies := w.until(pgwire.TypeReadyForQuery)
					if got += types; has(bodies, "another's") {
						t.Error("it got another client's statement")
					}
				}
				if got != c.want {
					t.Errorf("answered with %s, want %s", got, c.want)
				}
				for range 2 {
					w.send(run()...)
					types, bodies := w.until(pgwire.TypeReadyForQuery)
					if c.then == "" && types != "EZ" || c.then != "" && (types != "2DCZ" || !has(bodies, c.then)) {
						t.Errorf("the unnamed statement gives %s %q, want %q", types, bodies, c.then)
					}
					others()
				}
			})
		}
	}
}

// TestUnnamedStatementInAPgxPipeline is the same with pgx.
func TestUnnamedStatementInAPgxPipeline(t *testing.T) {
	for _, mode := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		g := start(t, pgtest.Shared(t), mode)
		conn := g.connect(t, "")
		if _, err := conn.PgConn().Prepare(t.Context(), "", "select 'kept'", nil); err != nil {
			t.Fatal(err)
		}
		p := conn.PgConn().StartPipeline(t.Context())
		p.SendQueryPrepared("nobody's", nil, nil, nil)
		p.SendPrepare("", "select 'skipped'", nil)
		p.SendPipelineSync()
		p.SendQueryPrepared("", nil, nil, nil)
		if err := p.Sync(); err != nil {
			t.Fatal(err)
		}
		var rows []string
		var failed error
		for synced := 0; synced < 2; {
			r, err := p.GetResults()
			switch r := r.(type) {
			case *pgconn.PipelineSync:
				synced++
			case *pgconn.ResultReader:
				for _, row := range r.Read().Rows {
					rows = append(rows, string(row[0]))
				}
			}
			if err != nil && failed == nil {
				failed = err
			}
		}
		if err := p.Close(); err != nil && sqlstate(err) != "26000" {
			t.Fatal(err)
		}
		if sqlstate(failed) != "26000" || len(rows) != 1 || rows[0] != "kept" {
			t.Errorf("%v, %q", failed, rows)
		}
	}
}

// TestDeallocateInAPipeline prepares under names that a statement of the same pipeline takes away.
func TestDeallocateInAPipeline(t *testing.T) {
	for _, text := range []string{"deallocate all", " /* all */ Discard All", "-- all\ndeallocate all"} {
		g := start(t, pgtest.Shared(t), small)
		w := g.dial(t)
		w.send(&pgwire.Parse{Name: "s1", Query: "select 'old'"}, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
		w.send(&pgwire.Parse{Query: text}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{},
			&pgwire.Parse{Name: "s1", Query: "select 'new'"}, &pgwire.Bind{Statement: "s1"}, &pgwire.Execute{}, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
		for range 2 {
			if types, bodies := w.until(pgwire.TypeReadyForQuery); !strings.HasSuffix(types, "2DCZ") || !has(bodies, "new") {
				t.Fatalf("%s: %s %q", text, types, bodies)
			}
			w.send(&pgwire.Bind{Statement: "s1"}, &pgwire.Execute{}, &pgwire.Sync{})
		}
		other := g.connect(t, "")
		if got := one[string](t, other, "select 'new'", pgx.QueryExecModeCacheStatement); got != "new" {
			t.Fatal(got)
		}
	}
}

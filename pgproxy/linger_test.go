package pgproxy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// startLingering starts a gateway with a table numbered, whose id is drawn from a sequence.
func startLingering(t *testing.T, change func(*pgproxy.Config, *pgproxy.PostgresConfig)) *gateway {
	db, name := ownDatabase(t, "create table numbered (id bigserial, of text)")
	return start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.DBName, pc.ReadCatalogs = name, pgproxy.CatalogsNever
		change(c, pc)
	})
}

// program connects a client with an application_name.
func (g *gateway) program(t *testing.T, application string, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(g.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"], cfg.DefaultQueryExecMode = application, mode
	c, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// inserts adds a row for a client, and returns nothing else.
func inserts(t *testing.T, c *pgx.Conn, of string) {
	t.Helper()
	if _, err := c.Exec(t.Context(), "insert into numbered (of) values ($1)", of); err != nil {
		t.Error(err)
	}
}

// lastOf returns whose row has the number that a statement returns: currval or lastval.
func lastOf(t *testing.T, c *pgx.Conn, sql string) (of string, err error) {
	t.Helper()
	var id int64
	if err := c.QueryRow(t.Context(), sql).Scan(&id); err != nil {
		return "", err
	}
	if err := c.QueryRow(t.Context(), "select of from numbered where id = $1", id).Scan(&of); err != nil {
		t.Error(err)
	}
	return of, nil
}

// TestLastvalLater has four clients of a program insert rows, in turns, and then ask for the numbers: each is told its own, though the
// others have inserted after it, also after a second question. The program is known from the first question on.
func TestLastvalLater(t *testing.T) {
	g := startLingering(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MinIdle, pc.Limits.MaxSize = 5, 9
	})
	conntest.Eventually(t, "a server connection for each client", func() bool { return g.backend.Status().Endpoints[0].Pool.Idle >= 5 })
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		t.Run(mode.String(), func(t *testing.T) {
			var clients []*pgx.Conn
			for range 4 {
				clients = append(clients, g.program(t, "later "+mode.String(), mode))
			}
			inserts(t, clients[0], "nobody")
			_, _ = lastOf(t, clients[0], "select lastval()")
			for round := range 5 {
				for n, c := range clients {
					inserts(t, c, fmt.Sprint(round, n))
				}
				for n, c := range slices.Backward(clients) {
					for _, sql := range []string{"select lastval()", "select currval('numbered_id_seq')", "select currval(pg_get_serial_sequence('numbered', 'id'))"} {
						if of, err := lastOf(t, c, sql); err != nil || of != fmt.Sprint(round, n) {
							t.Errorf("round %d, client %d: %s is that of %q, %v", round, n, sql, of, err)
						}
					}
				}
			}
		})
	}
}

// TestLastvalOfAnotherServerConnection has another client take the server connection before the client asks: it is told that there is no value.
func TestLastvalOfAnotherServerConnection(t *testing.T) {
	g := startLingering(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	a, b := g.program(t, "later", pgx.QueryExecModeExec), g.program(t, "other", pgx.QueryExecModeExec)
	inserts(t, a, "a")
	if of, err := lastOf(t, a, "select lastval()"); err != nil || of != "a" {
		t.Errorf("nobody else has had the server connection: %q, %v", of, err)
	}
	for range 3 {
		inserts(t, a, "a")
		simple(t, b, "select 1")
		if _, err := a.Exec(t.Context(), "select lastval()"); sqlstate(err) != "55000" {
			t.Errorf("another client has had the server connection: %v", err)
		}
		inserts(t, b, "b")
		if _, err := a.Exec(t.Context(), "select lastval()"); sqlstate(err) != "55000" {
			t.Errorf("another client has inserted: %v", err)
		}
	}
}

// TestLastvalOfMany has 16 clients on 4 server connections insert and ask, and others that only read. Each value is the client's own, or there is
// none; nobody waits for too long.
func TestLastvalOfMany(t *testing.T) {
	g := startLingering(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 4 })
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		t.Run(mode.String(), func(t *testing.T) {
			var told, lost atomic.Int64
			var clients sync.WaitGroup
			for n := range 16 {
				c := g.program(t, "many "+mode.String(), mode)
				clients.Go(func() {
					for round := range 30 {
						if n%4 == 3 {
							if _, err := c.Exec(t.Context(), "select count(*) from numbered"); err != nil {
								t.Error(err)
							}
							continue
						}
						own := fmt.Sprint(n, " ", round)
						inserts(t, c, own)
						switch of, err := lastOf(t, c, "select lastval()"); {
						case sqlstate(err) == "55000":
							lost.Add(1)
						case err != nil || of != own:
							t.Errorf("client %d: the row of %q, %v", n, of, err)
						default:
							told.Add(1)
						}
					}
				})
			}
			clients.Wait()
			t.Logf("%d values, %d of which are gone", told.Load()+lost.Load(), lost.Load())
			if told.Load() == 0 {
				t.Error("no client was told its value")
			}
			if s := g.backend.Status().Endpoints[0].Pool; s.TimedOut+s.Rejected > 0 {
				t.Errorf("clients have waited for too long: %+v", s)
			}
		})
	}
}

// TestLingerStarvesNobody has clients of a program use the only server connection again and again, some without ever asking. Another client
// gets it all the same.
func TestLingerStarvesNobody(t *testing.T) {
	g := startLingering(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stop()
	first := g.program(t, "busy", pgx.QueryExecModeExec)
	inserts(t, first, "first")
	if _, err := lastOf(t, first, "select lastval()"); err != nil {
		t.Fatal(err)
	}
	for _, sqls := range [][]string{
		{"insert into numbered (of) values ('a')"}, {"insert into numbered (of) values ('b')", "select 1"},
		{"insert into numbered (of) values ('c')", "select lastval()"}, {"insert into numbered (of) values ('d')", "select lastval()"},
	} {
		c := g.program(t, "busy", pgx.QueryExecModeExec)
		busy.Go(func() {
			for ctx.Err() == nil {
				for _, sql := range sqls {
					if _, err := c.Exec(t.Context(), sql); err != nil && sqlstate(err) != "55000" {
						t.Errorf("%s: %v", sql, err)
						return
					}
				}
			}
		})
	}
	other := g.program(t, "other", pgx.QueryExecModeExec)
	for range 10 {
		do(t, other, "select 1")
	}
}

// TestLingerOfReadingInserts has clients read the last value in each of their inserts. Others get the only server connection all the same.
func TestLingerOfReadingInserts(t *testing.T) {
	g := startLingering(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stop()
	other := g.program(t, "other", pgx.QueryExecModeExec)
	var clients []*pgx.Conn
	for range 4 {
		c := g.program(t, "busy", pgx.QueryExecModeExec)
		inserts(t, c, "first")
		if _, err := lastOf(t, c, "select lastval()"); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	for _, c := range clients {
		busy.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.Exec(t.Context(), "insert into numbered (of) values (lastval())"); err != nil && sqlstate(err) != "55000" {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		do(t, other, "select 1")
	}
}

// TestLastvalAfterDiscard has a client discard its values on another server connection than the one that has them.
func TestLastvalAfterDiscard(t *testing.T) {
	g := startLingering(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 2 })
	connect := func() *pgx.Conn { return g.program(t, "discards", pgx.QueryExecModeSimpleProtocol) }
	a, b, c := connect(), connect(), connect()
	simple(t, b, "begin; select 1")
	inserts(t, a, "a")
	simple(t, c, "begin; select 1") // on the server connection of the insert
	simple(t, b, "rollback")
	simple(t, a, "discard all")
	simple(t, b, "begin; select 1")
	simple(t, c, "rollback")
	if _, err := a.Exec(t.Context(), "select lastval()"); sqlstate(err) != "55000" {
		t.Errorf("after DISCARD ALL: %v", err)
	}
}

// TestLingerOfSuspended has a client ask after its session has been suspended: it still gets the server connection of its nextval.
func TestLingerOfSuspended(t *testing.T) {
	g, suspended := startWatched(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MinIdle, pc.Limits.MaxSize = 2, 4 })
	db := pgtest.Shared(t)
	db.Exec(t, "create sequence suspended_numbers")
	t.Cleanup(func() { db.Exec(t, "drop sequence suspended_numbers") })
	conntest.Eventually(t, "two server connections", func() bool { return g.backend.Status().Endpoints[0].Pool.Idle >= 2 })
	a, b := g.connect(t, ""), g.connect(t, "")
	do(t, a, "select nextval('suspended_numbers')")
	_, _ = a.Exec(t.Context(), "select lastval()") // the first question may be in vain
	for range 3 {                                  // the first report may be of an earlier time
		n := one[int64](t, a, "select nextval('suspended_numbers')")
		<-suspended
		do(t, b, "select 1")
		if got := one[int64](t, a, "select lastval()"); got != n {
			t.Errorf("lastval is %d after %d", got, n)
		}
	}
}

// TestReaders fills the table of programs.
func TestReaders(t *testing.T) {
	r := new(pgproxy.Readers)
	for n := range pgproxy.MaxApplications {
		r.Note("user", "database", itoa(n))
		if !r.Known("user", "database", itoa(n)) || r.Known("user", "database", "other") || r.Known("other", "database", itoa(n)) || r.Known("user", "other", itoa(n)) {
			t.Errorf("application %d", n)
		}
	}
	r.Note("user", "database", "one more")
	if !r.Known("user", "database", "any") || r.Known("other", "database", "any") || r.Len() != 1 {
		t.Errorf("a user with many applications: %d programs", r.Len())
	}
	for n := range pgproxy.MaxReaders {
		r.Note("user", itoa(n), "application")
	}
	if r.Len() != pgproxy.MaxReaders || !r.Known("user", itoa(pgproxy.MaxReaders-1), "application") {
		t.Errorf("%d programs", r.Len())
	}
	last := itoa(pgproxy.MaxReaders - 1)
	for range 100 {
		r.Note("user", last, "application")
	}
	paid := 0
	for r.Pays("user", last, "application") {
		paid++
	}
	if paid == 0 || paid > pgproxy.CreditMost {
		t.Errorf("a program could pay for %d inserts", paid)
	}
	if r.Note("user", last, "application"); !r.Pays("user", last, "application") {
		t.Error("a read earns nothing")
	}
	for _, k := range []struct{ gap, patience time.Duration }{
		{0, pgproxy.LingerFirst}, {10 * time.Millisecond, 40 * time.Millisecond}, {time.Second, 40 * time.Millisecond}, {pgproxy.LingerMost, pgproxy.LingerMost},
	} {
		if got := r.Came("user", last, "application", k.gap); got != k.patience {
			t.Errorf("after %v others wait for %v", k.gap, got)
		}
	}
	for range 1000 {
		r.Came("user", last, "application", time.Microsecond)
	}
	if got := r.Came("user", last, "application", time.Microsecond); got != pgproxy.LingerLeast {
		t.Errorf("clients come back at once, and others wait for %v", got)
	}
}

// TestReadersInTurn has more programs than there are places for ask in turns: the log is told of a program once, not with each question.
func TestReadersInTurn(t *testing.T) {
	r, told := new(pgproxy.Readers), 0
	r.Added(func(_, _, _ string) { told++ })
	for range 3 {
		for n := range 2 * pgproxy.MaxReaders {
			r.Note(itoa(n), "database", "application")
		}
	}
	if told != pgproxy.MaxReaders || r.Len() != pgproxy.MaxReaders {
		t.Errorf("told of %d programs, and %d are known", told, r.Len())
	}
}

// TestLingerChecked has server connections checked that a client gets again, between its insert and its question, too.
func TestLingerChecked(t *testing.T) {
	g := startLingering(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MinIdle, pc.Limits.MaxSize, pc.Limits.CheckAfter = 2, 4, time.Nanosecond
	})
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		c := g.program(t, "checked", mode)
		inserts(t, c, "first")
		_, _ = lastOf(t, c, "select lastval()")
		for round := range 5 {
			inserts(t, c, itoa(round))
			for range 2 {
				if of, err := lastOf(t, c, "select lastval()"); err != nil || of != itoa(round) {
					t.Errorf("%v, round %d: %q, %v", mode, round, of, err)
				}
				conntest.Eventually(t, "nothing lingers", func() bool { return g.backend.Status().Endpoints[0].Pool.InUse == 0 })
			}
		}
	}
}

// TestLastvalBehindClose has a client be the first to parse a statement with lastval, behind Close, where the gateway cannot have the
// server forget the values of others. The statement has its error when it runs, as on a direct connection.
func TestLastvalBehindClose(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create sequence if not exists behind_close")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	w, other := g.dial(t), g.dial(t)
	other.ask(query("select nextval('behind_close')"))
	ask := parse("s", "select lastval()")
	if types, bodies := w.ask(&pgwire.Close{Object: 'S', Name: "s"}, ask[0], &pgwire.Describe{Object: 'S', Name: "s"}, ask[1]); types != "31tTZ" {
		t.Errorf("the answer to Close, Parse, Describe and Sync is %s, %q", types, bodies)
	}
	if types, bodies := w.ask(run("s")...); types != "2EZ" || !strings.Contains(bodies, "C55000") {
		t.Errorf("the answer to Bind, Execute and Sync is %s, %q", types, bodies)
	}
}

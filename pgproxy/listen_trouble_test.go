package pgproxy_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// named dials as a client with an application name.
func (g *gateway) named(t *testing.T, name string) *wire {
	t.Helper()
	return g.dial(t, pgwire.Param{Name: "application_name", Value: name})
}

// toldOf reads up to an error with a SQLSTATE.
func (w *wire) toldOf(code string) {
	w.t.Helper()
	for {
		if typ, body := w.read(); typ == pgwire.TypeErrorResponse {
			if !has(body, "\x00C"+code+"\x00") {
				w.t.Errorf("told %q, want %s", body, code)
			}
			return
		}
	}
}

// twice is a change of a gateway: the same server is two endpoints, so that LISTEN pins.
func twice(db *pgtest.Cluster) upstream.Settings {
	return upstream.Settings{Endpoints: upstream.Endpoints(db.Addr(), strings.Replace(db.Addr(), "127.0.0.1", "localhost", 1))}
}

// A client that does not read what it listens to is ended at last. Others hear everything, also those that wait for a server connection meanwhile.
func TestDeafListener(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 1, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.AcquireTimeout = 2 * conntest.Patience })
	deaf, w, waits, holder := g.dial(t), g.dial(t), g.named(t, "waits"), g.dial(t)
	deaf.ask(query("listen loud"))
	w.ask(query("listen loud"))
	waits.ask(query("listen quiet"))
	g.awaitListeners(t, 3)
	holder.ask(query("begin"))
	waits.send(query("select 'served'"))
	g.session(t, "waits", listener.StateWaiting)
	direct := db.Connect(t)
	simple(t, direct, "notify quiet, 'hello'")
	for i := 0; g.Stats().Listening == 3; i++ { // 7 MB each
		if i == 1000 {
			t.Fatal("the client is not ended")
		}
		simple(t, direct, fmt.Sprintf("do $$ begin for i in 1..1000 loop perform pg_notify('loud', repeat('x', 7000) || %d || '.' || i); end loop; end $$", i))
		simple(t, direct, fmt.Sprintf("notify loud, 'end%d'", i))
		if got := heardUpTo(t, w, fmt.Sprintf("end%d", i)); len(got) != 1001 {
			t.Fatalf("heard %d", len(got))
		}
	}
	conntest.Eventually(t, "the log says why", func() bool { return g.log.Line("session ended", "does not read its notifications") != "" })
	holder.ask(query("commit"))
	types, bodies := waits.until(pgwire.TypeReadyForQuery)
	if types != "ATDCZ" || !has(bodies, "hello") || !has(bodies, "served") {
		t.Errorf("the one that waited: %s %q", types, bodies)
	}
	if n := g.Stats().Listening; n != 2 {
		t.Errorf("%d listen", n)
	}
}

// A client learns the channel of the fences: it can neither forge one nor end them.
func TestFencesOfOthers(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 2, nil)
	direct, w, bad := db.Connect(t), g.named(t, "good"), g.named(t, "bad")
	w.ask(query("listen a"))
	g.awaitParked(t, "good")
	_, fence := g.backend.Listening()
	bad.ask(query("listen " + fence + "; listen bad"))
	g.awaitParked(t, "bad")
	for i := range 20 { // the payloads of fences are numbers
		simple(t, direct, fmt.Sprintf("select pg_notify('%s', n::text) from generate_series(1, 500) as n; notify a, '%d'", fence, i))
		if types, bodies := w.ask(query("select 1")); !strings.HasSuffix(types, "TDCZ") {
			t.Fatalf("%s %q", types, bodies)
		} else if !has(types, "A") {
			heardUpTo(t, w, fmt.Sprint(i))
		}
	}
	bad.ask(query("unlisten *"))
	g.awaitListeners(t, 1)
	for _, name := range []string{"b", "c"} { // who has the listening connection told what is left
		next := g.dial(t)
		next.ask(query("listen " + name))
		simple(t, direct, "notify "+name+", 'x'; notify a, 'y'")
		heardUpTo(t, next, "x")
		heardUpTo(t, w, "y")
	}
	if types, _ := w.ask(query("select 1")); types != "TDCZ" {
		t.Error(types)
	}
}

// A LISTEN that cannot be kept is refused, or ends the session if that turns out later: a client that waits for notifications must know.
func TestListenRefused(t *testing.T) {
	db := pgtest.Shared(t)
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprintf("listen refused%d", i)
	}
	for name, c := range map[string]struct {
		several    bool
		on         pgproxy.OnState
		sql, types string // of the answer: a session that is ended gets it before
		code       string
	}{
		"refuse, known beforehand":      {true, pgproxy.RefuseState, "listen a", "EZ", "0A000"},
		"refuse, by a function":         {true, pgproxy.RefuseState, "select pin.run('listen a')", "TDCZ", "53400"},
		"refuse, too many channels":     {false, pgproxy.RefuseState, strings.Join(many, ";"), "", "53400"},
		"reset, known beforehand":       {true, pgproxy.ResetState, "listen a", "EZ", "0A000"},
		"reset, by a function":          {true, pgproxy.ResetState, "select pin.run('listen a')", "TDCZ", "53400"},
		"reset, too many channels":      {false, pgproxy.ResetState, strings.Join(many, ";"), "", "53400"},
		"max_pinned, known beforehand":  {true, pgproxy.PinState, "listen a", "EZ", "53400"},
		"max_pinned, by a function":     {true, pgproxy.PinState, "select pin.run('listen a')", "TDCZ", "53400"},
		"max_pinned, too many channels": {false, pgproxy.PinState, strings.Join(many, ";"), "", "53400"},
	} {
		t.Run(name, func(t *testing.T) {
			g := startListening(t, db, 3, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				if cfg.OnState, cfg.MaxPinned = c.on, 1; c.several {
					pc.Endpoints = twice(db).Endpoints
				}
			})
			if c.on == pgproxy.PinState {
				g.named(t, "first").ask(query("select pg_advisory_lock(7)"))
				g.session(t, "first", listener.StatePinned)
			}
			w := g.dial(t)
			w.send(query(c.sql))
			switch types, bodies := w.until(pgwire.TypeReadyForQuery); {
			case types == "EZ":
				if !has(bodies, c.code) {
					t.Errorf("%s %q", types, bodies)
				}
				types, _ = w.ask(query("select 1"))
				if types != "TDCZ" {
					t.Errorf("afterwards: %s", types)
				}
			default:
				if said := w.toTheEnd(); !has(said, c.code) || !has(said, "LISTEN has been undone") {
					t.Errorf("told %q", said)
				}
			}
		})
	}
}

// A client goes on listening when other state of its session is undone: it would wait for notifications for ever.
func TestListenBesidesUndone(t *testing.T) {
	db := pgtest.Shared(t)
	for _, on := range []pgproxy.OnState{pgproxy.PinState, pgproxy.RefuseState, pgproxy.ResetState} {
		t.Run(on.String(), func(t *testing.T) {
			g := startListening(t, db, 2, func(cfg *pgproxy.Config, _ *pgproxy.PostgresConfig) { cfg.OnState, cfg.MaxPinned = on, 1 })
			if on == pgproxy.PinState {
				g.named(t, "first").ask(query("select pg_advisory_lock(7)"))
				g.session(t, "first", listener.StatePinned)
			}
			direct := db.Connect(t)
			for i, sql := range []string{"listen besides; do $$ begin create temp table besides (n int); end $$", "do $$ begin perform pg_advisory_lock(8); end $$"} {
				w := g.dial(t)
				w.ask(query("listen besides"))
				w.ask(query(sql))
				if on == pgproxy.PinState {
					if types, bodies := w.ask(query("select 1")); types != "EZ" || !has(bodies, "53400") {
						t.Errorf("%s: told %s %q", sql, types, bodies)
					}
				}
				for _, seen := range []string{"select 'left' where to_regclass('besides') is not null", "select 'left' from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"} {
					if _, bodies := w.ask(query(seen)); has(bodies, "left") {
						t.Errorf("%s: still there", sql)
					}
				}
				simple(t, direct, fmt.Sprintf("notify besides, 'heard%d'", i))
				if got := heardUpTo(t, w, fmt.Sprintf("heard%d", i)); len(got) != 1 {
					t.Errorf("%s: heard %q", sql, got)
				}
				w.send(&pgwire.Terminate{})
				w.toTheEnd()
			}
		})
	}
}

// A client that is pinned to listen keeps its place while it is looked at.
func TestPinnedListenerKeepsItsPlace(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 4, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		cfg.MaxPinned, pc.Endpoints = 1, twice(db).Endpoints
	})
	w, other := g.named(t, "owner"), g.dial(t)
	w.ask(query("listen a"))
	g.session(t, "owner", listener.StatePinned)
	var all sync.WaitGroup
	var over atomic.Bool
	all.Go(func() {
		for !over.Load() {
			if types, bodies := other.ask(query("listen b")); types != "EZ" || !has(bodies, "53400") {
				t.Errorf("the place is free: %s %q", types, bodies)
				return
			}
		}
	})
	for range 100 {
		if types, bodies := w.ask(query("select pin.run('select 1')")); types != "TDCZ" { // each is followed by a check
			t.Errorf("%s %q", types, bodies)
			break
		}
	}
	over.Store(true)
	all.Wait()
	simple(t, db.Connect(t), "notify a, 'x'")
	heardUpTo(t, w, "x")
}

// While no commit with a notification comes to its end, because it waits for a standby, sessions that listen go on: they are told of what is not
// possible, and keep what they have.
func TestListenWhileNotifyIsLocked(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithSetting("wal_level", "replica"), pgtest.WithSetting("max_wal_senders", "2"),
		pgtest.WithSetting("synchronous_standby_names", "nobody")) // for which only commits wait that ask for that
	g := startListening(t, db, 3, nil)
	g.backend.SetListenPatience(0, time.Second)
	direct, stuck := db.Connect(t), db.Connect(t)
	idle, busy := g.named(t, "idle"), g.named(t, "busy")
	idle.ask(query("set lock_timeout = '1ms'"))
	for _, w := range []*wire{idle, busy} {
		w.ask(query("listen news"))
	}
	g.awaitParked(t, "idle")
	g.awaitParked(t, "busy")
	busy.ask(query("begin"))
	ended := make(chan error, 1)
	go func() {
		_, err := stuck.Exec(context.Background(), "set synchronous_commit = on; create table stuck (n int); notify news, 'stuck'", pgx.QueryExecModeSimpleProtocol)
		ended <- err
	}()
	conntest.Eventually(t, "a commit waits", func() bool {
		return one[int](t, direct, "select count(*) from pg_stat_activity where wait_event = 'SyncRep'") == 1
	})
	if types, bodies := idle.ask(query("select 1")); types != "EZ" || !has(bodies, "55P03") {
		t.Errorf("a transaction of a client that listens: %s %q", types, bodies)
	}
	if types, bodies := busy.ask(query("commit")); types != "CZ" {
		t.Errorf("the end of a transaction: %s %q", types, bodies)
	}
	g.session(t, "busy", listener.StatePinned)
	do(t, direct, "select pg_cancel_backend($1)", int32(stuck.PgConn().PID())) // it waits no more, and has committed
	if err := <-ended; err != nil {
		t.Error(err)
	}
	simple(t, direct, "notify news, 'free'")
	for _, w := range []*wire{idle, busy} {
		if got := heardUpTo(t, w, "free"); !slices.Equal(got, []string{"stuck", "free"}) {
			t.Errorf("heard %q", got)
		}
		if types, bodies := w.ask(query("select pin.run('select 1')")); types != "TDCZ" { // which is followed by a check
			t.Errorf("%s %q", types, bodies)
		}
	}
	g.awaitParked(t, "idle")
	g.awaitParked(t, "busy")
}

// Where the endpoint's address leads to another server, clients that listen at the old one are told as soon as there is a connection to the new one.
func TestEndpointMoves(t *testing.T) {
	db, other := pgtest.Start(t), pgtest.Start(t)
	var moved atomic.Bool
	g := startListening(t, db, 2, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			if moved.Load() {
				endpoint = other.Addr()
			}
			return enginetest.Dial(ctx, endpoint)
		}
	})
	w, holder := g.named(t, "listener"), g.dial(t)
	w.ask(query("listen news"))
	g.awaitParked(t, "listener")
	conntest.Eventually(t, "the server connection is idle", func() bool {
		p := g.backend.Status().Endpoints[0].Pool
		return p.Idle == 1 && p.InUse == 0
	})
	holder.ask(query("begin")) // on the only server connection there is
	moved.Store(true)
	if types, bodies := g.dial(t).ask(query("select 1")); types != "TDCZ" {
		t.Errorf("%s %q", types, bodies)
	}
	if said := w.toTheEnd(); !has(said, "08006") || !has(said, "leads to another server") {
		t.Errorf("told %q", said)
	}
	w = g.named(t, "again")
	w.ask(query("listen news"))
	g.awaitParked(t, "again")
	holder.ask(query("commit")) // the old server connection is the next one
	for i := range 4 {
		if types, bodies := w.ask(query("select 1")); types != "TDCZ" {
			t.Errorf("%s %q", types, bodies)
		}
		simple(t, other.Connect(t), fmt.Sprintf("notify news, '%d'", i))
		heardUpTo(t, w, fmt.Sprint(i))
	}
}

// While the login of the listening connection hangs, LISTEN pins, and others are not kept from their server connections.
func TestListenWhileLoginHangs(t *testing.T) {
	hangs, free := make(chan struct{}), make(chan struct{})
	var hang atomic.Bool
	var once sync.Once
	g := startListening(t, pgtest.Shared(t), 2, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		cfg.MaxPinned = 1
		pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			if hang.Load() {
				once.Do(func() { close(hangs) })
				<-free
				return nil, context.Canceled
			}
			return enginetest.Dial(ctx, endpoint)
		}
	})
	defer close(free)
	g.backend.SetListenPatience(100*time.Millisecond, 0)
	w, other := g.named(t, "first"), g.named(t, "second")
	w.ask(query("begin"))
	other.ask(query("select 1"))
	w.ask(query("commit")) // there are two server connections
	hang.Store(true)
	w.ask(query("listen a"))
	<-hangs
	g.session(t, "first", listener.StatePinned)
	conntest.Eventually(t, "the log tells of it", func() bool { return strings.Contains(g.log.String(), "LISTEN pins clients") })
	simple(t, pgtest.Shared(t).Connect(t), "notify a, 'x'")
	heardUpTo(t, w, "x")
	other.send(query("listen b"))
	other.toldOf("53400")
	if types, _ := w.ask(query("select 1")); types != "TDCZ" {
		t.Error(types)
	}
}

// Too many channels of all clients: the server is told of those that nobody listens to any more all the same.
func TestTooManyChannels(t *testing.T) {
	for _, c := range []struct {
		unused, wanted int
		refused        bool
	}{{1, 1, false}, {2, 1, false}, {2, 3, true}, {0, 1, true}} {
		sql, err := pgproxy.PlanChannels(pgproxy.MaxAllChannels-c.unused, c.unused, c.wanted)
		if (err != nil) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
		if n := strings.Count(sql, `UNLISTEN "unused`); n != c.unused {
			t.Errorf("%+v: %s", c, sql)
		}
		if n := strings.Count(sql, `;LISTEN "wanted`) + strings.Count(sql[:min(len(sql), 14)], `LISTEN "wanted`); c.refused && n > 0 || !c.refused && n != c.wanted {
			t.Errorf("%+v: %s", c, sql)
		}
	}
}

// What the gateway does around a client's transactions waits for nobody's, whatever the client has set.
func TestListenDeferrable(t *testing.T) {
	db := pgtest.Shared(t)
	g := startListening(t, db, 2, nil)
	w, writer := g.named(t, "deferrable"), db.Connect(t)
	w.ask(query("set session characteristics as transaction isolation level serializable, read only, deferrable"))
	w.ask(query("listen a"))
	g.awaitParked(t, "deferrable")
	do(t, writer, "create table if not exists pin.deferred (n int)")
	simple(t, writer, "begin isolation level serializable")
	do(t, writer, "insert into pin.deferred values (1)")
	for range 3 {
		for _, sql := range []string{"begin isolation level read committed", "select 1", "commit"} {
			if types, bodies := w.ask(query(sql)); strings.Contains(types, "E") {
				t.Fatalf("%s: %s %q", sql, types, bodies)
			}
		}
	}
	simple(t, writer, "rollback")
	simple(t, writer, "notify a, 'x'")
	heardUpTo(t, w, "x")
}

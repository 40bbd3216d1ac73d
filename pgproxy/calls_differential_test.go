package pgproxy_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

var (
	callScripts = flag.Int("calls", 1, "scripts of each client of TestSameCallsAsDirect")
	callSeed    = flag.Uint64("calls-seed", 1, "of TestSameCallsAsDirect")
	callKind    = flag.String("calls-kind", "", "run this kind of gateway of TestSameCallsAsDirect only")
)

// callGateway is a kind of gateway before which clients call functions.
type callGateway struct {
	name      string
	catalogs  pgproxy.Catalogs
	mode      pgproxy.Mode
	clients   uint64
	settings  bool // functions leave nothing but settings, so that all clients share two server connections
	unnoticed bool // DDL may pass it by
}

var callGateways = []callGateway{
	{"tight", pgproxy.CatalogsEvident, pgproxy.Transaction, 5, true, true},
	{"evident", pgproxy.CatalogsEvident, pgproxy.Transaction, 3, false, true},
	{"hidden", pgproxy.CatalogsHidden, pgproxy.Transaction, 3, false, true},
	{"trusted", pgproxy.CatalogsTrusted, pgproxy.Transaction, 3, false, false},
	{"statement", pgproxy.CatalogsEvident, pgproxy.Statement, 3, true, true},
}

// TestSameCallsAsDirect makes clients define and call functions that leave state or not, while others replace these functions,
// through the gateway and directly. Every message is the same, whatever other clients do on the same server connections, and no
// client sees what is not its own: among the others are some that leave in the middle of a call, are canceled, or are served in
// another mode.
func TestSameCallsAsDirect(t *testing.T) {
	for _, kind := range callGateways {
		if *callKind != "" && kind.name != *callKind {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			newCallHunt(t, kind).run()
		})
	}
}

// callHunt is a run before one gateway.
type callHunt struct {
	t        *testing.T
	kind     callGateway
	db       *pgtest.Cluster
	database string
	g        *gateway
	config   pgproxy.Config // of g
	over     chan struct{}  // closed when the scripts are done
}

// leaksSQL defines functions that leave state and take some time, for clients that leave in the middle.
const leaksSQL = `create function leak_setting(n int) returns int language plpgsql as $$ begin set work_mem = '1111kB'; perform pg_sleep(n * 0.001); set timezone = 'Asia/Tokyo'; return n; end $$;
create function leak_hidden(n int) returns int language plpgsql as $$ begin execute 'set bytea_output = escape'; perform pg_sleep(n * 0.001); execute 'set datestyle = German'; return n; end $$;
create function leak_custom(n int) returns int language plpgsql as $$ begin perform set_config('app.x', 'leaked', false), pg_sleep(n * 0.001); return n; end $$;
create function leak_lock(n int) returns int language plpgsql as $$ begin perform pg_advisory_lock_shared(4711), pg_sleep(n * 0.001); return n; end $$;
create function leak_table(n int) returns int language plpgsql as $$ begin execute 'create temp table if not exists leaked (n int)'; perform pg_sleep(n * 0.001); return n; end $$;
create function leak_prepared(n int) returns int language plpgsql as $$ begin execute 'prepare leaked as select 1'; perform pg_sleep(n * 0.001); return n; end $$;
create function leak_cursor(n int) returns int language plpgsql as $$ begin execute 'declare leaked cursor with hold for select 1'; perform pg_sleep(n * 0.001); return n; end $$;
create function leak_role(n int) returns int language plpgsql as $$ begin set role calls_differ; perform pg_sleep(n * 0.001); return n; end $$;
create function leak_path(n int) returns int language plpgsql as $$ begin perform set_config('search_path', 'pg_catalog', false); perform pg_sleep(n * 0.001); return n; end $$;
create function leak_channel(n int) returns int language plpgsql as $$ begin execute 'listen leaked'; perform pg_sleep(n * 0.001); return n; end $$;
create function deallocates(n int) returns int language plpgsql as $$ begin execute 'deallocate all'; perform pg_sleep(n * 0.001); return n; end $$;
create function deallocates_plainly(n int) returns int language plpgsql as $$ begin deallocate all; perform pg_sleep(n * 0.001); return n; end $$;
create function harmless(n int) returns int language plpgsql as $$ begin perform pg_sleep(n * 0.001); return n; end $$;
create procedure commits(n int) language plpgsql as $$ begin perform pg_sleep(n * 0.001); commit; set work_mem = '1112kB'; commit; end $$;
grant usage, create on schema public to public`

var leaks = []string{"leak_setting", "leak_hidden", "leak_custom", "leak_lock", "leak_table", "leak_prepared", "leak_cursor", "leak_role", "leak_path", "leak_channel", "deallocates", "deallocates_plainly", "harmless", "harmless"}

func newCallHunt(t *testing.T, kind callGateway) *callHunt {
	pgtest.Shared(t).Exec(t, "do $$ begin create role calls_differ; exception when others then null; end $$")
	db, database := ownDatabaseNamed(t, "calls_differ_"+kind.name, leaksSQL)
	h := &callHunt{t: t, kind: kind, db: db, database: database, over: make(chan struct{})}
	h.g = start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.User, pc.DBName, pc.ReadCatalogs, pc.StatementCache = "postgres", database, kind.catalogs, 6
		c.Mode, c.OnState = kind.mode, pgproxy.PinState
		if pc.Limits.MaxSize = 2; !kind.settings {
			pc.Limits.MaxSize = int(kind.clients) + 2
			c.MaxPinned = int(kind.clients)
		}
		h.config = *c
	})
	h.config.Databases = map[string]pgproxy.Backend{"*": h.g.backend}
	return h
}

// run runs the scripts, and next to them clients of all kinds.
func (h *callHunt) run() {
	var scripts, beside sync.WaitGroup
	for client := range h.kind.clients {
		scripts.Go(func() {
			for script := range uint64(*callScripts) {
				h.compare(client, script)
			}
		})
	}
	beside.Go(h.witness)
	beside.Go(func() { h.leave(rand.New(rand.NewPCG(*callSeed, 1000))) })
	scripts.Wait()
	close(h.over)
	beside.Wait()
}

// isOver reports whether the scripts are done.
func (h *callHunt) isOver() bool {
	select {
	case <-h.over:
		return true
	default:
		return h.t.Failed()
	}
}

// login connects to an address.
func (h *callHunt) login(addr, name string) *wire {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		h.t.Error(err)
		return nil
	}
	w := newWire(h.t, conn)
	request := (&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "postgres"}, {Name: "database", Value: h.database}, {Name: "application_name", Value: name}}}).Append(nil)
	if _, err := w.Write(request); err == nil {
		for {
			typ, body, err := w.try()
			switch {
			case err != nil || typ == pgwire.TypeErrorResponse:
				h.t.Errorf("login: %q, %v", body, err)
				return nil
			case typ == pgwire.TypeBackendKeyData:
				_ = w.key.Decode([]byte(body))
			case typ == pgwire.TypeReadyForQuery:
				return w
			}
		}
	}
	return nil
}

// probeSQL shows what clients leave, but for custom settings.
var probeSQL = []string{"current_setting('work_mem')", "current_setting('timezone')", "current_setting('datestyle')", "current_setting('bytea_output')", "current_setting('search_path')",
	"current_user", "session_user", "current_setting('application_name')",
	"(select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())", "(select count(*) from pg_class where relnamespace = pg_my_temp_schema())",
	"(select string_agg(name, ',') from pg_cursors where is_holdable)", "(select string_agg(c, ',') from pg_listening_channels() as c)",
	"(select string_agg(name, ',') from pg_prepared_statements where from_sql)"}

// witness probes with a client that leaves nothing, and with new ones.
func (h *callHunt) witness() {
	probe := query("select concat_ws('|', coalesce(current_setting('app.x', true), ''), " + strings.Join(probeSQL, ", ") + ")")
	want := ""
	var lasting *wire
	for i := 0; !h.isOver(); i++ {
		w := lasting
		if w == nil || i%3 == 0 {
			if w = h.login(h.g.addr, "witness"); w == nil {
				return
			}
		}
		s := &stateScript{w: w, values: map[string]string{}, channel: "witness"}
		if _, err := w.Write(probe.Append(nil)); err != nil {
			h.t.Error(err)
			return
		}
		got, err := s.answer(1)
		switch {
		case err != nil:
			h.t.Error(err)
			return
		case want == "":
			want, lasting = got, w
		case got != want:
			h.t.Errorf("a client that has set nothing sees\n%s\nwant\n%s", got, want)
			return
		}
		if w != lasting {
			_ = w.Close()
		}
	}
}

// leave has clients of all modes call functions that leave state, and leave in the middle, be canceled or killed, or lose their
// gateway by a drain.
func (h *callHunt) leave(r *rand.Rand) {
	var gateways []*gateway
	var configs []pgproxy.Config
	for _, change := range []func(c *pgproxy.Config){
		func(c *pgproxy.Config) { c.OnState = pgproxy.ResetState },
		func(c *pgproxy.Config) { c.OnState = pgproxy.RefuseState },
		func(c *pgproxy.Config) { c.OnState, c.Mode = pgproxy.ResetState, pgproxy.Statement },
		func(c *pgproxy.Config) { c.Mode = pgproxy.Session },
	} {
		cfg := h.config
		cfg.MaxPinned = 0
		change(&cfg)
		gateways, configs = append(gateways, startBeside(h.t, h.g, cfg)), append(configs, cfg)
	}
	for drains := 0; !h.isOver(); {
		i := r.IntN(len(gateways))
		g := gateways[i]
		w := h.login(g.addr, "leaving")
		if w == nil {
			return
		}
		done := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, w.Conn); close(done) }()
		var request []byte
		for range 1 + r.IntN(5) {
			for _, m := range leaving(r) {
				request = m.Append(request)
			}
		}
		cut := r.IntN(2) == 0
		if cut {
			request = request[:r.IntN(len(request))]
		}
		_, _ = w.Write(request)
		switch r.IntN(12) {
		case 0, 1, 2:
			h.cancel(w, g.addr)
		case 3, 4:
			for _, session := range g.Sessions() {
				if id, stream, ok := listener.ParseID(session.ID); ok {
					g.Kill(id, stream)
				}
			}
		case 5:
			if drains == 20 {
				break
			}
			drains++
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(8))*time.Millisecond)
			_ = g.Drain(ctx)
			cancel()
			gateways[i] = startBeside(h.t, h.g, configs[i])
		}
		if !cut && r.IntN(2) == 0 {
			_, _ = w.Write((&pgwire.Terminate{}).Append(nil))
			<-done
		}
		_ = w.Close()
		<-done
		if r.IntN(8) == 0 {
			h.change(r)
		}
	}
}

// leaving returns messages that leave state.
func leaving(r *rand.Rand) []pgwire.Message {
	text := fmt.Sprintf("select public.%s(%d)", leaks[r.IntN(len(leaks))], r.IntN(4))
	switch r.IntN(8) {
	case 0:
		text = "begin"
	case 1:
		text = []string{"commit", "rollback"}[r.IntN(2)]
	case 2:
		text = fmt.Sprintf("call public.commits(%d)", r.IntN(4))
	case 3:
		text += "; begin; " + text
	}
	if r.IntN(2) == 0 {
		return []pgwire.Message{query(text)}
	}
	name := []string{"", "a"}[r.IntN(2)]
	return []pgwire.Message{&pgwire.Close{Object: 'S', Name: name}, &pgwire.Parse{Name: name, Query: text}, &pgwire.Bind{Statement: name}, &pgwire.Execute{}, &pgwire.Sync{}}
}

// cancel sends a cancel request for a client of the gateway at an address.
func (h *callHunt) cancel(w *wire, addr string) {
	if conn, err := net.Dial("tcp", addr); err == nil {
		_, _ = conn.Write((&pgwire.CancelRequest{ProcessID: w.key.ProcessID, Key: w.key.Key}).Append(nil))
		_ = conn.Close()
	}
}

// change has the configuration change under the clients.
func (h *callHunt) change(r *rand.Rand) {
	cfg := h.config
	cfg.Listener.AccessLog = r.IntN(2) == 0
	if err := h.g.Update(cfg); err != nil {
		h.t.Error(err)
	}
}

// startBeside runs another proxy for the backend of a gateway.
func startBeside(t *testing.T, g *gateway, cfg pgproxy.Config) *gateway {
	p, err := pgproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	addr := conntest.Run(t, enginetest.Listen(t), p.Serve, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Drain(ctx); err != nil {
			t.Errorf("drain: %v", err)
		}
	})
	return &gateway{Proxy: p, backend: g.backend, addr: addr, log: g.log}
}

// compare runs a script both ways.
func (h *callHunt) compare(client, script uint64) {
	var transcripts [2][]string
	for i, addr := range []string{h.g.addr, h.db.Addr()} {
		s := &callScript{hunt: h, stateScript: stateScript{r: rand.New(rand.NewPCG(*callSeed<<8+client, script)), values: map[string]string{}, channel: fmt.Sprintf("calls_%d_%d_%d", client, script, i)}}
		for _, w := range []struct {
			on   **wire
			addr string
		}{{&s.w, addr}, {&s.partner, addr}, {&s.aside, h.db.Addr()}} {
			if *w.on = h.login(w.addr, "script"); *w.on == nil {
				return
			}
		}
		transcripts[i] = s.playCalls()
		for _, w := range []*wire{s.w, s.partner, s.aside} {
			_ = w.Close()
		}
	}
	for i, got := range transcripts[0] {
		if want := transcripts[1][min(i, len(transcripts[1])-1)]; got != want {
			if ambiguous := " 42725 "; has(got, ambiguous) != has(want, ambiguous) {
				return // a new overload of a function, where a statement was parsed on another server connection: see docs/session-state.md
			}
			h.t.Errorf("seed %d, client %d, script %d: through the gateway and directly\n%s\n%s\nafter\n%s", *callSeed, client, script, got, want, strings.Join(transcripts[0][:i], "\n"))
			return
		}
	}
}

// callScript is a random script about functions. They are in a schema of its own, CHANNEL.
type callScript struct {
	stateScript
	hunt           *callHunt
	partner, aside *wire // other clients, for DDL: of the gateway, and of the server
	status         byte  // of the transaction
}

// bodies are what functions do. {next} stands for a call of another one.
var bodies = struct{ harmless, settings, other []string }{
	harmless: []string{"return n + 1;", "return n + 2;", "insert into CHANNEL.entries values (n); return 3;", "return {next};", "return {next} + 1;", "return nextval('CHANNEL.seq');",
		"perform set_config('work_mem', '2222kB', true); return 4;", "set local timezone = 'Asia/Seoul'; return 5;", "begin perform 1/(n-1); exception when others then return -1; end; return 6;",
		"perform pg_sleep(0.001); return 7;", "perform pg_advisory_xact_lock(hashtext('CHANNEL')); return 8;", "delete from CHANNEL.entries; return (select count(*) from CHANNEL.entries);", "return 1/(n-1);"},
	settings: []string{"set work_mem = '3333kB'; return 10;", "perform set_config('work_mem', '3334kB', false); return 11;", "execute 'set work_mem = 3335'; return 12;", "set timezone = 'Europe/Berlin'; return 13;",
		"execute 'set timezone = ''America/Lima'''; return 14;", "set datestyle = 'German'; return 15;", "perform set_config('bytea_output', 'escape', false); return {next};", "execute 'set search_path = public'; return 16;",
		"set search_path = CHANNEL, public; return 17;", "set role calls_differ; return 18;", "reset work_mem; return 19;", "set work_mem to default; return 20;",
		"begin set work_mem = '3336kB'; perform 1/0; exception when others then return 21; end; return 22;", "update pg_settings set setting = '3337' where name = 'work_mem'; return 23;",
		"set work_mem = '3338kB'; return {next};", "perform {next}; set timezone = 'UTC'; return 24;", "reset timezone; reset datestyle; reset bytea_output; reset search_path; reset role; return 25;"},
	other: []string{"perform pg_advisory_lock(hashtext('CHANNEL')); return 30;", "execute 'select pg_advisory_lock(hashtext(''CHANNEL''))'; return 31;", "perform pg_advisory_unlock_all(); return 32;",
		"execute 'create temp table if not exists kept (n int)'; return 33;", "create temp table if not exists kept (n int); return 34;", "begin execute 'drop table pg_temp.kept'; exception when others then return 36; end; return 35;",
		"execute 'prepare p as select 1'; return 36;", "execute 'deallocate p'; return 37;", "execute 'declare h cursor with hold for select 1'; return 38;", "execute 'close h'; return 39;",
		"listen CHANNEL; return 40;", "execute 'listen CHANNEL'; return 41;", "execute 'unlisten CHANNEL'; return 42;", "create temp table gone (n int) on commit drop; return 43;"},
}

// headers are of functions. A function calls only those of higher numbers, so that none calls itself.
var headers = []string{"function {schema}f%d(n int) returns int language plpgsql", "function {schema}f%d(n int) returns int language plpgsql security definer", "function {schema}f%d(n int) returns int language plpgsql set work_mem = '4444kB'",
	"function {schema}f%d(n int, more int default 1) returns int language plpgsql", "function {schema}f%d(n bigint) returns int language plpgsql"}

// of returns one of some texts.
func (s *callScript) of(texts ...string) string { return texts[s.r.IntN(len(texts))] }

// define returns a text that defines or replaces one of the functions, or drops it.
func (s *callScript) define() string {
	n := s.r.IntN(4)
	schema := s.of("CHANNEL.", "CHANNEL.", "CHANNEL.", "CHANNEL_more.")
	switch s.r.IntN(12) {
	case 0:
		return fmt.Sprintf("drop function if exists %sf%d(%s)", schema, n, s.of("int", "int, int", "bigint"))
	case 1:
		return fmt.Sprintf("create or replace procedure CHANNEL.p(n int) language plpgsql as $$ begin perform CHANNEL.f%d(n); %s perform CHANNEL.f%d(n); end $$", n, s.of("commit;", "commit;", "rollback;", ""), s.r.IntN(4))
	case 2:
		return fmt.Sprintf("create or replace function %sf%d(n int) returns int language sql as $$ select {next} $$", schema, n)
	}
	body, from := "", bodies.harmless
	switch k := s.r.IntN(10); {
	case k > 7 && !s.hunt.kind.settings:
		from = bodies.other
	case k > 4:
		from = bodies.settings
	}
	body = s.of(from...)
	header := fmt.Sprintf(headers[s.r.IntN(len(headers))*s.r.IntN(2)], n)
	return strings.NewReplacer("{schema}", schema).Replace("create or replace "+header) + " as $$ begin " + body + " end $$"
}

// named puts the schema, and another function, in a text.
func (s *callScript) named(text string, n int) string {
	next := fmt.Sprintf("CHANNEL.f%d(n)", n+1)
	if n >= 3 {
		next = "n"
	}
	return strings.NewReplacer("{next}", next, "CHANNEL", s.channel).Replace(text)
}

// text returns a random text.
func (s *callScript) text() string {
	f := func() string {
		return fmt.Sprintf("%sf%d(%d)", s.of("CHANNEL.", "CHANNEL.", ""), s.r.IntN(4), s.r.IntN(3))
	}
	switch s.r.IntN(16) {
	case 0, 1:
		if s.hunt.kind.mode == pgproxy.Statement {
			return "select " + f()
		}
		return s.of("begin", "begin", "begin isolation level repeatable read", "commit", "commit", "rollback", "savepoint a", "rollback to a")
	case 2:
		return s.of("set search_path = CHANNEL", "set search_path = CHANNEL_more, CHANNEL, public", "set local search_path = CHANNEL", "reset search_path", "set work_mem = '5555kB'", "reset work_mem", "reset timezone", "reset role", "set timezone = 'Asia/Kabul'", "set datestyle = 'SQL'")
	case 3:
		return "call CHANNEL.p(1)"
	case 4:
		return "do $$ begin perform " + f() + "; end $$"
	case 5:
		return "select " + f() + "; select " + f()
	case 6:
		return "select count(" + f() + ") from generate_series(1, 3)"
	case 7:
		return "insert into CHANNEL.entries select " + f() + " returning n"
	case 8:
		return "select " + s.probe()
	case 9:
		return "select '2020-01-01 12:00Z'::timestamptz, '\\x00ff'::bytea, '2020-02-01'::date, " + f()
	case 10:
		return s.define()
	case 11:
		return s.of("insert into CHANNEL.triggered values (1)", "insert into CHANNEL.triggered select "+f()+" returning n", "select nextval('CHANNEL.seq'), currval('CHANNEL.seq'), lastval()")
	}
	return "select " + f()
}

// probe returns an expression that shows state.
func (s *callScript) probe() string {
	terms := probeSQL[:len(probeSQL)-3*s.r.IntN(2)]
	return "concat_ws('|', " + strings.Join(terms, ", ") + ")"
}

// playCalls sends random requests and returns each with its answer.
func (s *callScript) playCalls() (transcript []string) {
	s.status = 'I'
	setup := []string{"create schema CHANNEL", "create schema CHANNEL_more", "grant all on schema CHANNEL, CHANNEL_more to public", "create table CHANNEL.entries (n int)", "create table CHANNEL.triggered (n int)", "create sequence CHANNEL.seq", "grant all on CHANNEL.entries, CHANNEL.triggered, CHANNEL.seq to public", "set check_function_bodies = off"}
	for n := range 4 {
		setup = append(setup, fmt.Sprintf("create function CHANNEL.f%d(n int) returns int language plpgsql as $$ begin return n; end $$", n))
	}
	by := s.aside
	if !s.hunt.kind.unnoticed { // it knows what triggers run
		by = s.partner
		setup = append(setup, "create function CHANNEL.fires() returns trigger language plpgsql as $$ begin perform CHANNEL.f3(new.n); return new; end $$", "create trigger fires before insert on CHANNEL.triggered for each row execute function CHANNEL.fires()")
	}
	for _, text := range setup {
		if got, err := s.play1(by, query(s.named(text, 0))); err != nil || has(got, "ERROR") {
			return append(transcript, fmt.Sprint("setup: ", got, err))
		}
	}
	for range 25 {
		sent, got, err := s.step()
		got = strings.ReplaceAll(got, "PL/pgSQL function CHANNEL.", "PL/pgSQL function ") // the search_path at its first call on the server connection decides
		transcript = append(transcript, strings.ReplaceAll(sent, s.channel, "CHANNEL")+"\n      → "+got)
		if err != nil {
			return append(transcript, fmt.Sprint("the end: ", err))
		}
	}
	_ = s.w.Close() // it may hold locks
	_, _ = s.play1(s.aside, query(s.named("drop schema CHANNEL, CHANNEL_more cascade", 0)))
	return transcript
}

// play1 sends one request to a connection, and returns the answer.
func (s *callScript) play1(w *wire, m pgwire.Message) (string, error) {
	other := stateScript{w: w, values: map[string]string{}, channel: s.channel}
	if _, err := w.Write(m.Append(nil)); err != nil {
		return "", err
	}
	return other.answer(1)
}

// step sends a request, and then a probe.
func (s *callScript) step() (sent, got string, err error) {
	if s.status == 'I' && s.r.IntN(4) == 0 { // no lock of the client's is in the way
		w, by := s.partner, "PARTNER "
		if s.hunt.kind.unnoticed && s.r.IntN(2) == 0 {
			w, by = s.aside, "ASIDE "
		}
		text := s.named(s.define(), s.r.IntN(4))
		got, err := s.play1(w, query(text))
		return by + text, got, err
	}
	var request []byte
	answers := 1
	for range 1 + s.r.IntN(3)*s.r.IntN(2) {
		text := s.named(s.text(), s.r.IntN(4))
		if s.status == 'E' && s.r.IntN(2) == 0 {
			text = "rollback"
		}
		for _, m := range s.ways(text, s.name(), s.status == 'E') {
			switch m.(type) {
			case *pgwire.Query, *pgwire.Sync:
				answers++
			}
			sent += fmt.Sprintf("%T%+v ", m, m)
			request = m.Append(request)
		}
	}
	probe := "select " + s.probe()
	if s.r.IntN(3) == 0 {
		probe = ""
	}
	request = query(probe).Append(request)
	if _, err := s.w.Write(request); err != nil {
		return sent, "", err
	}
	got, err = s.answer(answers)
	if n := len(strings.TrimRight(got, " ")); n > 0 {
		s.status = got[n-1]
	}
	return sent, got, err
}

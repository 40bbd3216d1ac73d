package pgproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// small lets one server connection serve all.
func small(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 }

// TestNoAnswerIsLeftForTheNext plays clients that try to make the server send more answers than the
// gateway expects: the next client would get them.
func TestNoAnswerIsLeftForTheNext(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists stray (a int)")
	g := start(t, db, small)
	bad, sync := &pgwire.CopyData{Data: []byte("not a number\n")}, &pgwire.Sync{}
	for what, c := range map[string]struct{ first, then []pgwire.Message }{
		"Sync in failed COPY data": {
			[]pgwire.Message{query("copy stray from stdin")},
			[]pgwire.Message{bad, sync, &pgwire.CopyDone{}},
		},
		"Syncs in failed COPY data": {
			[]pgwire.Message{query("copy stray from stdin")},
			[]pgwire.Message{bad, sync, sync, sync},
		},
		"Sync after failed COPY data, extended": {
			[]pgwire.Message{&pgwire.Parse{Query: "copy stray from stdin"}, &pgwire.Bind{}, &pgwire.Execute{}, sync},
			[]pgwire.Message{bad, sync, &pgwire.CopyDone{}, sync},
		},
	} {
		for range 5 {
			w := g.dial(t)
			w.send(c.first...)
			w.until(pgwire.TypeCopyInResponse)
			w.send(c.then...)
			w.until(pgwire.TypeReadyForQuery)
			next := g.connect(t, "")
			for i := range 5 {
				if got := one[int](t, next, "select "+itoa(i), pgx.QueryExecModeSimpleProtocol); got != i {
					t.Fatalf("%s: asked for %d, got %d", what, i, got)
				}
			}
			_ = w.Close()
			_ = next.Close(t.Context())
		}
	}
}

// TestCopyByExtendedProtocol copies as libpq's PQexecParams does: the Sync is sent before the data.
func TestCopyByExtendedProtocol(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists ext (a int)", "truncate ext")
	g := start(t, db, small)
	w := g.dial(t)
	for _, c := range []struct{ data, want string }{{"1\n2\n", "CZ"}, {"x\n", "EZ"}, {"3\n", "CZ"}} {
		w.send(&pgwire.Parse{Query: "copy ext from stdin"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{})
		if types, _ := w.until(pgwire.TypeCopyInResponse); types != "12G" {
			t.Fatal(types)
		}
		w.send(&pgwire.CopyData{Data: []byte(c.data)}, &pgwire.CopyDone{}, &pgwire.Sync{})
		if types, body := w.until(pgwire.TypeReadyForQuery); types != c.want {
			t.Fatalf("%q: %s %q", c.data, types, body)
		}
		if n := one[int](t, g.connect(t, ""), "select 5"); n != 5 {
			t.Fatal(n)
		}
	}
	if n := one[int](t, g.connect(t, ""), "select count(*) from ext"); n != 3 {
		t.Fatal(n)
	}
}

// TestImpossibleMessages sends messages with bodies they cannot have.
func TestImpossibleMessages(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	for typ, n := range map[byte]int{pgwire.TypeSync: 1, pgwire.TypeFlush: 3, pgwire.TypeExecute: 20000, pgwire.TypeDescribe: 20000,
		pgwire.TypeClose: 20000, '?': 0, pgwire.TypePassword: 4} {
		w := g.dial(t)
		_, _ = w.Write(append(pgwire.AppendHeader(nil, typ, n), make([]byte, n)...))
		if types, body := w.until(pgwire.TypeErrorResponse); !has(body, "C08P01\x00") {
			t.Errorf("%c: %s %q", typ, types, body)
		}
		if _, _, err := w.try(); !isEnd(err) {
			t.Errorf("%c: %v", typ, err)
		}
	}
	if n := one[int](t, g.connect(t, ""), "select 5"); n != 5 {
		t.Fatal(n)
	}
}

// TestSlowMessageHoldsNoServer sends the beginning of a Query and stops.
func TestSlowMessageHoldsNoServer(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w := g.dial(t)
	_, _ = w.Write(pgwire.AppendHeader(nil, pgwire.TypeQuery, 9))
	if n := one[int](t, g.connect(t, ""), "select 6"); n != 6 {
		t.Fatal(n)
	}
	_, _ = w.Write([]byte("select 7\x00"))
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
		t.Fatal(types)
	}
}

// TestRefusedSettingsKeepTheServer connects with settings the server refuses.
func TestRefusedSettingsKeepTheServer(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	good := g.connect(t, "work_mem=7MB")
	pid := one[int](t, good, "select pg_backend_pid()")
	for range 3 {
		_, err := pgx.Connect(t.Context(), g.dsn("work_mem=lots"))
		if sqlstate(err) != "22023" {
			t.Fatal(err)
		}
		if mem, now := one[string](t, good, "show work_mem"), one[int](t, good, "select pg_backend_pid()"); mem != "7MB" || now != pid {
			t.Fatal(mem, now, pid)
		}
	}
}

// TestRoleIsNotLeft changes the role in every way a client may.
func TestRoleIsNotLeft(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	first, second := g.connect(t, ""), g.connect(t, "")
	for _, sql := range []string{"set role pg_monitor", "set session authorization pg_monitor", "set transaction_read_only=on",
		"set session characteristics as transaction read only", "set local role pg_monitor", "begin; set role pg_monitor; commit"} {
		do(t, first, sql, pgx.QueryExecModeSimpleProtocol)
		if got := one[string](t, second, "select (current_user = session_user)::text || current_setting('transaction_read_only')"); got != "trueoff" {
			t.Errorf("after %s: %s", sql, got)
		}
	}
}

// TestSettingsOutsideASCII applies one client's settings after another used an encoding in which
// they mean something else.
func TestSettingsOutsideASCII(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	for range 3 {
		for _, c := range [][2]string{{"LATIN1", "gr\xfcn"}, {"UTF8", "gr\u00fcn"}} {
			w := g.dial(t, pgwire.Param{Name: "client_encoding", Value: c[0]}, pgwire.Param{Name: "test.colour", Value: c[1]})
			w.send(query("select length(current_setting('test.colour')), current_setting('test.colour')"))
			if types, body := w.until(pgwire.TypeReadyForQuery); types != "TDCZ" || !has(body, c[1]) || !has(body, "\x014") {
				t.Errorf("%s: %s %q", c[0], types, body)
			}
			_ = w.Close()
		}
	}
}

// TestStatementsUnderSettings shares texts between clients that live at the same time.
func TestStatementsUnderSettings(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	conn := map[string]*pgx.Conn{}
	for _, style := range []string{"DMY", "MDY"} {
		conn[style] = g.connect(t, "datestyle='ISO, "+style+"'")
		if _, err := conn[style].PgConn().Prepare(t.Context(), "s", "select (date '01/02/2020')::text", nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for style, want := range map[string]string{"DMY": "2020-02-01", "MDY": "2020-01-02"} {
			r := conn[style].PgConn().ExecPrepared(t.Context(), "s", nil, nil, nil).Read()
			if r.Err != nil || string(r.Rows[0][0]) != want {
				t.Errorf("%s: %s %v, want %s", style, r.Rows, r.Err, want)
			}
		}
	}
	// One prepares in a transaction in which it has changed a setting.
	a, b := g.connect(t, ""), g.connect(t, "")
	text := "select xmlserialize(content '<a/>' as text) || (date '03/04/2021')::text"
	do(t, a, "begin; set local datestyle='ISO, DMY'", pgx.QueryExecModeSimpleProtocol)
	if _, err := a.PgConn().Prepare(t.Context(), "s", text, nil); err != nil {
		t.Fatal(err)
	}
	do(t, a, "commit", pgx.QueryExecModeSimpleProtocol)
	if got := one[string](t, b, text); got != "<a/>2021-03-04" {
		t.Error(got)
	}
}

// TestLongUnnamedStatement describes and then binds a long unnamed statement, as pgx does, while
// another client uses the server connection in between.
func TestLongUnnamedStatement(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	a, b := g.connect(t, "default_query_exec_mode=describe_exec"), g.connect(t, "default_query_exec_mode=exec")
	long := "select $1::int + length('" + strings.Repeat("x", 100<<10) + "')"
	desc, err := a.PgConn().Prepare(t.Context(), "", long, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if got := one[int](t, b, "select $1::int", i); got != i {
			t.Fatal(got)
		}
		r := a.PgConn().ExecPrepared(t.Context(), desc.Name, [][]byte{[]byte("1")}, nil, nil).Read()
		if r.Err != nil || string(r.Rows[0][0]) != itoa(100<<10+1) {
			t.Fatal(r.Err)
		}
	}
}

// TestServerMisbehavesAtLogin lets a server misbehave while the gateway logs in.
func TestServerMisbehavesAtLogin(t *testing.T) {
	for what, c := range map[string]struct {
		auth []pgwire.Message
		want string
	}{
		"SCRAM without proof":  {[]pgwire.Message{&pgwire.Authentication{Kind: pgwire.AuthSASL, Mechanisms: []string{"SCRAM-SHA-256"}}, &pgwire.Authentication{}}, "proving itself"},
		"no known mechanism":   {[]pgwire.Message{&pgwire.Authentication{Kind: pgwire.AuthSASL, Mechanisms: []string{"OAUTHBEARER"}}}, "OAUTHBEARER"},
		"SASL out of turn":     {[]pgwire.Message{&pgwire.Authentication{Kind: pgwire.AuthSASLFinal, Data: []byte("v=")}}, "out of order"},
		"cleartext after SASL": {[]pgwire.Message{&pgwire.Authentication{Kind: pgwire.AuthSASL, Mechanisms: []string{"SCRAM-SHA-256"}}, &pgwire.Authentication{Kind: pgwire.AuthCleartext}}, "out of order"},
		"Kerberos":             {[]pgwire.Message{&pgwire.Authentication{Kind: 2}}, "Kerberos"},
	} {
		l := conntest.Listen(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = pgwire.NewReader(conn).Startup()
			_, _ = conn.Write(bytesOf(c.auth...))
			_, _ = io.Copy(io.Discard, conn)
		}()
		probe := pgproxy.Probe(pgproxy.PostgresConfig{User: "app", Password: "secret"})
		if err := probe(bounded(t), l.Addr().String()); err == nil || !has(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		_ = l.Close()
		<-done
	}
}

// TestCleartextPassword checks the answer to a server that asks for the password itself.
func TestCleartextPassword(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		allow    bool
		sent     bool
	}{{"db.example:5432", false, false}, {"db.example:5432", true, true}, {"127.0.0.1:5432", false, true}} {
		client, server := net.Pipe()
		dial := func(context.Context, string) (net.Conn, error) { return client, nil }
		got := make(chan string, 1)
		go func() {
			defer server.Close()
			r := pgwire.NewReader(server)
			_, _ = r.Startup()
			_, _ = server.Write(bytesOf(&pgwire.Authentication{Kind: pgwire.AuthCleartext}))
			if _, err := r.Next(); err != nil {
				got <- ""
				return
			}
			body, _ := r.Body()
			got <- string(body)
		}()
		err := pgproxy.Probe(pgproxy.PostgresConfig{User: "app", Password: "secret", AllowCleartext: c.allow, Dial: dial})(bounded(t), c.endpoint)
		if sent := <-got; has(sent, "secret") != c.sent || !c.sent && !has(err.Error(), "clear text") {
			t.Errorf("%+v: the server got %q; %v", c, sent, err)
		}
	}
}

// TestServerDiesAtEveryByte cuts the server off after each byte of its answer. The client must
// get whole messages, at most one of them torn, and an error or the end; and the next client is
// served.
func TestServerDiesAtEveryByte(t *testing.T) {
	answer := bytesOf(&pgwire.ParseComplete{}, &pgwire.BindComplete{},
		&pgwire.RowDescription{Fields: []pgwire.Field{{Name: "a"}}}, &pgwire.DataRow{Values: [][]byte{[]byte("1")}},
		&pgwire.CommandComplete{Tag: "SELECT 1"}, &pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	request := []pgwire.Message{&pgwire.Parse{Query: "select 1"}, &pgwire.Bind{}, &pgwire.Describe{Object: 'P'}, &pgwire.Execute{}, &pgwire.Sync{}}
	for _, mode := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		g, f := startFake(t, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			mode(c, pc)
			pc.Ejection.Failures = -1 // a trial of the gateway's would be taken for a client's connection
		})
		for n := range len(answer) {
			logged := make(chan *wire, 1)
			go func() {
				w := g.dial(t)
				_, _ = w.Write(bytesOf(request...))
				logged <- w
			}()
			srv := <-f.conns
			w := <-logged
			for typ := byte(0); typ != pgwire.TypeSync; {
				typ, _ = srv.read()
			}
			_, _ = srv.Write(answer[:n])
			_ = srv.Close()
			all, err := io.ReadAll(untilZ{w})
			if err != nil || !wellFormed(all, answer[:n]) {
				t.Fatalf("cut after %d bytes: %q, %v", n, all, err)
			}
			_ = w.Close()
		}
	}
}

// untilZ reads a client's connection until ReadyForQuery or the end.
type untilZ struct{ w *wire }

func (u untilZ) Read(p []byte) (int, error) {
	typ, body, err := u.w.try()
	switch {
	case isEnd(err):
		return 0, io.EOF
	case err != nil:
		return 0, err
	case typ == pgwire.TypeReadyForQuery:
		return copy(p, "Z"), io.EOF
	}
	return copy(p, string(typ)+body), nil
}

// wellFormed reports whether a client's output begins with complete messages of the server,
// followed by an error unless a message was cut.
func wellFormed(told, sent []byte) bool {
	r := pgwire.NewReader(bytes.NewReader(sent))
	for {
		h, err := r.Next()
		if err != nil {
			return bytes.HasPrefix(told, []byte("ESFATAL\x00")) || bytes.HasPrefix(told, []byte("ESERROR\x00")) || r.Buffered() > 0 && len(told) == 0
		}
		body, err := r.Body()
		if err != nil {
			return len(told) == 0 || told[0] == 'E'
		}
		message := append([]byte{h.Type}, body...)
		if !bytes.HasPrefix(told, message) {
			return false
		}
		told = told[len(message):]
	}
}

// TestBothSidesSpeak pipelines more than fits on the way in either direction before it reads.
func TestBothSidesSpeak(t *testing.T) {
	for _, mode := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		g := start(t, pgtest.Shared(t), mode)
		w := g.dial(t)
		big := strings.Repeat("x", 64<<10)
		written := make(chan error, 1)
		const n = 100
		go func() {
			var err error
			for range n {
				_, err = w.Write(bytesOf(&pgwire.Parse{Query: "select '" + big + "'"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}))
			}
			written <- err
		}()
		for range n {
			if types, _ := w.until(pgwire.TypeReadyForQuery); types != "12DCZ" {
				t.Fatal(types)
			}
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
}

// TestFlushAndPortals reads a portal in pieces, with Flush only.
func TestFlushAndPortals(t *testing.T) {
	for _, mode := range []func(*pgproxy.Config, *pgproxy.PostgresConfig){transaction, session} {
		g := start(t, pgtest.Shared(t), mode)
		w, other := g.dial(t), g.connect(t, "")
		w.send(&pgwire.Parse{Query: "select generate_series(1,5)"}, &pgwire.Bind{}, &pgwire.Execute{MaxRows: 2}, &pgwire.Flush{})
		if types, _ := w.until(pgwire.TypePortalSuspended); types != "12DDs" {
			t.Fatal(types)
		}
		if n := one[int](t, other, "select 42"); n != 42 {
			t.Fatal(n)
		}
		w.send(&pgwire.Execute{MaxRows: 2}, &pgwire.Flush{})
		if types, _ := w.until(pgwire.TypePortalSuspended); types != "DDs" {
			t.Fatal(types)
		}
		w.send(&pgwire.Execute{}, &pgwire.Flush{})
		if types, _ := w.until(pgwire.TypeCommandComplete); types != "DC" {
			t.Fatal(types)
		}
		w.send(&pgwire.Sync{})
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "Z" {
			t.Fatal(types)
		}
		w.send(&pgwire.FunctionCall{Function: 1598, ResultFormat: 0}) // random()
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "VZ" {
			t.Fatal(types)
		}
		w.send(&pgwire.FunctionCall{Function: 4294967295}, query("select 1"))
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "EZ" {
			t.Fatal(types)
		}
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
			t.Fatal(types)
		}
	}
}

// TestProtocolVersions connects with versions and options that do not exist yet; the second time the gateway knows the packet.
func TestProtocolVersions(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	cases := []struct {
		version uint32
		option  bool
		told    string // NegotiateProtocolVersion's body
		key     int
	}{
		{version: pgwire.Version30, key: 4},
		{version: 3<<16 | 1, key: 4}, // there is none: servers answer so
		{version: pgwire.Version32, key: 32},
		{version: 3<<16 | 9999, told: "\x00\x03\x00\x02\x00\x00\x00\x00", key: 32}, // libpq asks for such, to see whether the server reports it
		{version: pgwire.Version30, option: true, told: "\x00\x03\x00\x00\x00\x00\x00\x01_pq_.future\x00", key: 4},
		{version: 3<<16 | 9999, option: true, told: "\x00\x03\x00\x02\x00\x00\x00\x01_pq_.future\x00", key: 32},
	}
	for _, c := range append(cases, cases...) {
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(t, conn)
		m := &pgwire.StartupMessage{Version: c.version, Params: []pgwire.Param{{Name: "user", Value: "app"}}}
		if c.option {
			m.Params = append(m.Params, pgwire.Param{Name: "_pq_.future", Value: "on"})
		}
		w.send(m)
		types, told, key := "", "", 0
		for typ := byte(0); typ != 'Z'; {
			var body string
			switch typ, body = w.read(); typ {
			case 'K':
				key = len(body) - 4
			case 'v':
				told = body
			}
			types += string(typ)
		}
		if told != c.told || told != "" && types[:2] != "vR" || key != c.key {
			t.Errorf("version %x: %s, got %q, a key of %d bytes", c.version, types, told, key)
		}
	}
}

// TestTerminateBeforeStartup gives a connection up before its startup packet: it is closed without an answer, as a server
// does. Other bytes that are no startup packet are answered.
func TestTerminateBeforeStartup(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, nil)
	for _, c := range []struct {
		first  []pgwire.Message
		sent   string
		answer bool
	}{
		{sent: "X\x00\x00\x00\x04"},
		{first: []pgwire.Message{&pgwire.SSLRequest{}}, sent: "X\x00\x00\x00\x04"},
		{sent: "X\x00\x00\x00\x05", answer: true},
		{sent: "GET / HTTP/1.1\r\n\r\n", answer: true},
	} {
		for name, addr := range map[string]string{"server": db.Addr(), "gateway": g.addr} {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			w := newWire(t, conn)
			for _, m := range c.first {
				w.send(m)
				if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
					t.Fatal(name, err)
				}
			}
			if _, err := conn.Write([]byte(c.sent)); err != nil {
				t.Fatal(name, err)
			}
			answer, err := io.ReadAll(conn)
			if want := c.answer && name == "gateway"; err != nil || has(string(answer), "C08P01\x00") != want || !want && len(answer) != 0 {
				t.Errorf("%s, %q: answer %q, %v", name, c.sent, answer, err)
			}
		}
	}
}

// TestBytesBeforeTLS sends more than the SSLRequest before the handshake.
func TestBytesBeforeTLS(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = &tls.Config{} })
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, conn)
	w.send(&pgwire.SSLRequest{}, &pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "app"}}})
	if _, body := w.until(pgwire.TypeErrorResponse); !has(body, "C08P01\x00") {
		t.Errorf("%q", body)
	}
}

// TestCancelWithWrongKey tries the process ID of another client.
func TestCancelWithWrongKey(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	w, lock := g.dial(t), pgtest.Shared(t).Connect(t)
	do(t, lock, "select pg_advisory_lock(4712)")
	w.send(query("select pg_advisory_xact_lock(4712)")) // takes until it is unlocked
	waitFor(t, g, "pg_advisory_xact_lock(4712)")
	for _, key := range [][]byte{[]byte("nope"), make([]byte, 256), append(bytes.Clone(w.key.Key), 0)} {
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		c := newWire(t, conn)
		c.send(&pgwire.CancelRequest{ProcessID: w.key.ProcessID, Key: key})
		if _, _, err := c.try(); !isEnd(err) {
			t.Fatal(err)
		}
	}
	do(t, lock, "select pg_advisory_unlock(4712)")
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
		t.Fatal(types)
	}
}

// TestWhatTransactionModeKeeps checks the statements of docs/session-state.md about state that the
// gateway does not see, and about set_config() of parameters that it sees.
func TestWhatTransactionModeKeeps(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize, c.OnState = 1, pgproxy.ResetState
	})
	first, second := g.connect(t, "timezone=UTC"), g.connect(t, "timezone=UTC")
	for _, c := range []struct{ left, look, want string }{
		{"select set_config('timezone','Asia/Tokyo',false)", "show timezone", "UTC"},
		{"select set_config('work_mem','13MB',true)", "show work_mem", "4MB"},
		{"select set_config('work_mem','13MB',false)", "show work_mem", "4MB"},
		{"select set_config(n,'14MB',false) from unnest(array['work_mem']) n", "show work_mem", "4MB"},
		{"create temp table left_behind (a int)", "select (to_regclass('left_behind') is null)::text", "true"},
		{"select pg_advisory_lock(99)", "select count(*)::text from pg_locks where locktype='advisory'", "0"},
	} {
		do(t, first, c.left, pgx.QueryExecModeSimpleProtocol)
		if got := one[string](t, second, c.look, pgx.QueryExecModeSimpleProtocol); got != c.want {
			t.Errorf("after %s: %s is %s, docs/session-state.md says %s", c.left, c.look, got, c.want)
		}
	}
	if got := one[string](t, first, "show timezone"); got != "Asia/Tokyo" {
		t.Errorf("the time zone does not follow its client: %s", got)
	}
}

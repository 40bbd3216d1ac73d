package pgproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// rowsOf is the answer to a Query: n rows of a text.
func rowsOf(n int, text string) []byte {
	row := &pgwire.DataRow{Values: [][]byte{[]byte(text)}}
	b := bytesOf(columns)
	for range n {
		b = row.Append(b)
	}
	return append(b, bytesOf(&pgwire.NoticeResponse{ErrorResponse: pgwire.ErrorResponse{Severity: "NOTICE", Code: "00000", Message: "by the way"}},
		&pgwire.CommandComplete{Tag: fmt.Sprint("SELECT ", n)}, idle)...)
}

// TestAnswerInPieces cuts answers in two at every place: the client gets them as they are, and the server connection serves on.
func TestAnswerInPieces(t *testing.T) {
	g, f := startFake(t, nil)
	w := g.dial(t)
	srv := (*wire)(nil)
	for _, answer := range [][]byte{
		rowsOf(2, "short"),
		bytesOf(&pgwire.EmptyQueryResponse{}, idle),
		bytesOf(errorOf("42601"), idle),
		bytesOf(&pgwire.CommandComplete{Tag: "SET"}, idle),
	} {
		for cut := range answer {
			w.send(query("select"))
			if srv == nil {
				srv = <-f.conns
			}
			for { // the gateway sees to it that the settings are the client's
				_, sql := srv.read()
				if sql == "select\x00" {
					break
				}
				srv.send(&pgwire.CommandComplete{Tag: "SELECT 0"}, idle)
			}
			answerInTwo(t, srv, w, answer, cut)
		}
	}
	if n := len(f.conns); n != 0 {
		t.Errorf("%d more server connections", n)
	}
}

// answerInTwo has the server send an answer, cut in two, which the client gets as it is.
func answerInTwo(t *testing.T, srv, w *wire, answer []byte, cut int) {
	t.Helper()
	for _, piece := range [][]byte{answer[:cut], answer[cut:]} {
		if _, err := srv.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len(answer))
	if _, err := io.ReadFull(w.Conn, got); err != nil || !bytes.Equal(got, answer) {
		t.Fatalf("cut at %d: got %q, want %q (%v)", cut, got, answer, err)
	}
}

func errorOf(code string) *pgwire.ErrorResponse {
	return &pgwire.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: "no"}
}

// executed are the messages that execute the client's statement "s" with a value.
func executed(value string) []pgwire.Message {
	return []pgwire.Message{&pgwire.Bind{Statement: "s", Params: [][]byte{[]byte(value)}}, &pgwire.Describe{Object: pgwire.ObjectPortal},
		&pgwire.Execute{}, &pgwire.Sync{}}
}

// preparedOnFake gives the client the statement "s", which the fake server has then, and executes it: without asking for the
// columns, and with.
func preparedOnFake(t *testing.T, w *wire, f *fakeServer) (srv *wire) {
	t.Helper()
	w.send(&pgwire.Parse{Name: "s", Query: "select $1"}, &pgwire.Sync{})
	srv = <-f.conns
	srv.until(pgwire.TypeSync)
	srv.send(&pgwire.ParseComplete{}, idle)
	w.until(pgwire.TypeReadyForQuery)
	for range 2 {
		w.send(&pgwire.Bind{Statement: "s"}, &pgwire.Execute{}, &pgwire.Sync{})
		srv.until(pgwire.TypeSync)
		srv.send(&pgwire.BindComplete{}, row, done, idle)
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "2DCZ" {
			t.Fatalf("answered with %q", types)
		}
	}
	w.send(executed("first")...)
	srv.wantExecuted("first")
	srv.send(&pgwire.BindComplete{}, columns, row, done, idle)
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "2TDCZ" {
		t.Fatalf("answered with %q", types)
	}
	return srv
}

// wantExecuted reads what the gateway makes of executed, after what it asks on its own account.
func (w *wire) wantExecuted(value string) {
	w.t.Helper()
	w.wantRequest("BDES", &pgwire.Bind{Statement: "headpond_1", Params: [][]byte{[]byte(value)}})
}

// wantRequest reads messages of types, the first of which is as given, after what the gateway asks on its own account.
func (w *wire) wantRequest(types string, first pgwire.Message) {
	w.t.Helper()
	typ, body := w.read()
	for ; typ == pgwire.TypeQuery && types[0] != pgwire.TypeQuery; typ, body = w.read() {
		w.send(&pgwire.CommandComplete{Tag: "SELECT 0"}, idle)
	}
	if want := bytesOf(first)[5:]; typ != types[0] || body != string(want) {
		w.t.Fatalf("the server is asked %d bytes of type %c: %.40q, want %d: %.40q", len(body), typ, body, len(want), want)
	}
	for _, want := range types[1:] {
		if typ, _ := w.read(); typ != byte(want) {
			w.t.Fatalf("the server is asked a %c, want %c of %q", typ, want, types)
		}
	}
}

// TestRequestsOfAllSizes has requests wait for a server connection, and answers of all sizes come at once: both arrive whole.
func TestRequestsOfAllSizes(t *testing.T) {
	g, f := startFake(t, nil)
	holder, w := g.dial(t), g.dial(t)
	srv := preparedOnFake(t, w, f)
	reset := false
	const around, around2 = 40, 44 // the messages of executed, and of unnamed with Sync, without what varies, in bytes
	for _, size := range []int{0, 1, 100, 145, 146, 147, 148, 500, 507, 508, 10000, 16<<10 - 7, 16<<10 - 6, 16<<10 - 5, 40000, 64<<10 - 1, 64 << 10, 70000,
		151 - around, 152 - around, 153 - around, 511 - around, 512 - around, 513 - around, 15<<10 - 46, 15<<10 - 45, 15<<10 - 44,
		16<<10 - around - 1, 16<<10 - around, 16<<10 - around + 1,
		152 - around2, 153 - around2, 512 - around2, 513 - around2, 8<<10 - 4, 8<<10 - 3} {
		text := strings.Repeat("x", size)
		for _, c := range []struct {
			messages, behind []pgwire.Message
			first            pgwire.Message
			types            string
		}{
			{[]pgwire.Message{query(text)}, nil, query(text), "Q"},
			{executed(text), []pgwire.Message{&pgwire.BindComplete{}}, &pgwire.Bind{Statement: "headpond_1", Params: [][]byte{[]byte(text)}}, "BDES"},
			{append(unnamed(text), &pgwire.Sync{}), []pgwire.Message{&pgwire.ParseComplete{}, &pgwire.BindComplete{}}, &pgwire.Parse{Query: text}, "PBDES"},
		} {
			holder.send(query("begin"))
			if reset {
				if got := srv.answerQuery(); !has(got, "RESET ALL") {
					t.Errorf("%d bytes: the next lease begins with %.20q", size, got)
				}
				reset = false
			}
			srv.read()
			srv.send(&pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.ReadyForQuery{Status: pgwire.TxActive})
			holder.until(pgwire.TypeReadyForQuery)
			w.send(c.messages...)
			conntest.Eventually(t, "a client that waits", func() bool { return g.backend.Status().Endpoints[0].Pool.Waiting == 1 })
			holder.send(query("commit"))
			if got := srv.answerQuery(); got != "commit" {
				t.Fatalf("%d bytes: the server is asked %.20q", size, got)
			}
			holder.until(pgwire.TypeReadyForQuery)
			srv.wantRequest(c.types, c.first)
			answer := append(bytesOf(c.behind...), rowsOf(1, text)...)
			go func() { _, _ = srv.Write(answer) }()
			got := make([]byte, len(answer))
			if _, err := io.ReadFull(w.Conn, got); err != nil || !bytes.Equal(got, answer) {
				t.Fatalf("%s of %d bytes: another answer (%v)", c.types, size, err)
			}
			if c.types == "Q" && size >= 64<<10 { // of which nobody knows what it leaves
				if got := srv.answerLook("0"); !has(got, "pg_settings") {
					t.Errorf("%d bytes: then the server is asked %.20q", size, got)
				}
				reset = true
			}
		}
	}
}

// TestExtendedAnswerInPieces is TestAnswerInPieces for prepared statements, and for the unnamed one.
func TestExtendedAnswerInPieces(t *testing.T) {
	g, f := startFake(t, nil)
	w := g.dial(t)
	srv := preparedOnFake(t, w, f)
	bound := &pgwire.BindComplete{}
	for i, answer := range [][]byte{
		append(bytesOf(bound), rowsOf(2, "short")...),
		bytesOf(bound, &pgwire.NoData{}, &pgwire.CommandComplete{Tag: "INSERT 0 1"}, idle),
		bytesOf(bound, columns, &pgwire.EmptyQueryResponse{}, idle),
		bytesOf(bound, columns, row, &pgwire.PortalSuspended{}, idle),
		bytesOf(errorOf("22P02"), idle),
		bytesOf(bound, columns, row, errorOf("22012"), idle),
		bytesOf(bound, &pgwire.NoData{}, &pgwire.CommandComplete{Tag: "SET"}, idle),
	} {
		for _, parsed := range [][]byte{nil, bytesOf(&pgwire.ParseComplete{})} {
			answer := append(parsed, answer...)
			for cut := range answer {
				if value := fmt.Sprint(i, " ", cut); parsed == nil {
					w.send(executed(value)...)
					srv.wantExecuted(value)
				} else {
					w.send(append(unnamed(value), &pgwire.Sync{})...)
					srv.wantRequest("PBDES", &pgwire.Parse{Query: value})
				}
				answerInTwo(t, srv, w, answer, cut)
			}
		}
	}
	if n := len(f.conns); n != 0 {
		t.Errorf("%d more server connections", n)
	}
}

// TestPreparedElsewhere executes a prepared statement on a server connection that has not got it, cuts requests in two at
// every place, and closes the statement.
func TestPreparedElsewhere(t *testing.T) {
	g, f := startFake(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 2 })
	holder, w := g.dial(t), g.dial(t)
	srv := preparedOnFake(t, w, f)
	conntest.Eventually(t, "the server connection back in the pool", func() bool { return g.backend.Status().Endpoints[0].Pool.InUse == 0 })
	holder.send(query("begin"))
	srv.read()
	srv.send(&pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.ReadyForQuery{Status: pgwire.TxActive})
	holder.until(pgwire.TypeReadyForQuery)
	w.send(executed("other")...)
	other := <-f.conns
	if types, bodies := other.until(pgwire.TypeSync); types != "PDBDES" || !strings.Contains(bodies, "headpond_1\x00select $1") {
		t.Fatalf("the other server connection is asked %q: %q", types, bodies)
	}
	other.send(&pgwire.ParseComplete{}, &pgwire.ParameterDescription{Types: []uint32{25}}, columns, &pgwire.BindComplete{}, columns, row, done, idle)
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "2TDCZ" {
		t.Fatalf("answered with %q", types)
	}
	request := bytesOf(executed("cut")...)
	for cut := range request {
		for _, piece := range [][]byte{request[:cut], request[cut:]} {
			if _, err := w.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		other.wantRequest("BDES", &pgwire.Bind{Statement: "headpond_1", Params: [][]byte{[]byte("cut")}})
		other.send(&pgwire.BindComplete{}, columns, row, done, idle)
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "2TDCZ" {
			t.Fatalf("cut at %d: answered with %q", cut, types)
		}
	}
	w.send(&pgwire.Close{Object: pgwire.ObjectStatement, Name: "s"}, &pgwire.Sync{})
	other.until(pgwire.TypeSync)
	other.send(idle)
	w.until(pgwire.TypeReadyForQuery)
	w.send(executed("gone")...)
	if types, bodies := other.until(pgwire.TypeSync); types != "BDES" || !strings.HasPrefix(bodies, "\x00s\x00") {
		t.Errorf("after Close the server is asked %q: %q", types, bodies)
	}
}

// TestSlowReader asks faster than it reads the answers: they come whole and in order.
func TestSlowReader(t *testing.T) {
	const rounds = 600 // more than sockets hold
	g, f := startFake(t, nil)
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(256 << 10)
	w := newWire(t, conn).login()
	asked := make(chan struct{})
	answer := func(i int) []byte { return rowsOf(1, strings.Repeat(fmt.Sprint(i%10), 15000)) }
	served := make(chan error, 1)
	go func() {
		var srv *wire
		for i := range rounds {
			if srv == nil {
				srv = <-f.conns
			}
			if _, _, err := srv.try(); err != nil {
				served <- err
				return
			}
			if _, err := srv.Write(answer(i)); err != nil {
				served <- err
				return
			}
			asked <- struct{}{}
		}
		served <- nil
	}()
	go func() {
		for range rounds {
			if _, err := w.Write(bytesOf(query("select"))); err != nil {
				return
			}
			<-asked // and not until it is answered
		}
	}()
	for i := range rounds {
		want := answer(i)
		for got := make([]byte, 16); len(want) > 0; {
			n, err := conn.Read(got[:min(len(got), len(want))])
			if err != nil || !bytes.Equal(got[:n], want[:n]) {
				t.Fatalf("answer %d, %d bytes before its end: %v", i, len(want), err)
			}
			want = want[n:]
		}
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestClosedInQuery closes the backend under a Query: it is answered, and the server connection closed.
func TestClosedInQuery(t *testing.T) {
	g, f := startFake(t, nil)
	w := g.dial(t)
	w.send(query("select 1"))
	srv := <-f.conns
	srv.answerQuery()
	w.until(pgwire.TypeReadyForQuery)
	w.send(query("select 2"))
	if typ, _ := srv.read(); typ != pgwire.TypeQuery {
		t.Fatalf("message of type %q", typ)
	}
	g.backend.Close()
	srv.send(&pgwire.CommandComplete{Tag: "SELECT 0"}, idle)
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
		t.Errorf("answered with %q", types)
	}
	if typ, _, err := srv.try(); err == nil && typ != pgwire.TypeTerminate {
		t.Errorf("the server connection was told %q", typ)
	}
	w.send(query("select 3"))
	if _, text := w.until(pgwire.TypeErrorResponse); !strings.Contains(text, "57P01") {
		t.Errorf("after that: %q", text)
	}
}

// tallied is a connection that counts what its one user writes and reads.
type tallied struct {
	net.Conn
	in, out uint64
}

func (c *tallied) Write(p []byte) (n int, err error) {
	n, err = c.Conn.Write(p)
	c.in += uint64(n)
	return n, err
}

func (c *tallied) Read(p []byte) (n int, err error) {
	n, err = c.Conn.Read(p)
	c.out += uint64(n)
	return n, err
}

// TestBytesAreCounted: what goes past the buffers counts as traffic, as the rest does.
func TestBytesAreCounted(t *testing.T) {
	g, f := startFake(t, nil)
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	sum := &tallied{Conn: conn}
	w := newWire(t, sum).login()
	var srv *wire
	for range 3 {
		w.send(query("select 1"))
		if srv == nil {
			srv = <-f.conns
		}
		srv.answerQuery()
		w.until(pgwire.TypeReadyForQuery)
	}
	conntest.Eventually(t, "all traffic counted, and no more", func() bool { // which may be after it is read
		now := g.Stats()
		return now.BytesIn == sum.in && now.BytesOut == sum.out
	})
}

// TestDrainServesWhatWaits drains the gateway while a request waits for a server connection: it is still answered, also if that
// takes more than a look at what it gets.
func TestDrainServesWhatWaits(t *testing.T) {
	for name, params := range map[string][]pgwire.Param{"as it is": nil, "other settings": {{Name: "application_name", Value: "other"}}} {
		g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
		w, holder := g.dial(t, params...), g.dial(t)
		for _, c := range []*wire{w, holder} {
			c.send(query("select 1"))
			c.until(pgwire.TypeReadyForQuery)
		}
		holder.send(query("begin"))
		holder.until(pgwire.TypeReadyForQuery)
		w.send(query("select 7"))
		conntest.Eventually(t, "a client that waits", func() bool { return g.backend.Status().Endpoints[0].Pool.Waiting == 1 })
		drained := make(chan error, 1)
		go func() { drained <- g.Drain(bounded(t)) }()
		conntest.Eventually(t, "a drain", func() bool { return g.Stats().Draining })
		holder.send(query("commit"))
		if types, _ := holder.until(pgwire.TypeErrorResponse); types != "CZE" {
			t.Errorf("%s: who held the server connection is told %q", name, types)
		}
		if types, text := w.until(pgwire.TypeErrorResponse); types != "TDCZE" || !strings.Contains(text, "57P01") {
			t.Errorf("%s: who waited is told %q, %q", name, types, text)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
	}
}

// explosive is a listener whose connections panic when they are written to, once that is armed.
type explosive struct {
	net.Listener
	armed atomic.Bool
}

func (l *explosive) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if on, ok := c.(fiber.Stream); ok {
		return &explosiveLoopConn{on, l}, err
	}
	return &explosiveConn{c, l}, err
}

func (l *explosive) fire() {
	if l.armed.Swap(false) {
		panic("out of luck")
	}
}

type explosiveConn struct {
	net.Conn
	l *explosive
}

func (c *explosiveConn) Write(p []byte) (int, error) {
	c.l.fire()
	return c.Conn.Write(p)
}

type onLoops interface{ Go(fn func()) }

// explosiveLoopConn is a connection of an engine that has loops; the answer of a Query is written in a step there.
type explosiveLoopConn struct {
	fiber.Stream
	l *explosive
}

func (c *explosiveLoopConn) TryWrite(p []byte) int {
	c.l.fire()
	return c.Stream.TryWrite(p)
}

// TestPanicWithAnAnswer panics when an answer is to be passed on: that ends one session, its place in the pool is
// free, and the loop lives. On a loop it is a step that panics, so that this also shows which requests those carry.
func TestPanicWithAnAnswer(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	l := &explosive{Listener: enginetest.Listen(t)}
	var on net.Listener = l
	if loops, ok := l.Listener.(onLoops); ok {
		on = struct {
			*explosive
			onLoops
		}{l, loops}
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(on) }()
	t.Cleanup(func() { _ = l.Close(); <-served })
	login := func() *wire {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return newWire(t, conn).login()
	}
	for name, request := range map[string][]pgwire.Message{
		"Query":                      {query("select 1")},
		"prepared":                   executed("1"),
		"unnamed":                    append(unnamed("select 1"), &pgwire.Sync{}),
		"prepared, without Describe": {&pgwire.Bind{Statement: "s", Params: [][]byte{[]byte("2")}}, &pgwire.Execute{}, &pgwire.Sync{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := login()
			w.send(&pgwire.Parse{Name: "s", Query: "select $1::text"}, &pgwire.Sync{})
			w.until(pgwire.TypeReadyForQuery)
			w.send(request...)
			w.until(pgwire.TypeReadyForQuery)
			l.armed.Store(true)
			w.send(request...)
			if _, _, err := w.try(); !isEnd(err) {
				t.Errorf("the client is told %v", err)
			}
			other := login()
			other.send(query("select 3"))
			if types, _ := other.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
				t.Errorf("the next client is told %q", types)
			}
			conntest.Eventually(t, "a line in the log", func() bool { return g.log.Line("session panicked", "out of luck") != "" })
		})
	}
}

// want sends messages and Sync, and wants all of the words in the answer: its types, and its bodies.
func (w *wire) want(words string, messages ...pgwire.Message) {
	w.t.Helper()
	types, bodies := w.ask(append(messages, &pgwire.Sync{})...)
	for _, word := range strings.Fields(words) {
		if !strings.Contains(types+" "+bodies, word) {
			w.t.Fatalf("answered with %q %q, want %q", types, bodies, words)
		}
	}
}

func (w *wire) prepare(name, sql string) {
	w.t.Helper()
	w.want("1Z", &pgwire.Parse{Name: name, Query: sql})
}

func (w *wire) execute(name, words string) {
	w.t.Helper()
	w.want(words, &pgwire.Bind{Statement: name}, &pgwire.Execute{})
}

func (w *wire) thrice(name, words string) {
	w.t.Helper()
	for range 3 {
		w.execute(name, words)
	}
}

// unnamed are the messages that parse and execute the unnamed statement.
func unnamed(sql string) []pgwire.Message {
	return []pgwire.Message{&pgwire.Parse{Query: sql}, &pgwire.Bind{}, &pgwire.Describe{Object: pgwire.ObjectPortal}, &pgwire.Execute{}}
}

// TestFastPathAmongOthers mixes what the loop carries with what only a session can.
func TestFastPathAmongOthers(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	w, other := g.dial(t), g.dial(t)
	w.prepare("s", "select 'named'")
	w.prepare("", "select 'unnamed'")
	w.thrice("s", "2DCZ named")
	w.execute("", "2DCZ unnamed")
	w.thrice("s", "2DCZ named")
	w.ask(query("select 'query'"))
	w.thrice("s", "2DCZ named")
	w.execute("", "EZ 26000")

	w.thrice("s", "2DCZ named")
	w.want("2DCZ named", &pgwire.Bind{Portal: "p", Statement: "s"}, &pgwire.Execute{Portal: "p"})
	w.want("2DsZ", &pgwire.Bind{Statement: "s"}, &pgwire.Execute{MaxRows: 1})
	w.thrice("s", "2DCZ named")

	w.prepare("sweep", "deallocate s")
	w.execute("sweep", "2CZ DEALLOCATE")
	w.execute("s", "EZ 26000")
	w.prepare("s", "select 'again'")
	w.thrice("s", "2DCZ again")
	w.execute("sweep", "2CZ DEALLOCATE")
	w.execute("s", "EZ 26000")

	w.prepare("begin", "begin")
	w.prepare("fail", "select 1/0")
	w.prepare("rollback", "rollback")
	for range 3 {
		w.execute("begin", "2CZ BEGIN")
		w.execute("fail", "EZ 22012")
		w.execute("begin", "EZ 25P02")
		w.execute("rollback", "2CZ ROLLBACK")
		w.execute("fail", "EZ 22012")
	}
	w.prepare("set", "set application_name = 'mine'")
	w.prepare("show", "show application_name")
	w.thrice("set", "2C SET")
	w.thrice("show", "2DCZ mine")
	for range 3 {
		if _, bodies := other.ask(query("show application_name")); strings.Contains(bodies, "mine") {
			t.Errorf("another client is told %q", bodies)
		}
		w.thrice("show", "2DCZ mine")
	}
}

// TestUnnamedAmongOthers does so with the unnamed statement.
func TestUnnamedAmongOthers(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	w := g.dial(t)
	for _, sql := range []string{"select 'one'", "select 'one'", "select 'two'", "select 'two'", "select 'one'", "select 'three' || ''"} {
		w.want("12TDCZ "+sql[8:11], unnamed(sql)...)
	}
	w.execute("", "2DCZ three")
	w.want("12TDCZ one", unnamed("select 'one'")...)
	w.want("EZ 42601", unnamed("selec")...)
	w.execute("", "EZ 26000")
	for range 3 {
		for range 2 {
			w.want("12TDCZ one", unnamed("select 'one'")...)
		}
		for range 2 {
			w.want("EZ 22012", unnamed("select 1 / 0")...)
			w.execute("", "EZ 22012")
		}
		for range 2 {
			w.want("12nC SET", unnamed("set application_name = 'one'")...)
			w.execute("", "2C SET")
		}
		w.want("12nCZ BEGIN", unnamed("begin")...)
		w.want("12nCZ ROLLBACK", unnamed("rollback")...)
		w.execute("", "2NCZ ROLLBACK")
		w.ask(query("select 'query'"))
		w.execute("", "EZ 26000")
	}
	for range 2 {
		w.prepare("s", "select 'named'")
		w.want("12TDCZ one", unnamed("select 'one'")...)
		w.want("12nC DEALLOCATE", unnamed("deallocate s")...)
		w.want("EZ 26000", unnamed("deallocate s")...)
	}
}

// TestUnnamedOfTwo has two clients use their unnamed statements on one server connection, in turn. Of three, two are on one loop.
func TestUnnamedOfTwo(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	clients := []*wire{g.dial(t), g.dial(t), g.dial(t)}
	for i, a := range clients {
		b := clients[(i+1)%3]
		for _, text := range []string{"one", "two", "two", "one"} {
			parse := func(w *wire, text string) {
				t.Helper()
				w.want("12TDCZ "+text, unnamed("select '"+text+"'")...)
			}
			for range 2 { // the first may be the session's
				parse(a, "zero")
			}
			b.prepare("", "select 'other'")
			parse(a, text)
			b.execute("", "other")
			for range 2 {
				parse(a, text)
			}
			b.ask(query("select 'query'"))
			a.execute("", text)
			b.execute("", "26000")
			for range 2 {
				parse(a, text)
				b.ask(query("select 'query'"))
			}
			a.execute("", text)
			a.ask(query("select 1 / 0"))
			a.execute("", "26000")
			for range 3 {
				a.want("22012", unnamed("select 1 / 0")...)
			}
			for _, text := range []string{"bbb1", "bbb2", "bbb3"} { // as long as that
				b.prepare("", "select '"+text+"'")
				parse(b, text)
				b.want("22012", unnamed("select 2 / 0")...)
			}
			a.execute("", "22012")
		}
	}
}

// TestLongUnnamedOnFastPath has long texts of unnamed statements, sent again for another execution.
func TestLongUnnamedOnFastPath(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	clients := []*wire{g.dial(t), g.dial(t), g.dial(t)}
	for _, size := range []int{10, 7000, 16000, 10, 7900, 8100, 8191, 8192, 8193, 12000, 7000} {
		for i, a := range clients {
			text := strings.Repeat("x", size)
			a.prepare("", "select '"+text+"'")
			a.execute("", text)
			for range 2 {
				a.want("12TDCZ short", unnamed("select 'short'")...)
			}
			a.want("12TDCZ "+text, unnamed("select '"+text+"'")...)
			b := clients[(i+1)%3]
			for range 2 {
				b.want("12TDCZ other", unnamed("select 'other'")...)
			}
			if size <= 8000 {
				a.execute("", "2DCZ "+text)
			}
		}
	}
}

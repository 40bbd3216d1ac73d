package pgproxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
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
	}
	if n := len(f.conns); n != 0 {
		t.Errorf("%d more server connections", n)
	}
}

func errorOf(code string) *pgwire.ErrorResponse {
	return &pgwire.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: "no"}
}

// TestRequestsOfAllSizes has requests wait for a server connection, and answers of all sizes come at once: both arrive whole.
func TestRequestsOfAllSizes(t *testing.T) {
	g, f := startFake(t, nil)
	holder, w := g.dial(t), g.dial(t)
	srv := (*wire)(nil)
	for _, size := range []int{0, 1, 100, 145, 146, 147, 148, 500, 507, 508, 10000, 16<<10 - 7, 16<<10 - 6, 16<<10 - 5, 40000} {
		holder.send(query("begin"))
		if srv == nil {
			srv = <-f.conns
		}
		srv.read()
		srv.send(&pgwire.CommandComplete{Tag: "BEGIN"}, &pgwire.ReadyForQuery{Status: pgwire.TxActive})
		holder.until(pgwire.TypeReadyForQuery)
		sql := strings.Repeat("x", size)
		w.send(query(sql))
		conntest.Eventually(t, "a client that waits", func() bool { return g.backend.Status().Endpoints[0].Pool.Waiting == 1 })
		holder.send(query("commit"))
		if got := srv.answerQuery(); got != "commit" {
			t.Fatalf("%d bytes: the server is asked %.20q", size, got)
		}
		holder.until(pgwire.TypeReadyForQuery)
		if typ, got := srv.read(); typ != pgwire.TypeQuery || got != sql+"\x00" {
			t.Fatalf("a request of %d bytes came as %d of type %c", size, len(got)-1, typ)
		}
		answer := rowsOf(1, sql)
		go func() { _, _ = srv.Write(answer) }()
		got := make([]byte, len(answer))
		if _, err := io.ReadFull(w.Conn, got); err != nil || !bytes.Equal(got, answer) {
			t.Fatalf("%d bytes: another answer (%v)", size, err)
		}
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
	if on, ok := c.(loopConn); ok {
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

// loopConn is a connection of an engine that has loops; the answer of a Query is written in a step there.
type loopConn interface {
	listener.Attendable
	onLoops
}

type explosiveLoopConn struct {
	loopConn
	l *explosive
}

func (c *explosiveLoopConn) TryWrite(p []byte) int {
	c.l.fire()
	return c.loopConn.TryWrite(p)
}

// TestPanicWithAnAnswer panics when an answer is to be passed on: that ends one session, its place in the pool is
// free, and the loop lives.
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
	w := login()
	w.send(query("select 1"))
	w.until(pgwire.TypeReadyForQuery)
	l.armed.Store(true)
	w.send(query("select 2"))
	if _, _, err := w.try(); !isEnd(err) {
		t.Errorf("the client is told %v", err)
	}
	other := login()
	other.send(query("select 3"))
	if types, _ := other.until(pgwire.TypeReadyForQuery); types != "TDCZ" {
		t.Errorf("the next client is told %q", types)
	}
	if log := g.log.String(); !strings.Contains(log, "session panicked") || !strings.Contains(log, "out of luck") {
		t.Errorf("the log says nothing of it:\n%s", log)
	}
}

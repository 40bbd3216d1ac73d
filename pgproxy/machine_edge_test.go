package pgproxy_test

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pgwire"
)

// TestClientThatDoesNotReadItsAnswers has the server's answer fill the client's Writer, and the gateway's own answer come behind it, until
// nothing more goes out. Nothing on the loop may wait for room: the session does, and the client gets everything once it reads.
func TestClientThatDoesNotReadItsAnswers(t *testing.T) {
	g, f := startFake(t, nil)
	w := g.dial(t)
	if tcp, ok := w.Conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(128 << 10) // with much less the kernel hardly makes progress
	}
	srv := preparedOnFake(t, w, f)
	const rounds = 600
	request := bytesOf(&pgwire.Bind{Statement: "s"}, &pgwire.Execute{}, &pgwire.Close{Object: pgwire.ObjectStatement, Name: "headpond_0"}, &pgwire.Sync{})
	empty := bytesOf(&pgwire.BindComplete{}, &pgwire.DataRow{Values: [][]byte{nil}}, done)
	value := make([]byte, 16<<10-len(empty)) // so that all before ReadyForQuery is as much as a Writer has room for
	answer := bytesOf(&pgwire.BindComplete{}, &pgwire.DataRow{Values: [][]byte{value}}, done, idle)
	served := make(chan struct{}, rounds)
	go func() {
		defer close(served)
		for range rounds {
			for typ := byte(0); typ != pgwire.TypeSync; {
				var err error
				if typ, _, err = srv.try(); err != nil {
					t.Errorf("the server's connection: %v", err)
					return
				}
			}
			if _, err := srv.Write(answer); err != nil {
				t.Errorf("the server's connection: %v", err)
				return
			}
			served <- struct{}{}
		}
	}()
	answers := make(chan int, 1)
	reads := false
	for range rounds {
		if _, err := w.Write(request); err != nil {
			t.Fatal(err)
		}
		if reads {
			<-served
			continue
		}
		select {
		case <-served:
		case <-time.After(time.Second): // nothing goes out any more
			reads = true
			go func() { answers <- w.countAnswers(rounds, "2DC3Z") }()
			<-served
		}
	}
	if !reads {
		t.Fatal("the client's buffers have room for everything: the test shows nothing")
	}
	if n := <-answers; n != rounds {
		t.Errorf("%d answers, want %d", n, rounds)
	}
	if strings.Contains(g.log.String(), "panicked") {
		t.Error("a session panicked")
	}
}

// countAnswers reads n answers of such types, and returns how many came.
func (w *wire) countAnswers(n int, want string) int {
	for i := range n {
		types := ""
		for !strings.HasSuffix(types, "Z") {
			typ, _, err := w.try()
			if err != nil {
				w.t.Errorf("after %d answers: %v", i, err)
				return i
			}
			types += string(rune(typ))
		}
		if types != want {
			w.t.Errorf("answer %d is %q, want %q", i, types, want)
		}
	}
	return n
}

// TestServerDiesWithinAMessage: a client in the middle of a long message loses its server, gets the error, and
// disconnects.
func TestServerDiesWithinAMessage(t *testing.T) {
	g, f := startFake(t, nil)
	w := g.dial(t)
	w.send(query("select 1"))
	srv := <-f.conns
	for srv.answerQuery() != "select 1" { //nolint:revive // before it, the settings
	}
	w.until(pgwire.TypeReadyForQuery)
	const size, part = 100_000, 40_000
	long := append(binary.BigEndian.AppendUint32([]byte{pgwire.TypeQuery}, size+4), make([]byte, part)...)
	if _, err := w.Write(long); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.r.Next(); err != nil {
		t.Fatal(err)
	}
	srv.send(&pgwire.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01", Message: "terminating connection"})
	_ = srv.Close()
	if enginetest.Kind() == fiber.Goroutine { // which waits for one side at a time
		_, _ = w.Write(make([]byte, size-part))
	}
	typ, body := w.read()
	if typ != pgwire.TypeErrorResponse || !strings.Contains(body, "57P01") {
		t.Errorf("got %c %q, want the server's error", typ, body)
	}
	for {
		typ, body, err := w.try()
		if err != nil {
			if !isEnd(err) && err != io.EOF {
				t.Error(err)
			}
			break
		}
		t.Errorf("got %c %q behind a FATAL error", typ, body)
	}
	conntest.Eventually(t, "a log line about the server connection", func() bool { return g.log.Line("server connection lost") != "" })
	if strings.Contains(g.log.String(), "panicked") {
		t.Error("a session panicked")
	}
}

package pgproxy_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// steady are requests that clients repeat, with a server's answers.
var steady = map[string]struct{ prepare, request, answer []byte }{
	"simple": {
		request: bytesOf(query("SELECT abalance FROM pgbench_accounts WHERE aid = 1;")),
		answer:  bytesOf(columns, row, done, idle),
	},
	"extended": {
		request: bytesOf(&pgwire.Parse{Query: "select abalance from pgbench_accounts where aid = $1"}, bind(""), &pgwire.Describe{Object: 'P'},
			&pgwire.Execute{}, &pgwire.Sync{}),
		answer: bytesOf(&pgwire.ParseComplete{}, &pgwire.BindComplete{}, columns, row, done, idle),
	},
	"prepared": {
		prepare: bytesOf(&pgwire.Parse{Name: "P_0", Query: "select abalance from pgbench_accounts where aid = $1"}, &pgwire.Sync{}),
		request: bytesOf(bind("P_0"), &pgwire.Describe{Object: 'P'}, &pgwire.Execute{}, &pgwire.Sync{}),
		answer:  bytesOf(&pgwire.BindComplete{}, columns, row, done, idle),
	},
}

var (
	columns = &pgwire.RowDescription{Fields: []pgwire.Field{{Name: "abalance", TypeOID: 23, TypeSize: 4}}}
	row     = &pgwire.DataRow{Values: [][]byte{[]byte("0")}}
	done    = &pgwire.CommandComplete{Tag: "SELECT 1"}
	idle    = &pgwire.ReadyForQuery{Status: pgwire.TxIdle}
)

func bind(name string) *pgwire.Bind {
	return &pgwire.Bind{Statement: name, Params: [][]byte{[]byte("12345")}}
}

// answerSteady plays a server without allocating: it answers requests that end with Query or Sync.
func answerSteady(conn net.Conn, answer []byte) {
	var buf [16 << 10]byte
	parsed := bytesOf(&pgwire.ParseComplete{}, idle)
	n := 0
	for {
		got, err := conn.Read(buf[n:])
		if err != nil {
			return
		}
		n += got
		at, bound := 0, false
		for n-at >= 5 {
			size := 1 + int(binary.BigEndian.Uint32(buf[at+1:]))
			if n-at < size {
				break
			}
			typ := buf[at]
			bound = bound || typ == pgwire.TypeBind
			if at += size; typ == pgwire.TypeQuery || typ == pgwire.TypeSync {
				say := answer
				if typ == pgwire.TypeSync && !bound {
					say = parsed
				}
				if _, err := conn.Write(say); err != nil {
					return
				}
			}
		}
		n = copy(buf[:], buf[at:n])
	}
}

// startSteady returns a function that makes one request through a proxy and reads the answer.
func startSteady(t testing.TB, kind string, mode pgproxy.Mode) (round func()) {
	t.Helper()
	g, f := startFake(t, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode, pc.Limits.MaxSize = mode, 1 })
	logged := make(chan *wire, 1)
	go func() { logged <- g.dial(t) }()
	srv := <-f.conns
	w := <-logged
	c := steady[kind]
	go answerSteady(srv.Conn, c.answer)
	if c.prepare != nil {
		_, _ = w.Write(c.prepare)
		w.until(pgwire.TypeReadyForQuery)
	}
	buf := make([]byte, len(c.answer))
	return func() {
		if _, err := w.Write(c.request); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w.Conn, buf); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkSteady is a transaction through the proxy to a server in this process that does
// nothing; allocations are the proxy's.
func BenchmarkSteady(b *testing.B) {
	for kind := range steady {
		b.Run(kind, func(b *testing.B) {
			round := startSteady(b, kind, pgproxy.Transaction)
			for range 10 {
				round()
			}
			b.ReportAllocs()
			for b.Loop() {
				round()
			}
		})
	}
}

// answerTransactions plays a server that answers each Query with an open transaction, but for COMMIT.
func answerTransactions(conn net.Conn) {
	open := bytesOf(columns, row, done, &pgwire.ReadyForQuery{Status: pgwire.TxActive})
	ended := bytesOf(&pgwire.CommandComplete{Tag: "COMMIT"}, idle)
	commit := bytesOf(query("commit"))
	buf := make([]byte, 1<<10)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		answer := open
		if bytes.Equal(buf[:n], commit) {
			answer = ended
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// startConversation returns a function that makes one transaction of three statements through a proxy, each of which waits for the
// answer to the one before.
func startConversation(t testing.TB) (round func()) {
	t.Helper()
	g, f := startFake(t, nil)
	logged := make(chan *wire, 1)
	go func() { logged <- g.dial(t) }()
	srv := <-f.conns
	w := <-logged
	go answerTransactions(srv.Conn)
	requests := [][]byte{bytesOf(query("begin")), bytesOf(query("select 1")), bytesOf(query("commit"))}
	buf := make([]byte, 1<<10)
	return func() {
		for _, request := range requests {
			if _, err := w.Write(request); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Conn.Read(buf); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// BenchmarkConversation is a transaction between whose statements the proxy waits for the client.
func BenchmarkConversation(b *testing.B) {
	round := startConversation(b)
	round()
	b.ReportAllocs()
	for b.Loop() {
		round()
	}
}

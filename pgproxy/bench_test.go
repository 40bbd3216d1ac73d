package pgproxy_test

import (
	"net"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// BenchmarkTransaction is a transaction of one statement through the proxy, the client being
// as small as a client can be; allocations are the proxy's.
func BenchmarkTransaction(b *testing.B) {
	db := pgtest.Shared(b)
	extended := (&pgwire.Parse{Query: "select 1"}).Append(nil)
	extended = (&pgwire.Bind{}).Append(extended)
	extended = (&pgwire.Execute{}).Append(extended)
	extended = (&pgwire.Sync{}).Append(extended)
	for name, request := range map[string][]byte{"simple": (&pgwire.Query{SQL: "select 1"}).Append(nil), "extended": extended} {
		b.Run(name, func(b *testing.B) {
			g := start(b, db, nil)
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			r := pgwire.NewReader(conn)
			ready := func() {
				for {
					h, err := r.Next()
					if err != nil {
						b.Fatal(err)
					}
					if h.Type == pgwire.TypeReadyForQuery {
						return
					}
				}
			}
			hello := pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "app"}}}
			if _, err := conn.Write(hello.Append(nil)); err != nil {
				b.Fatal(err)
			}
			ready()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := conn.Write(request); err != nil {
					b.Fatal(err)
				}
				ready()
			}
		})
	}
}

// BenchmarkMachine measures judging a request and its answer.
func BenchmarkMachine(b *testing.B) {
	for kind, c := range steady {
		b.Run(kind, func(b *testing.B) {
			statement := ""
			if c.prepare != nil {
				statement = "P_0"
			}
			round := pgproxy.Judge(statement, "select", c.request, c.answer)
			b.ReportAllocs()
			for b.Loop() {
				if !round() {
					b.Fatal("it did not go through")
				}
			}
		})
	}
}

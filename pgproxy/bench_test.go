package pgproxy_test

import (
	"fmt"
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
	b.Run("replays of two clients", func(b *testing.B) {
		turn := judgeTurns(b)
		b.ReportAllocs()
		for b.Loop() {
			turn()
		}
	})
}

// BenchmarkLogin is a client that logs in by SCRAM-SHA-256 and leaves. What the client allocates counts, too.
func BenchmarkLogin(b *testing.B) {
	verifier, err := pgwire.NewScramVerifier("secret", nil, 1) // cheap for the client, and the same for the proxy
	if err != nil {
		b.Fatal(err)
	}
	g := start(b, pgtest.Shared(b), func(cfg *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		cfg.Auth, cfg.Users = pgproxy.AuthSCRAM, pgproxy.Users{"app": verifier.String()}
	})
	hello := (&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "app"}}}).Append(nil)
	leave := (&pgwire.Terminate{}).Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		if err := login(g.addr, hello, leave); err != nil {
			b.Fatal(err)
		}
	}
}

// login logs in with the password "secret", and leaves.
func login(addr string, hello, leave []byte) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	r := pgwire.NewReader(conn)
	defer r.Release()
	exchange := pgwire.NewScramClient("secret")
	for {
		h, err := r.Next()
		if err != nil {
			return err
		}
		body, err := r.Body()
		if err != nil {
			return err
		}
		var answer []byte
		switch h.Type {
		case pgwire.TypeReadyForQuery:
			answer = leave
		case pgwire.TypeErrorResponse:
			return fmt.Errorf("the proxy says %q", body)
		case pgwire.TypeAuthentication:
			var m pgwire.Authentication
			if err := m.Decode(body); err != nil {
				return err
			}
			switch m.Kind {
			case pgwire.AuthSASL:
				mechanism, first, err := exchange.First(m.Mechanisms, nil)
				if err != nil {
					return err
				}
				answer = (&pgwire.SASLInitialResponse{Mechanism: mechanism, Data: first}).Append(nil)
			case pgwire.AuthSASLContinue:
				last, err := exchange.Continue(m.Data)
				if err != nil {
					return err
				}
				answer = (&pgwire.SASLResponse{Data: last}).Append(nil)
			}
		}
		if answer == nil {
			continue
		}
		if _, err := conn.Write(answer); err != nil || h.Type == pgwire.TypeReadyForQuery {
			return err
		}
	}
}

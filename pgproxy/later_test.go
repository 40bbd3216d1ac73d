package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestParseBesideBegin has one client take the only server connection, and keep it until another client's Parse, which came at the same time, has
// been answered, as a program with both clients on one thread does.
func TestParseBesideBegin(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	holder, w := g.dial(t), g.dial(t)
	other := g.dial(t) // whose statement keeps the text known
	other.send(&pgwire.Parse{Name: "kept", Query: "select 1"}, &pgwire.Sync{})
	other.until(pgwire.TypeReadyForQuery)
	for range 1000 {
		go holder.send(query("begin"))
		w.send(&pgwire.Parse{Name: "s", Query: "select 1"}, &pgwire.Sync{})
		if types, bodies := w.until(pgwire.TypeReadyForQuery); types != "1Z" {
			t.Fatalf("%s %q", types, bodies)
		}
		holder.until(pgwire.TypeReadyForQuery)
		holder.ask(query("commit"))
		w.send(&pgwire.Close{Object: pgwire.ObjectStatement, Name: "s"}, &pgwire.Sync{})
		w.until(pgwire.TypeReadyForQuery)
	}
}

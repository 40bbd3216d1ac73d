package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// In statement mode a transaction block ends the session, and is rolled back; everything else is as in transaction mode.
func TestStatementMode(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Mode, pc.Limits.MaxSize = pgproxy.Statement, 1
	})
	conn := g.connect(t, "")
	pid := one[int](t, conn, "select pg_backend_pid()")
	for name, c := range map[string]struct {
		messages []pgwire.Message
		errors   int // before the one about the block
	}{
		"simple":   {messages: []pgwire.Message{query("begin")}},
		"extended": {messages: []pgwire.Message{&pgwire.Parse{Query: "begin"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}}},
		"failed":   {messages: []pgwire.Message{query("begin; select 1/0")}, errors: 1},
		"in parts": {messages: []pgwire.Message{query("select repeat('x', 100000)"), query("begin")}},
	} {
		w := g.dial(t)
		w.send(c.messages...)
		for range c.errors {
			w.until(pgwire.TypeErrorResponse)
		}
		if _, bodies := w.until(pgwire.TypeErrorResponse); !has(bodies, "SFATAL\x00") || !has(bodies, "C0A000\x00Mtransaction blocks are not allowed in statement mode") {
			t.Errorf("%s: %q", name, bodies)
		}
		if typ, body, err := w.try(); err == nil {
			t.Errorf("%s: the client is told more: %c %q", name, typ, body)
		}
	}
	if _, err := conn.PgConn().Exec(t.Context(), "begin; select 1; commit").ReadAll(); err != nil {
		t.Errorf("a block within one Query: %v", err)
	}
	if now := one[int](t, conn, "select pg_backend_pid()"); now != pid {
		t.Error("the server connection was not kept")
	}
}

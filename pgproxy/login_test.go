package pgproxy_test

import (
	"log/slog"
	"net"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// Remembered logins are forgotten with their configuration, and clients with the same parameters are distinguished.
func TestSameLogin(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	a, b := g.dial(t), g.dial(t)
	if a.key.ProcessID == b.key.ProcessID || string(a.key.Key) == string(b.key.Key) {
		t.Errorf("two clients have the keys %v and %v", a.key, b.key)
	}
	err := g.Update(pgproxy.Config{
		Listener: listener.Config{Name: "db", Logger: slog.New(slog.NewTextHandler(g.log, nil))}, Auth: pgproxy.AuthTrust,
		Databases: map[string]pgproxy.Backend{"other": g.backend},
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	c := newWire(t, conn)
	c.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: "app"}}})
	if _, bodies := c.until(pgwire.TypeErrorResponse); !has(bodies, "3D000") {
		t.Errorf("a database that is not there any more: %q", bodies)
	}
	g.dial(t, pgwire.Param{Name: "database", Value: "other"})
}

// The allocator's sizes: one byte more would cost each idle client sixteen.
func TestClientSize(t *testing.T) {
	if pgproxy.ClientSize > 80 {
		t.Errorf("a Client takes %d bytes, want no more than 80", pgproxy.ClientSize)
	}
}

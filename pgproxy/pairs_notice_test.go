package pgproxy_test

import (
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestNoticesOfLogin: a client gets the server's notices about its own login in their place, if that opens a server connection. Others with
// the same server connection do not.
func TestNoticesOfLogin(t *testing.T) {
	db := startRoles(t, pgtest.Trust)
	db.Exec(t, "alter role ada set default_text_search_config = 'gone'")
	login := func(addr string) (types string) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(t, conn)
		w.send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "ada"}, {Name: "database", Value: "shop"}}})
		types, _ = w.until(pgwire.TypeReadyForQuery)
		_ = w.Close()
		return types
	}
	want := login(db.Addr())
	if strings.Count(want, "N") != 1 {
		t.Fatalf("directly: %s", want)
	}
	for _, mode := range []pgproxy.Mode{pgproxy.Session, pgproxy.Transaction} {
		g := startPairs(t, db, nil, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			c.Auth, c.Mode, pc.Limits.MaxSize = pgproxy.AuthTrust, mode, 1
		})
		if got := login(g.addr); got != want {
			t.Errorf("%s mode: %s, directly %s", mode, got, want)
		}
		if got := login(g.addr); got != strings.Replace(want, "N", "", 1) {
			t.Errorf("%s mode, the next client: %s", mode, got)
		}
	}
}

package pgproxy_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestClientGoneFromFrozenServer lets a client leave while the server works for it, and never answers again. Others get the place of its server
// connection.
func TestClientGoneFromFrozenServer(t *testing.T) {
	db := pgtest.Shared(t)
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { c.Mode, pc.Limits.MaxSize = mode, 1 })
		g.SetEndAfter(time.Second)
		conn := g.connect(t, "")
		raw := conn.PgConn().Conn()
		if _, err := raw.Write((&pgwire.Query{SQL: "select pg_sleep(600) as frozen"}).Append(nil)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, g, "as frozen")
		pid := one[int](t, db.Connect(t), "select pid from pg_stat_activity where query = 'select pg_sleep(600) as frozen' and state = 'active'")
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		_ = raw.Close()
		if n := one[int](t, g.connect(t, ""), "select 1"); n != 1 {
			t.Error(n)
		}
		_ = syscall.Kill(pid, syscall.SIGCONT)
		observer := db.Connect(t)
		conntest.Eventually(t, "the server process has ended", func() bool { // else the next round may freeze it instead of its own
			return one[int](t, observer, "select count(*) from pg_stat_activity where pid = $1", pid) == 0
		})
	}
}

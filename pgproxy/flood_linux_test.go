package pgproxy_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
)

// TestGoneBeforeAccept: clients that leave while they wait to be accepted get no session; the next one logs in.
func TestGoneBeforeAccept(t *testing.T) {
	var room listener.Room
	room.Resize(1)
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Listener.Room = &room })
	first := conntest.Dial(t, g.addr)
	conntest.Eventually(t, "the first is accepted", func() bool { return g.Stats().Accepted == 1 })
	const n = 60
	for i := range n {
		c := conntest.Dial(t, g.addr)
		if i%2 == 0 {
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
	conntest.Eventually(t, "the ends of the clients", func() bool { return conntest.Established(t, g.addr) == 1 })
	room.Resize(0)
	_ = first.Close()
	c, err := pgx.Connect(t.Context(), g.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	var one int
	if err := c.QueryRow(t.Context(), "select 1").Scan(&one); err != nil || one != 1 {
		t.Errorf("a client behind those that have gone gets %d, %v", one, err)
	}
	_ = c.Close(t.Context())
	if st := g.Stats(); st.Gone != n || st.Rejected != 0 {
		t.Errorf("%d are gone, errors %v; want %d", st.Gone, st.Errors, n)
	}
}

package pgproxy_test

import (
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

func TestPsql(t *testing.T) {
	db := pgtest.Shared(t)
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		t.Run(mode.String(), func(t *testing.T) {
			g := start(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Mode = mode })
			out, err := g.run(t, db, "psql", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", "select 40+2", "-c", `\d`,
				"-c", "select count(*) from generate_series(1,100000)", "-c", "begin", "-c", "select 7", "-c", "rollback",
				"-c", `\copy (select generate_series(1,5)) to stdout`)
			if err != nil || !has(out, "42\n") || !has(out, "100000") || !has(out, "1\n2\n3\n4\n5\n") {
				t.Fatalf("psql: %v\n%s", err, out)
			}
		})
	}
}

func TestPgbench(t *testing.T) {
	db := pgtest.Start(t)
	setup := start(t, db, nil)
	if out, err := setup.run(t, db, "pgbench", "-i", "-q", "-s", "1"); err != nil {
		t.Fatalf("pgbench -i: %v\n%s", err, out)
	}
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		for _, protocol := range []string{"simple", "extended", "prepared"} {
			t.Run(mode.String()+"/"+protocol, func(t *testing.T) {
				clients := "16"
				g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
					c.Mode = mode
					if mode == pgproxy.Session {
						clients, pc.Limits.MaxSize = "4", 4
					}
				})
				for _, script := range []string{"select-only", "tpcb-like"} {
					// Each client has a thread of pgbench: a thread blocks while it prepares the statements of one client. If
					// its other clients had all of the server connections then, in transactions, it would wait in vain.
					out, err := g.run(t, db, "pgbench", "-n", "-M", protocol, "-b", script, "-c", clients, "-j", clients, "-t", "10")
					if err != nil || !has(out, "number of failed transactions: 0 ") {
						t.Errorf("pgbench -b %s: %v\n%s", script, err, out)
					}
				}
				if err := g.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				if s := g.backend.Status().Endpoints[0].Pool; s.InUse != 0 || s.Discarded > 0 {
					t.Errorf("pool after pgbench: %+v", s)
				}
			})
		}
	}
}

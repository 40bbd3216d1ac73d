package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// TestManyClientsOnFewConnections: 500 pgbench clients share 10 server connections. The server
// itself accepts only 40.
func TestManyClientsOnFewConnections(t *testing.T) {
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithSetting("max_connections", "40"))
	db := newDatabase(t, server, "crowd")
	db.pgbenchInit(t)
	listen := address(t)
	g := startGateway(t, db.pgConfig(t, listen, "transaction", "max_size: 10, acquire_timeout: 1m"), plain)
	before := g.footprint()
	for mode, clients := range map[string]int{"simple": 500, "extended": 150, "prepared": 150} { // each login takes milliseconds for SCRAM
		out, code := run(t, 5*time.Minute, program(t, "pgbench"),
			"-n", "-S", "-M", mode, "-c", strconv.Itoa(clients), "-j", "2", "-t", "8", db.dsn(listen))
		if code != 0 || !strings.Contains(out, fmt.Sprintf("processed: %d/%[1]d", 8*clients)) || strings.Contains(out, "error") {
			t.Errorf("%s: exit code %d\n%s", mode, code, out)
		}
	}
	m := g.scrape()
	if opened := m.sum("headpond_pool_opened_total"); opened > 10 {
		t.Errorf("%v server connections were opened, want at most 10", opened)
	}
	if n := server.Backends(t); n > 10 {
		t.Errorf("%d server connections are open", n)
	}
	g.awaitFootprint(before)
}

// TestTPCBThroughThePool runs pgbench's own transactions, which write and conflict.
func TestTPCBThroughThePool(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t), "tpcb")
	db.pgbenchInit(t)
	listen := address(t)
	startGateway(t, db.pgConfig(t, listen, "transaction", "max_size: 5, acquire_timeout: 2m"))
	const clients, each = 30, 20
	out, code := run(t, 5*time.Minute, program(t, "pgbench"),
		"-n", "-c", strconv.Itoa(clients), "-t", strconv.Itoa(each), db.dsn(listen))
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	// The sums of what the transactions wrote must agree. Read them directly from the server.
	got, code := psql(t, db.server.DSN(db.user, db.password, db.name),
		"select (select count(*) from pgbench_history), (select sum(tbalance) from pgbench_tellers) = (select sum(abalance) from pgbench_accounts)")
	if want := strconv.Itoa(clients*each) + "|t"; code != 0 || got != want {
		t.Errorf("after the run: %q, want %q", got, want)
	}
}

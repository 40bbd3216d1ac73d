package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// startTarget runs a proxy for a target before some servers.
func startTarget(t testing.TB, target upstream.Target, change func(*pgproxy.Config, *pgproxy.PostgresConfig), servers ...*pgtest.Cluster) *gateway {
	t.Helper()
	return start(t, servers[0], func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Target, pc.Endpoints, pc.Limits.AcquireTimeout = target, nil, time.Minute
		for _, s := range servers {
			pc.Endpoints = append(pc.Endpoints, upstream.Endpoint{Address: s.Addr()})
		}
		if change != nil {
			change(c, pc)
		}
	})
}

const isStandby = "select pg_is_in_recovery()"

// awaitWaiting returns once n clients wait for a server connection.
func (g *gateway) awaitWaiting(t *testing.T, n int) {
	t.Helper()
	conntest.Eventually(t, fmt.Sprintf("%d clients wait", n), func() bool {
		waiting := 0
		for _, s := range g.Sessions() {
			if s.State == listener.StateWaiting {
				waiting++
			}
		}
		return waiting == n
	})
}

// awaitRole returns once the upstream knows the role of a server.
func (g *gateway) awaitRole(t *testing.T, server *pgtest.Cluster, role upstream.Role) {
	t.Helper()
	conntest.Eventually(t, fmt.Sprintf("%s is %s", server.Addr(), role), func() bool {
		return slices.ContainsFunc(g.backend.Status().Endpoints, func(e upstream.EndpointStatus) bool {
			return e.Address == server.Addr() && e.Role == role
		})
	})
}

// TestTargets has clients of each target get the right one of a primary and its standby, from the first statement on,
// also after the two have changed places, and then lose the new primary.
func TestTargets(t *testing.T) {
	a := pgtest.Start(t, pgtest.WithStandbys())
	a.Exec(t, "create table written (n int)")
	b := a.Standby(t)
	for target, standby := range map[upstream.Target]bool{
		upstream.TargetPrimary: false, upstream.TargetStandby: true, upstream.TargetPreferStandby: true, upstream.TargetReadWrite: false, upstream.TargetReadOnly: true,
	} {
		t.Run(target.String(), func(t *testing.T) {
			g := startTarget(t, target, nil, a, b)
			if is := one[bool](t, g.connect(t, ""), isStandby); is != standby {
				t.Errorf("on a standby: %v", is)
			}
		})
	}
	writes, reads := startTarget(t, upstream.TargetPrimary, nil, a, b), startTarget(t, upstream.TargetPreferStandby, nil, a, b)
	pairs := startTarget(t, upstream.TargetReadWrite, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.LoginAs, pc.DBName = pgproxy.AsClient, "" }, a, b)
	t.Run("listen", func(t *testing.T) { listensAtPrimary(t, writes) })
	t.Run("replication", func(t *testing.T) { replicatesFromPrimary(t, a, b) })
	t.Run("switchover", func(t *testing.T) { switchover(t, a, b, writes, reads, pairs) })
	t.Run("promotion", func(t *testing.T) { promotionServesWaiters(t, b, a, writes, reads, pairs) })
}

// listensAtPrimary has a client listen: only one endpoint has the role, so that it needs no server connection for it.
func listensAtPrimary(t *testing.T, g *gateway) {
	w := g.dial(t, pgwire.Param{Name: "application_name", Value: "hears"})
	if types, _ := w.ask(query("listen c")); types != "CZ" {
		t.Fatal(types)
	}
	g.awaitParked(t, "hears")
	do(t, g.connect(t, ""), "notify c, 'x'")
	if got := heardUpTo(t, w, "x"); len(got) != 1 {
		t.Error(got)
	}
	_ = w.Close()
}

func replicatesFromPrimary(t *testing.T, servers ...*pgtest.Cluster) {
	g := startTarget(t, upstream.TargetStandby, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.ReplicationUsers = []string{"app"} }, servers...)
	cfg, err := pgconn.ParseConfig(g.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Exec(t.Context(), isStandby).ReadAll()
	if err != nil || len(rows) != 1 || string(rows[0].Rows[0][0]) != "t" {
		t.Errorf("%v, %v", rows, err)
	}
	_ = conn.Close(t.Context())
}

// switchover makes the primary a standby and the standby a primary, in a pause: no client notices.
func switchover(t *testing.T, a, b *pgtest.Cluster, writes, reads, pairs *gateway) {
	w, r := writes.connect(t, ""), reads.connect(t, "")
	p := pairs.login(t, "postgres", "", "postgres")
	for _, conn := range []*pgx.Conn{w, p} {
		do(t, conn, "insert into written values (1)")
	}
	if !one[bool](t, r, isStandby) {
		t.Error("reads are at the primary")
	}
	gateways := []*gateway{writes, reads, pairs}
	for _, g := range gateways {
		if err := g.backend.Pause(time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 3)
	for _, conn := range []*pgx.Conn{w, p, r} {
		go func() {
			sql := "insert into written values (2)"
			if conn == r {
				sql = "select 1/pg_is_in_recovery()::int"
			}
			_, err := conn.Exec(context.Background(), sql)
			done <- err
		}()
	}
	for _, g := range gateways {
		g.awaitWaiting(t, 1)
	}
	a.Stop(t)
	b.Promote(t)
	a.Follow(t, b)
	for _, g := range gateways {
		g.backend.Resume()
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// promotionServesWaiters kills the primary. Clients that come then wait for the promotion, and only readers are served
// before it.
func promotionServesWaiters(t *testing.T, a, b *pgtest.Cluster, writes, reads, pairs *gateway) {
	w, r, p := writes.connect(t, ""), reads.connect(t, ""), pairs.login(t, "postgres", "", "postgres")
	for _, conn := range []*pgx.Conn{w, p} {
		do(t, conn, "insert into written values (3)")
	}
	short := startTarget(t, upstream.TargetPrimary, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.AcquireTimeout = 10 * time.Millisecond }, a, b)
	short.awaitRole(t, a, upstream.Primary)
	short.awaitRole(t, b, upstream.Standby)
	a.Kill(t)
	writes.awaitRole(t, a, upstream.UnknownRole)
	short.awaitRole(t, a, upstream.UnknownRole)
	done := make(chan error, 4)
	later := writes.connect(t, "")
	for _, conn := range []*pgx.Conn{w, p, later} {
		go func() {
			_, err := conn.Exec(context.Background(), "insert into written values (4)")
			done <- err
		}()
	}
	writes.awaitWaiting(t, 2)
	pairs.awaitWaiting(t, 1)
	if !one[bool](t, r, isStandby) {
		t.Error("the standby is a primary already")
	}
	_, err := pgx.Connect(t.Context(), short.dsn(""))
	if sqlstate(err) != "08006" || !has(err.Error(), "no server is a primary (of 2: 1 standby, 1 not answering)") || has(err.Error(), a.Addr()) {
		t.Errorf("a client that waited in vain: %v", err)
	}
	if log := short.log.String(); !has(log, b.Addr()+" is a standby") || !has(log, a.Addr()+" does not report its role") {
		t.Error("the log does not say which server has which role")
	}
	b.Promote(t)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	reads.awaitRole(t, b, upstream.Primary)
	if n := one[int](t, r, "select count(*) from written where n = 4"); n != 3 {
		t.Errorf("%d rows", n)
	}
	for _, e := range writes.backend.Status().Endpoints {
		if e.Address == b.Addr() && (e.Failures > 0 || e.Ejected) {
			t.Errorf("a standby counts as failed: %+v", e)
		}
	}
}

// TestRoleWaitersAreWaiters has as many clients wait for a standby as may wait: another one is refused at once. A client
// that leaves makes room long before its wait would have ended.
func TestRoleWaitersAreWaiters(t *testing.T) {
	g := startTarget(t, upstream.TargetStandby, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxWaiters, pc.Limits.AcquireTimeout = 1, time.Hour
	}, pgtest.Shared(t))
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := pgx.Connect(ctx, g.dsn(""))
		ended <- err
	}()
	g.awaitWaitersAhead(t, 1)
	if _, err := pgx.Connect(t.Context(), g.dsn("")); sqlstate(err) != "53300" || !has(err.Error(), "too many clients wait for a server connection") {
		t.Error(err)
	}
	leave()
	if err := <-ended; err == nil {
		t.Error("there is a standby")
	}
	g.awaitWaitersAhead(t, 0)
}

// TestDrainEndsWaits: a client that waits for a role, or for a server connection of a full pool, waits no longer than a drain does, and gets the
// reason.
func TestDrainEndsWaits(t *testing.T) {
	ask := func(g *gateway) error {
		conn, err := pgx.Connect(t.Context(), g.dsn(""))
		if err == nil {
			defer conn.Close(context.Background())
			_, err = conn.Exec(t.Context(), "select 1")
		}
		return err
	}
	full := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize, pc.Limits.AcquireTimeout = 1, time.Hour
	})
	do(t, full.connect(t, ""), "begin")
	noStandby := startTarget(t, upstream.TargetStandby, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.AcquireTimeout = time.Hour }, pgtest.Shared(t))
	for what, g := range map[string]*gateway{"a full pool": full, "a role": noStandby} {
		ended := make(chan error, 1)
		go func() { ended <- ask(g) }()
		g.awaitWaiting(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Drain(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the drain: %v", what, err)
		}
		if err := <-ended; sqlstate(err) != "57P01" {
			t.Errorf("%s: the client heard %v", what, err)
		}
		if g.log.Line("session ended", "cut off") == "" {
			t.Errorf("%s: nothing in the log", what)
		}
	}
}

// TestRefusedLogin has clients that need a primary get the error of servers that refuse the gateway's own login, at once, and
// go on when they do not refuse it any more.
func TestRefusedLogin(t *testing.T) {
	db := pgtest.Start(t)
	g := startTarget(t, upstream.TargetPrimary, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.User, pc.Password, pc.Limits.AcquireTimeout = "late_role", "late", time.Hour
	}, db)
	_, err := pgx.Connect(t.Context(), g.dsn(""))
	if err == nil || !has(err.Error(), "late_role") || has(err.Error(), "no server is") {
		t.Errorf("%v, want the server's own error", err)
	}
	db.CreateUser(t, "late_role", "late")
	conntest.Eventually(t, "a client gets in", func() bool {
		conn, err := pgx.Connect(t.Context(), g.dsn(""))
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err == nil
	})
}

// TestFullServers: clients that need a primary wait while the servers have no connection left for the gateway.
func TestFullServers(t *testing.T) {
	db := pgtest.Start(t)
	db.CreateUser(t, "full_role", "full")
	admin := db.Connect(t)
	do(t, admin, "alter role full_role connection limit 0")
	g := startTarget(t, upstream.TargetPrimary, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.User, pc.Password, pc.Limits.AcquireTimeout = "full_role", "full", time.Hour
	}, db)
	conntest.Eventually(t, "the server refuses the gateway", func() bool { return has(g.backend.Status().Endpoints[0].LastError, "full_role") })
	done := make(chan error, 1)
	go func() {
		conn, err := pgx.Connect(context.Background(), g.dsn(""))
		if err == nil {
			err = conn.Close(context.Background())
		}
		done <- err
	}()
	g.awaitWaiting(t, 1)
	do(t, admin, "alter role full_role connection limit -1")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFrozenPrimary has the primary's machine hang, and the standby be promoted: clients that wait at the old primary
// go on at the new one, and health checks end the statement that runs there.
func TestFrozenPrimary(t *testing.T) {
	t.Parallel()
	a := pgtest.Start(t, pgtest.WithStandbys())
	b := a.Standby(t)
	g := startTarget(t, upstream.TargetPrimary, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Limits.MaxSize = 1
		pc.Health = upstream.Health{Probe: pgproxy.Probe(*pc), Interval: 100 * time.Millisecond, OnUnhealthy: upstream.CloseUnhealthy}
	}, a, b)
	errs := make(chan error, 1)
	runs := g.connect(t, "")
	do(t, runs, "select 1")
	go func() {
		_, err := runs.Exec(context.Background(), "select pg_sleep(3600)")
		errs <- err
	}()
	sleeps(t, a.Connect(t), 3600)
	waits := g.connect(t, "")
	standby := make(chan bool, 1)
	go func() { standby <- one[bool](t, waits, isStandby) }()
	g.awaitWaiting(t, 1)
	a.Freeze(t)
	b.Promote(t)
	if <-standby {
		t.Error("served by a standby")
	}
	if err := <-errs; sqlstate(err) != "57P01" && sqlstate(err) != "08006" {
		t.Errorf("the statement that ran: %v", err)
	}
	a.Thaw(t)
}

// TestRoleBeforePostgreSQL14 has a server that does not report in_hot_standby: the gateway asks for it at each login.
func TestRoleBeforePostgreSQL14(t *testing.T) {
	role := func(w *wire, standby, readOnly string) {
		t.Helper()
		if typ, body := w.read(); typ != pgwire.TypeQuery || !strings.Contains(body, "pg_is_in_recovery") {
			t.Fatalf("%c %q", typ, body)
		}
		w.send(&pgwire.DataRow{Values: [][]byte{[]byte(standby), []byte(readOnly)}}, done, idle)
	}
	g, f := startFake(t, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Target = upstream.TargetPrimary })
	role(<-f.conns, "f", "off")
	login := make(chan *wire)
	go func() { login <- g.dial(t) }()
	role(<-f.conns, "t", "on") // the login says that it is a standby by now
	role(<-f.conns, "f", "off")
	srv := <-f.conns
	role(srv, "f", "off")
	w := <-login
	w.send(query("insert into t values (1)"))
	srv.answerQuery()
	if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" {
		t.Error(types)
	}
}

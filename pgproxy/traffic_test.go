package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
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
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// counted returns a snapshot's counters and histograms, by name, labels and class, without zeros. The seconds of users
// and the waits are left out: how many transactions of a pipeline share a server connection is a matter of time.
func counted(s traffic.Snapshot) map[string]float64 {
	out := map[string]float64{}
	for _, v := range s.Views {
		for _, row := range s.Of(v) {
			at := strings.TrimRight(" "+strings.Join(row.Labels, "/"), " ")
			for _, c := range v.Counters {
				if n := c.Read(&row); n > 0 && !strings.Contains(c.Name, "seconds") {
					out[strings.TrimPrefix(c.Name, "postgres_")+at+strings.TrimRight(" "+c.Value, " ")] = n
				}
			}
			for _, t := range v.Histograms {
				if h := t.Read(&row); h.Count() > 0 && t.Name != "postgres_wait_seconds" {
					out[strings.TrimPrefix(t.Name, "postgres_")+at] = float64(h.Count())
				}
			}
		}
	}
	return out
}

// wantTraffic waits until exactly these things have been counted.
func (g *gateway) wantTraffic(t *testing.T, want map[string]float64) {
	t.Helper()
	until := time.Now().Add(conntest.Patience)
	for got := counted(g.Stats().Traffic[0]); !maps.Equal(got, want); got = counted(g.Stats().Traffic[0]) {
		if time.Now().After(until) {
			t.Fatalf("counted\n%v, want\n%v", got, want)
		}
		runtime.Gosched()
	}
}

// of is the traffic of a client of user and database app.
func of(transactions, requests, queries float64, errors map[string]float64) map[string]float64 {
	out := map[string]float64{
		"transactions_total pg": transactions, "queries_total pg": queries, "request_seconds pg": requests,
		"transaction_seconds pg":             transactions,
		"user_transactions_total pg/app/app": transactions, "user_queries_total pg/app/app": queries,
	}
	for class, n := range errors {
		out["errors_total pg "+class] = n
		out["user_errors_total pg/app/app"] += n
		if class == "53" { // the classes "22" and "42" are the client's own
			out["failures_total pg"] += n
		}
	}
	return out
}

// TestTraffic counts transactions, requests and queries of all kinds, in both modes, on the fast path and off it.
func TestTraffic(t *testing.T) {
	db := pgtest.Shared(t)
	for name, mode := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		t.Run(name, func(t *testing.T) {
			g := start(t, db, mode)
			c := g.connect(t, "default_query_exec_mode=simple_protocol")
			for range 5 {
				do(t, c, "select 1")
			}
			want := of(5, 5, 5, nil)
			g.wantTraffic(t, want)
			for _, sql := range []string{"begin", "select 1", "select 2; select 3", "commit"} {
				do(t, c, sql)
			}
			g.wantTraffic(t, of(6, 9, 9, nil))
			for _, sql := range []string{"select nonsense", "select 1/0"} {
				if _, err := c.Exec(t.Context(), sql); err == nil {
					t.Fatal("no error")
				}
			}
			g.wantTraffic(t, of(8, 11, 11, map[string]float64{"42": 1, "22": 1}))
		})
	}
}

// failuresOf returns what a listener has counted as failures.
func failuresOf(g *gateway) (n float64) {
	all := g.Stats().Traffic[0]
	for i := range all.Rows {
		n += all.Summary.Failed(&all.Rows[i])
	}
	return n
}

// TestFailuresAreOfTheServer: what clients cancel or ask for wrongly, and sessions that an operator ends, are errors and no
// failures. A server that ends its connections is one.
func TestFailuresAreOfTheServer(t *testing.T) {
	db := pgtest.Shared(t)
	g := start(t, db, transaction)
	failed := func() float64 { return failuresOf(g) }
	errs := func() float64 {
		n := 0.0
		for name, value := range counted(g.Stats().Traffic[0]) {
			if strings.HasPrefix(name, "errors_total") {
				n += value
			}
		}
		return n
	}
	c := g.connect(t, "default_query_exec_mode=simple_protocol")
	for _, sql := range []string{"select nonsense", "set statement_timeout = 1; select pg_sleep(60)"} {
		if _, err := c.Exec(t.Context(), sql); err == nil {
			t.Fatal("no error")
		}
	}
	for _, s := range g.Sessions() {
		if id, stream, ok := listener.ParseID(s.ID); !ok || !g.Kill(id, stream) {
			t.Fatal("the session cannot be ended")
		}
	}
	conntest.Eventually(t, "errors are counted", func() bool {
		return errs() == 3 && g.Stats().Errors[listener.ReasonKilled] == 1 && g.Stats().Active == 0
	})
	if n := failed(); n != 0 {
		t.Errorf("%v failures; want none", n)
	}
	other := g.connect(t, "default_query_exec_mode=simple_protocol")
	if _, err := other.Exec(t.Context(), "select pg_terminate_backend(pg_backend_pid())"); err == nil {
		t.Fatal("the server connection has not ended")
	}
	conntest.Eventually(t, "a failure is counted", func() bool { return failed() == 1 })
}

// TestTrafficOfExtendedQueries counts prepared statements and a pipeline of them, an error in it, and COPY.
func TestTrafficOfExtendedQueries(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	c := g.connect(t, "default_query_exec_mode=exec")
	for range 3 {
		do(t, c, "select $1::int", 1)
	}
	g.wantTraffic(t, of(3, 3, 3, nil))
	batch := &pgx.Batch{}
	for range 4 {
		batch.Queue("select $1::int", 1)
	}
	if err := c.SendBatch(t.Context(), batch).Close(); err != nil { // one Sync
		t.Fatal(err)
	}
	g.wantTraffic(t, of(4, 4, 7, nil))
	p := c.PgConn().StartPipeline(t.Context())
	for _, sql := range []string{"select 1", "select 1/0", "select 3"} { // three
		p.SendQueryParams(sql, nil, nil, nil, nil)
		if err := p.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	for {
		r, err := p.GetResults()
		if r == nil && err == nil {
			break
		}
		if reader, ok := r.(*pgconn.ResultReader); ok {
			_ = reader.Read()
		}
	}
	_ = p.Close()
	g.wantTraffic(t, of(7, 7, 10, map[string]float64{"22": 1}))
	if _, err := c.PgConn().CopyTo(t.Context(), &strings.Builder{}, "copy (select 1) to stdout"); err != nil {
		t.Fatal(err)
	}
	g.wantTraffic(t, of(8, 8, 11, map[string]float64{"22": 1}))
}

// TestTrafficOfWaits makes a client wait for the only server connection, which its histogram shows, and another give
// up.
func TestTrafficOfWaits(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, c *pgproxy.PostgresConfig) {
		c.Limits.MaxSize = 1
	})
	holder, waiter := g.connect(t, ""), g.connect(t, "")
	do(t, holder, "begin")
	g.setAcquireTimeout(t, 200*time.Millisecond)
	_, err := waiter.Exec(t.Context(), "select 1")
	if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "53300" {
		t.Fatalf("no server connection: %v", err)
	}
	g.setAcquireTimeout(t, conntest.Patience)
	done := make(chan error, 1)
	go func() { _, err := waiter.Exec(context.Background(), "select 1"); done <- err }()
	for g.backend.Status().Endpoints[0].Pool.Waiting == 0 {
		runtime.Gosched()
	}
	do(t, holder, "commit")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	g.wantTraffic(t, of(2, 3, 3, map[string]float64{"53": 1}))
	s := g.Stats().Traffic[0]
	for _, row := range s.Of(s.Views[0]) {
		h := s.Views[0].Histograms[2].Read(&row)
		if h.Quantile(0) > time.Second || h.Sum <= 0 {
			t.Errorf("waits %v in all, at least %v", h.Sum, h.Quantile(0))
		}
	}
}

// setAcquireTimeout has those wait for so long for the backend's only connection who come from now on.
func (g *gateway) setAcquireTimeout(t *testing.T, limit time.Duration) {
	t.Helper()
	s := g.backend.Status()
	err := g.backend.Update(upstream.Settings{
		Endpoints: upstream.Endpoints(s.Endpoints[0].Address), Limits: pool.Limits{MaxSize: 1, AcquireTimeout: limit},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// waits is the histogram of waits.
func (g *gateway) waits(t *testing.T) traffic.Histogram {
	t.Helper()
	s := g.Stats().Traffic[0]
	rows := s.Of(s.Views[0])
	if len(rows) != 1 {
		t.Fatalf("%d upstreams", len(rows))
	}
	return s.Views[0].Histograms[2].Read(&rows[0])
}

// TestWaitsNeverDecrease: Prometheus takes a decrease for a restarted counter. Waiting transactions that do not end
// must not cause one. Acquires without a wait are counted, too, once each.
func TestWaitsNeverDecrease(t *testing.T) {
	for name, mode := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		t.Run(name, func(t *testing.T) {
			g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) { mode(c, pc); pc.Limits.MaxSize = 1 })
			c := g.connect(t, "default_query_exec_mode=simple_protocol application_name=c")
			for range 5 {
				do(t, c, "select 1")
			}
			do(t, c, "begin")
			before, asked := g.waits(t), uint64(6)
			if name == "session" {
				asked = 1
			}
			if n := before.Count(); n != asked {
				t.Errorf("%d waits, want %d", n, asked)
			}
			holder := "c"
			for _, next := range []string{"d", "e"} {
				begun := make(chan error, 1)
				go func() {
					w, err := pgx.Connect(context.Background(), g.dsn("default_query_exec_mode=simple_protocol application_name="+next))
					if err == nil {
						t.Cleanup(func() { _ = w.Close(context.Background()) })
						_, err = w.Exec(context.Background(), "begin")
					}
					begun <- err
				}()
				g.session(t, next, listener.StateWaiting)
				g.kill(t, g.session(t, holder, listener.StateInTransaction))
				if err := <-begun; err != nil {
					t.Fatal(err)
				}
				holder, asked = next, asked+1
				after := g.waits(t)
				for i, n := range after.Counts {
					if n < before.Counts[i] {
						t.Errorf("bucket %d: %d after %d", i, n, before.Counts[i])
					}
				}
				if n := after.Count(); n != asked {
					t.Errorf("%d waits, want %d", n, asked)
				}
				before = after
			}
			g.kill(t, g.session(t, holder, listener.StateInTransaction))
		})
	}
}

// TestTrafficOfEndpoints sees requests and errors of the server, not those of the gateway.
func TestTrafficOfEndpoints(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	c := g.connect(t, "default_query_exec_mode=simple_protocol")
	do(t, c, "select 1")
	_, _ = c.Exec(t.Context(), "select 1/0")
	status := g.backend.Status()
	got := counted(traffic.Snapshot{Schema: status.Traffic, Rows: []traffic.Row{status.Endpoints[0].Traffic}})
	if got["upstream_request_seconds"] < 2 || got["upstream_errors_total 22"] != 1 {
		t.Errorf("counted %v", got)
	}
}

// TestUsersAreBounded logs in for more databases than are counted by name, with names that are no UTF-8.
func TestUsersAreBounded(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	for i := range 110 {
		w := g.dial(t, pgwire.Param{Name: "database", Value: fmt.Sprintf("d%d\xff", i)})
		_ = w.Close()
	}
	s := g.Stats().Traffic[0]
	rows := s.Of(s.Views[1])
	if len(rows) != 100 {
		t.Errorf("%d users and other", len(rows))
	}
}

package pgproxy_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
)

// sum adds up the usage of all clients.
func sum(list []pgproxy.Usage) (all pgproxy.Usage) {
	for _, u := range list {
		all.Leases, all.Transactions, all.Queries = all.Leases+u.Leases, all.Transactions+u.Transactions, all.Queries+u.Queries
		all.BytesIn, all.BytesOut = all.BytesIn+u.BytesIn, all.BytesOut+u.BytesOut
		all.TransactionTime, all.QueryTime, all.WaitTime = all.TransactionTime+u.TransactionTime, all.QueryTime+u.QueryTime, all.WaitTime+u.WaitTime
	}
	return all
}

// TestUsageOfDatabases: each byte and query of each client is counted once, with TLS too, and stays counted.
func TestUsageOfDatabases(t *testing.T) {
	server, _ := certs.New().Configs()
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS = server })
	plain, encrypted := g.connect(t, ""), g.connect(t, "sslmode=require dbname=other")
	for range 3 {
		one[int](t, plain, "select 1")
	}
	one[int](t, encrypted, "select 1")
	conntest.Eventually(t, "all bytes are counted", func() bool {
		stats, all := g.Stats(), sum(g.Usage())
		return stats.BytesIn == all.BytesIn && stats.BytesOut == all.BytesOut && all.BytesIn > 0
	})
	list := g.Usage()
	if len(list) != 2 || list[0].Database != "app" || list[1].Database != "other" || list[0].User != "app" || list[0].Upstream != "pg" {
		t.Fatalf("%+v", list)
	}
	if list[0].Transactions < 3 || list[1].Transactions == 0 || list[1].BytesIn == 0 || list[1].BytesOut == 0 || list[0].QueryTime <= 0 {
		t.Errorf("%+v", list)
	}
	_, _ = plain.Close(context.Background()), encrypted.Close(context.Background())
	conntest.Eventually(t, "the clients have left", func() bool { return g.Stats().Active == 0 })
	for i, after := range g.Usage() {
		if was := list[i]; after.BytesIn < was.BytesIn || after.BytesOut < was.BytesOut || after.Queries != was.Queries || after.Database != was.Database {
			t.Errorf("%+v\nbefore the client has left: %+v", after, was)
		}
	}
}

// TestUsageNeverDecreases reads the usage while clients come and go: a counter that drops looks like a restart.
func TestUsageNeverDecreases(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	var clients sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			for range 25 {
				conn, err := pgx.Connect(context.Background(), g.dsn(""))
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close(context.Background())
			}
		})
	}
	go func() { clients.Wait(); close(done) }()
	var last pgproxy.Usage
	for reads := 0; ; reads++ {
		now := sum(g.Usage())
		if now.BytesIn < last.BytesIn || now.BytesOut < last.BytesOut || now.Queries < last.Queries {
			t.Fatalf("read %d: %+v after %+v", reads, now, last)
		}
		last = now
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestRecentUsage: the average is of about a minute, and from the start before that.
func TestRecentUsage(t *testing.T) {
	begin := time.Unix(1000, 0)
	h := pgproxy.NewHistory(begin)
	for second := range 300 {
		now := begin.Add(time.Duration(second) * time.Second)
		h.Tick(now, []pgproxy.Usage{{Queries: uint64(second)}})
		list, ago := h.Oldest(now)
		was := uint64(0)
		if len(list) > 0 {
			was = list[0].Queries
		}
		if want := time.Duration(uint64(second)-was) * time.Second; ago != want {
			t.Fatalf("second %d: %d queries %v ago", second, was, ago)
		}
		if second >= 60 && ago < 60*time.Second || ago > 80*time.Second || second < 60 && ago != time.Duration(second)*time.Second {
			t.Errorf("second %d: %v ago", second, ago)
		}
	}
}

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// replicated is a server that can be replicated, and a gateway before it with a pool of one connection.
func replicated(t *testing.T) (db database, listen string) {
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithSetting("wal_level", "logical"),
		pgtest.WithSetting("max_wal_senders", "10"), pgtest.WithHBA("host replication all 127.0.0.1/32 scram-sha-256"))
	db = newDatabase(t, server, "shop")
	server.Exec(t, "alter role shop superuser replication")
	listen = address(t)
	config := strings.Replace(db.pgConfig(t, listen, "transaction", "max_size: 1"), "mode: transaction,", "mode: transaction, replication_users: shop,", 1)
	startGateway(t, config)
	return db, listen
}

// PostgreSQL's own programs copy a server through the gateway.
func TestReplicationPrograms(t *testing.T) {
	db, listen := replicated(t)
	holder := connect(t, db.dsn(listen))
	query := func(sql string) (value string) {
		t.Helper()
		if err := holder.QueryRow(t.Context(), sql).Scan(&value); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return value
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	succeeds := func(name string, args ...string) string {
		t.Helper()
		out, code := run(t, patience, program(t, name), args...)
		if code != 0 {
			t.Fatalf("%s: exit code %d\n%s", name, code, out)
		}
		return out
	}
	exec("create table copied as select generate_series(1, 1000) as n")
	dsn, dir := db.dsn(listen), sharedDir(t)

	out := succeeds("psql", "-X", "-At", "-d", dsn+"&replication=database", "-c", "IDENTIFY_SYSTEM", "-c", "select count(*) from copied")
	if !strings.Contains(out, "|shop\n1000\n") {
		t.Errorf("psql: %s", out)
	}

	copied := filepath.Join(dir, "base")
	succeeds("pg_basebackup", "-d", dsn, "-D", copied, "-X", "stream", "-c", "fast")
	succeeds("pg_verifybackup", copied)

	wal := filepath.Join(dir, "wal")
	if err := os.Mkdir(wal, 0o700); err != nil {
		t.Fatal(err)
	}
	end := query("select pg_current_wal_insert_lsn()::text")
	query("select pg_switch_wal()::text")
	succeeds("pg_receivewal", "-d", dsn, "-D", wal, "--no-loop", "-E", end)

	succeeds("pg_recvlogical", "-d", dsn, "--slot", "watch", "--create-slot", "-P", "test_decoding")
	exec("insert into copied values (7001)")
	end = query("select pg_current_wal_insert_lsn()::text")
	exec("insert into copied values (7002)") // so that there is something behind the end
	out = succeeds("pg_recvlogical", "-d", dsn, "--slot", "watch", "--start", "--no-loop", "-E", end, "-f", "-")
	if !strings.Contains(out, "n[integer]:7001") {
		t.Errorf("pg_recvlogical: %s", out)
	}
}

// A subscription of another server receives the rows through the gateway, also when the gateway's connection to it has been cut.
func TestReplicationSubscription(t *testing.T) {
	db, listen := replicated(t)
	holder := connect(t, db.dsn(listen))
	for _, sql := range []string{"create table item (n int primary key)", "insert into item select generate_series(1, 1000)", "create publication all_items for table item"} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	subscriber := pgtest.Start(t, pgtest.WithSetting("wal_level", "logical"), pgtest.WithSetting("max_wal_senders", "4"),
		pgtest.WithSetting("wal_retrieve_retry_interval", "200ms"))
	copied := subscriber.Connect(t)
	sum := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("the subscriber has items with the sum %d", want), func() error {
			ctx, stop := context.WithTimeout(context.Background(), patience)
			defer stop()
			var got int
			if err := copied.QueryRow(ctx, "select coalesce(sum(n), 0) from item").Scan(&got); err != nil || got != want {
				return fmt.Errorf("%d, %w", got, err)
			}
			return nil
		})
	}
	subscriber.Exec(t, "create table item (n int primary key)",
		fmt.Sprintf("create subscription s connection '%s' publication all_items", db.dsn(listen)))
	sum(500500)
	if _, err := holder.Exec(t.Context(), "insert into item values (1000000)"); err != nil {
		t.Fatal(err)
	}
	sum(1500500)
	db.server.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'walsender'")
	if _, err := holder.Exec(t.Context(), "insert into item values (2000000)"); err != nil {
		t.Fatal(err)
	}
	sum(3500500)
	dropSubscription(t, subscriber)
}

// dropSubscription has a subscriber end its subscription, with its slot. The slot may be in use for a moment yet.
func dropSubscription(t *testing.T, subscriber *pgtest.Cluster) {
	t.Helper()
	conn := subscriber.Connect(t)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	eventually(t, "the subscription is dropped", func() error {
		_, err := conn.Exec(ctx, "drop subscription if exists s")
		return err
	})
}

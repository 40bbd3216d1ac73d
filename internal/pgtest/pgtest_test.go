package pgtest_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/pgtest"
)

func TestMain(m *testing.M) {
	leaktest.Main(pgtest.Runner(m))
}

func connect(t *testing.T, dsn string) (*pgx.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

func TestSharedIsOneServer(t *testing.T) {
	a, b := pgtest.Shared(t), pgtest.Shared(t)
	if a != b {
		t.Fatal("Shared started two servers")
	}
	var one int
	if err := a.Connect(t).QueryRow(t.Context(), "select 1").Scan(&one); err != nil || one != 1 {
		t.Fatalf("select 1 = %d, %v", one, err)
	}
}

func TestPasswords(t *testing.T) {
	for _, auth := range []pgtest.Auth{pgtest.MD5, pgtest.SCRAM} {
		t.Run(string(auth), func(t *testing.T) {
			t.Parallel()
			c := pgtest.Start(t, pgtest.WithAuth(auth))
			c.CreateUser(t, "app", "it's secret")
			c.CreateDatabase(t, "appdb", "app")
			for _, dsn := range []string{
				c.DSN("app", "it's secret", "appdb"),
				c.DSN(c.Superuser(), c.Password(), "postgres"),
			} {
				if _, err := connect(t, dsn); err != nil {
					t.Errorf("right password refused: %v", err)
				}
			}
			_, err := connect(t, c.DSN("app", "wrong", "appdb"))
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "28P01" {
				t.Errorf("wrong password: %v, want SQLSTATE 28P01", err)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	c := pgtest.Start(t, pgtest.WithTLS())
	dsn := strings.Replace(c.DSN("postgres", "", "postgres"), "sslmode=disable", "sslmode=verify-full&sslrootcert="+c.CAFile(), 1)
	conn, err := connect(t, dsn)
	if err != nil {
		t.Fatal(err)
	}
	var ssl bool
	if err := conn.QueryRow(t.Context(), "select ssl from pg_stat_ssl where pid = pg_backend_pid()").Scan(&ssl); err != nil || !ssl {
		t.Fatalf("ssl = %v, %v", ssl, err)
	}
}

func TestKillAndRestartKeepAddressAndData(t *testing.T) {
	c := pgtest.Start(t, pgtest.WithSetting("max_connections", "17"))
	c.Exec(t, "create table kept (n int)", "insert into kept values (42)", "checkpoint")
	conn, err := connect(t, c.DSN("postgres", "", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	addr := c.Addr()
	c.Kill(t)
	if _, err := conn.Exec(t.Context(), "select 1"); err == nil {
		t.Fatal("a query was answered by a killed server")
	}
	c.Restart(t)
	if c.Addr() != addr {
		t.Fatalf("address changed from %s to %s", addr, c.Addr())
	}
	var n int
	var limit string
	fresh := c.Connect(t)
	if err := fresh.QueryRow(t.Context(), "select n, current_setting('max_connections') from kept").Scan(&n, &limit); err != nil {
		t.Fatal(err)
	}
	if n != 42 || limit != "17" {
		t.Fatalf("n = %d, max_connections = %s", n, limit)
	}
	c.Stop(t)
	c.Stop(t) // stopping twice is harmless
}

func TestBackendsCountsClients(t *testing.T) {
	c := pgtest.Start(t)
	before := c.Backends(t)
	if _, err := connect(t, c.DSN("postgres", "", "postgres")); err != nil {
		t.Fatal(err)
	}
	if n := c.Backends(t); n != before+1 {
		t.Fatalf("%d backends, want %d", n, before+1)
	}
}

func TestSocketAddr(t *testing.T) {
	c := pgtest.Shared(t)
	path, ok := strings.CutPrefix(c.SocketAddr(), "unix:")
	if !ok {
		t.Fatal(c.SocketAddr())
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		t.Fatalf("%s is no socket: %v", path, err)
	}
}

package pgproxy_test

import (
	"context"
	"log/slog"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) {
	leaktest.Main(enginetest.Runner(pgtest.Runner(m)))
}

// gateway is a proxy before a server, for a test.
type gateway struct {
	*pgproxy.Proxy
	backend *pgproxy.Postgres
	addr    string
	log     *conntest.Log
}

// start runs a proxy before the cluster; change may alter both configurations. Nothing fails because the machine is slow: whoever tests a time-out sets
// it.
func start(t testing.TB, db *pgtest.Cluster, change func(*pgproxy.Config, *pgproxy.PostgresConfig)) *gateway {
	t.Helper()
	log := &conntest.Log{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	pc := pgproxy.PostgresConfig{
		Name: "pg", Settings: upstream.Settings{Endpoints: upstream.Endpoints(db.Addr()), Limits: pool.Limits{MaxSize: 3, AcquireTimeout: conntest.Patience, OpenTimeout: conntest.Patience}}, User: db.Superuser(), Password: db.Password(), DBName: "postgres", Dial: enginetest.Dial, Logger: logger,
	}
	cfg := pgproxy.Config{Listener: listener.Config{Name: "db", Logger: logger}, Auth: pgproxy.AuthTrust, LoginTimeout: conntest.Patience}
	if change != nil {
		change(&cfg, &pc)
	}
	backend, err := pgproxy.NewPostgres(pc)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Databases == nil {
		cfg.Databases = map[string]pgproxy.Backend{"*": backend}
	}
	p, err := pgproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, p, func() {
		backend.Status()
		backend.PairList()
		p.Usage()
		p.RecentUsage()
	})
	addr := conntest.Run(t, enginetest.Listen(t), p.Serve, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Drain(ctx); err != nil {
			t.Errorf("drain: %v", err)
		}
		if err := backend.Drain(ctx); err != nil {
			t.Errorf("drain of the backend: %v", err)
		}
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", log)
		}
	})
	backend.SetPinPatience(time.Millisecond) // most tests of the limit are about what comes after the wait
	return &gateway{Proxy: p, backend: backend, addr: addr, log: log}
}

// dsn is how clients reach the gateway.
func (g *gateway) dsn(more string) string {
	host, port, _ := net.SplitHostPort(g.addr)
	return "host=" + host + " port=" + port + " user=app dbname=app sslmode=disable " + more
}

// connect returns a pgx connection through the gateway, closed at the end of the test.
func (g *gateway) connect(t testing.TB, more string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), g.dsn(more))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// run runs a PostgreSQL client program against the gateway and returns its output.
func (g *gateway) run(t testing.TB, db *pgtest.Cluster, program string, args ...string) (string, error) {
	t.Helper()
	host, port, _ := net.SplitHostPort(g.addr)
	cmd := exec.CommandContext(t.Context(), db.Bin(program), args...)
	cmd.Env = []string{"PGHOST=" + host, "PGPORT=" + port, "PGUSER=app", "PGDATABASE=app", "PGPASSWORD=secret", "LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// one runs a query that returns one value.
func one[T any](t testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func do(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func transaction(*pgproxy.Config, *pgproxy.PostgresConfig) {}

func session(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Mode = pgproxy.Session }

func itoa(n int) string { return strconv.Itoa(n) }

func has(s, part string) bool { return strings.Contains(s, part) }

package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/sqlite"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const schema = `
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, email VARCHAR(100), active BOOLEAN DEFAULT 1,
	score REAL, avatar BLOB, born DATE, seen TIMESTAMP DEFAULT CURRENT_TIMESTAMP, price NUMERIC(10,2), age INT CHECK (age > 0));
CREATE TABLE posts (id INTEGER PRIMARY KEY, author INTEGER NOT NULL REFERENCES users(id) ON DELETE CASCADE, title TEXT);
CREATE INDEX posts_author ON posts (author);
CREATE VIEW names AS SELECT id, name FROM users;
INSERT INTO users (id, name, email, active, score, avatar, born, seen, price, age) VALUES
	(1, 'ada', 'ada@example.com', 1, 1.5, x'00ff', '1815-12-10', '2026-01-02 03:04:05', 12.5, 36),
	(2, 'grace', NULL, 0, 2, NULL, '1906-12-09', '2026-01-02T03:04:05.25Z', 7, 85);
INSERT INTO posts VALUES (1, 1, 'notes');`

// server is a gateway listener for a database file.
type server struct {
	addr string
	path string
	b    *sqlite.Backend
	p    *pgproxy.Proxy
}

func start(t testing.TB, change ...func(*sqlite.Config)) *server {
	t.Helper()
	cfg := sqlite.Config{Path: filepath.Join(t.TempDir(), "test.db")}
	for _, f := range change {
		f(&cfg)
	}
	b, err := sqlite.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.ReadOnly {
		if err := b.Exec(t.Context(), schema); err != nil {
			t.Fatal(err)
		}
	}
	return serve(t, b, cfg.Path)
}

// serve runs a proxy for a backend. Both are closed at the end of the test.
func serve(t testing.TB, b pgproxy.Backend, path string) *server {
	t.Helper()
	p, err := pgproxy.New(pgproxy.Config{
		Listener: listener.Config{Name: "db"}, Auth: pgproxy.AuthTrust,
		Databases: map[string]pgproxy.Backend{"*": b},
	})
	if err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, p, func() { b.Status() })
	addr := conntest.Run(t, conntest.Listen(t), p.Serve, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(p.Drain(ctx), b.Drain(ctx)); err != nil {
			t.Error("drain:", err)
		}
	})
	file, _ := b.(*sqlite.Backend)
	return &server{addr: addr, path: path, b: file, p: p}
}

func (s *server) url(options string) string {
	return fmt.Sprintf("postgres://demo@%s/demo?sslmode=disable%s", s.addr, options)
}

func (s *server) connect(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.url(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func mustExec(t testing.TB, conn *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	tag, err := conn.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag.String()
}

func one[T any](t testing.TB, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// wantState fails the test unless err has the SQLSTATE.
func wantState(t testing.TB, err error, state, what string) *pgconn.PgError {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != state {
		t.Fatalf("%s: got %v, want SQLSTATE %s", what, err, state)
	}
	return pg
}

// endlessQuery is a simple query that never ends.
func endlessQuery() *pgproto3.Query { return &pgproto3.Query{String: endless} }

func shortIdle(c *sqlite.Config) { c.IdleInTransaction = 300 * time.Millisecond }

// foreign runs SQL on a connection outside the backend.
func (s *server) foreign(t testing.TB, sql string) {
	t.Helper()
	conn, err := driver.OpenConn(s.path, driver.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sqlitex.ExecuteScript(conn, sql, nil), conn.Close()); err != nil {
		t.Fatal(err)
	}
}

package pgtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// sqlTimeout bounds the statements tests run to prepare a cluster.
const sqlTimeout = time.Minute

// Connect returns a connection as the superuser to database "postgres", without a password check.
// It is closed at the end of the test.
func (c *Cluster) Connect(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := c.connect()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Exec runs statements as the superuser in database "postgres", each on its own.
func (c *Cluster) Exec(t testing.TB, statements ...string) {
	t.Helper()
	if err := c.exec(statements...); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// CreateUser makes a role that may log in. Its password is stored as the cluster's [Auth] requires.
func (c *Cluster) CreateUser(t testing.TB, name, password string) {
	t.Helper()
	c.Exec(t, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", pgx.Identifier{name}.Sanitize(), strings.ReplaceAll(password, "'", "''")))
}

// CreateDatabase makes an empty database owned by the given role.
func (c *Cluster) CreateDatabase(t testing.TB, name, owner string) {
	t.Helper()
	c.Exec(t, fmt.Sprintf("CREATE DATABASE %s OWNER %s", pgx.Identifier{name}.Sanitize(), pgx.Identifier{owner}.Sanitize()))
}

// ownName is the application_name of this package's connections.
const ownName = "pgtest"

// Backends returns the number of connected clients. It does not count this package's own connections, which may be
// about to end.
func (c *Cluster) Backends(t testing.TB) int {
	t.Helper()
	conn, err := c.connect()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var n int
	err = conn.QueryRow(context.Background(),
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> $1", ownName).Scan(&n)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return n
}

func (c *Cluster) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlTimeout)
	defer cancel()
	return pgx.Connect(ctx, c.socketDSN("postgres"))
}

func (c *Cluster) exec(statements ...string) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sqlTimeout)
	defer cancel()
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

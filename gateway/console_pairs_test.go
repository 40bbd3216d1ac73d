package gateway_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

const consolePairsText = `
engine: {engine}
listeners:
  - name: db
    protocol: postgres
    listen: 127.0.0.1:0
    postgres: {users_file: "{users}", databases: {"*": pg}, console: {admins: [alice]}}
upstreams:
  pg:
    endpoints: ["{db}"]
    postgres: {login_as: client, read_catalogs: false}
    pool: {max_size: 3}
`

// TestConsolePairs: with login_as: client there is a row for each pair of database and user, as PgBouncer has.
func TestConsolePairs(t *testing.T) {
	db := pgtest.Start(t)
	db.CreateUser(t, "alice", "pw")
	db.CreateUser(t, "bob", "pw")
	db.Exec(t, "create database shop")
	users := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(users, []byte("\"alice\" \"pw\"\n\"bob\" \"pw\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) {
			c := &consoleTest{run(t, parse(t, consolePairsText, "{engine}", engine, "{users}", users, "{db}", db.Addr())), t, nil}
			console := c.connect("alice", "pgbouncer")
			pools := func(keys ...string) string { return c.columns(console, "show pools", keys...) }
			if got := pools("database", "user"); got != "[pgbouncer pgbouncer]" {
				t.Errorf("pools before the first client: %s", got)
			}
			bob := c.connect("bob", "shop")
			for _, conn := range []*pgconn.PgConn{bob, c.connect("alice", "shop"), c.connect("bob", "postgres")} {
				c.want(conn, "select 1")
			}
			c.want(bob, "begin")
			conntest.Eventually(t, "connections of pairs are in the rows of their user", func() bool {
				return pools("database", "user", "cl_active", "sv_active", "sv_idle") ==
					"[postgres bob 1 0 1] [shop alice 1 0 1] [shop bob 1 1 0] [pgbouncer pgbouncer 1 0 0]"
			})
			if got, want := c.columns(console, "show servers", "database", "user", "state"), "[shop bob active] [postgres bob idle] [shop alice idle]"; !sameRows(got, want) {
				t.Errorf("servers: %s\nwant     %s in any order", got, want)
			}
			for _, row := range c.want(console, "show servers") {
				for _, key := range []string{"connect_time", "request_time"} {
					if _, err := time.Parse("2006-01-02 15:04:05 UTC", row[key]); err != nil {
						t.Errorf("show servers: %s: %v; Datadog's agent reads it", key, err)
					}
				}
			}
			got := c.columns(console, "show databases", "name", "database", "force_user", "pool_size", "current_connections")
			if want := "[* *  3 0] [postgres postgres  3 1] [shop shop  3 2] [pgbouncer pgbouncer pgbouncer 0 0]"; got != want {
				t.Errorf("databases: %s\nwant       %s", got, want)
			}
			if pools := c.row(console, "show lists", "list", "pools"); pools["items"] != "4" {
				t.Errorf("lists: %v", pools)
			}
			c.want(bob, "commit")
			c.want(console, "pause shop")
			if got := pools("database", "user", "sv_active", "sv_idle"); got != "[postgres bob 0 0] [shop alice 0 0] [shop bob 0 0] [pgbouncer pgbouncer 0 0]" {
				t.Errorf("pools of a paused upstream: %s", got)
			}
			c.want(console, "resume shop")
			c.want(bob, "select 1")
			_ = bob.Close(context.Background())
		})
	}
}

// columns returns columns of the rows of a command.
func (c *consoleTest) columns(conn *pgconn.PgConn, sql string, keys ...string) (text string) {
	c.t.Helper()
	for i, row := range c.want(conn, sql) {
		if i > 0 {
			text += " "
		}
		values := make([]string, len(keys))
		for k, key := range keys {
			values[k] = row[key]
		}
		text += fmt.Sprint(values)
	}
	return text
}

// sameRows reports whether two results of columns have the same rows, in any order.
func sameRows(a, b string) bool {
	split := func(text string) []string {
		rows := strings.Split(text, "] [")
		for i := range rows {
			rows[i] = strings.Trim(rows[i], "[]")
		}
		slices.Sort(rows)
		return rows
	}
	return slices.Equal(split(a), split(b))
}

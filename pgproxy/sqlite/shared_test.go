package sqlite_test

import (
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
	"github.com/jackc/pgx/v5"
)

// A client's changes of a connection do not affect the connection's next client.
func TestSharedConnectionsCannotBeChanged(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.MaxSize = 1 })
	conn := s.connect(t)
	for sql, state := range map[string]string{
		`EXPLAIN PRAGMA query_only = OFF`:                                    "42501", // takes effect while it is compiled
		`EXPLAIN PRAGMA writable_schema = ON`:                                "42501",
		`EXPLAIN QUERY PLAN PRAGMA hard_heap_limit = 1`:                      "42501",
		`CREATE TABLE temp.made (a)`:                                         "42501",
		`CREATE VIEW temp.made AS SELECT 1`:                                  "42501",
		`DROP VIEW pg_class`:                                                 "42501",
		`DROP VIEW temp.pg_type`:                                             "42501",
		`SELECT load_extension('x')`:                                         "42501",
		`CREATE TRIGGER temp.made AFTER DELETE ON users BEGIN SELECT 1; END`: "42501",
	} {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		wantState(t, err, state, sql)
	}
	mustExec(t, conn, `EXPLAIN SELECT * FROM users`)
	mustExec(t, conn, `CREATE TABLE fine (a UNIQUE)`)
	mustExec(t, conn, `BEGIN`)
	mustExec(t, conn, `INSERT INTO fine VALUES (1)`) // pg_class of the writer
	if n := one[int64](t, conn, `SELECT count(*) FROM pg_class WHERE relname = 'fine'`); n != 1 {
		t.Errorf("%d tables", n)
	}
	mustExec(t, conn, `COMMIT`)
}

// A schema change by another process is noticed without an error.
func TestStatementAfterForeignSchemaChange(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.MaxSize = 1 })
	conn := s.connect(t)
	mustExec(t, conn, `SELECT * FROM posts`, pgx.QueryExecModeSimpleProtocol)
	s.foreign(t, `ALTER TABLE posts ADD COLUMN extra TEXT`)
	if tag := mustExec(t, conn, `SELECT * FROM posts`, pgx.QueryExecModeSimpleProtocol); tag != "SELECT 1" {
		t.Errorf("tag %q", tag)
	}
}

// The end of one statement does not interrupt another on the same connection.
func TestOpenPortalSurvivesOtherStatements(t *testing.T) {
	c := start(t).wire(t)
	c.w.Send(&pgwire.Query{SQL: `BEGIN; UPDATE users SET age = 5`})
	c.until(pgwire.TypeReadyForQuery)
	c.w.Send(&pgwire.Parse{Name: "s", Query: `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i FROM r`})
	c.w.Send(&pgwire.Bind{Portal: "p", Statement: "s"})
	for range 200 {
		c.w.Send(&pgwire.Execute{Portal: "p", MaxRows: 1})
		c.w.Send(&pgwire.Parse{Query: `SELECT count(*) FROM users`})
		c.w.Send(&pgwire.Bind{})
		c.w.Send(&pgwire.Execute{})
		c.w.Send(&pgwire.Sync{})
		for _, m := range c.until(pgwire.TypeReadyForQuery) {
			if m[0] == 'E' {
				t.Fatalf("got %s", m)
			}
		}
	}
}

// A client that holds the writer and sends half a message counts as idle.
func TestHalfMessageIsIdleInTransaction(t *testing.T) {
	s := start(t, shortIdle)
	c, other := s.wire(t), s.connect(t)
	c.w.Send(&pgwire.Query{SQL: `BEGIN; DELETE FROM posts`})
	c.until(pgwire.TypeReadyForQuery)
	if _, err := c.w.Write([]byte{'Q', 0, 0, 1, 0, 'S'}); err != nil {
		t.Fatal(err)
	}
	if err := c.w.Flush(); err != nil {
		t.Fatal(err)
	}
	mustExec(t, other, `UPDATE users SET age = 1`)
	c.want(c.until(pgwire.TypeErrorResponse), "E 25P03")
}

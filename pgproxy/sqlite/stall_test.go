package sqlite_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
)

// A client that asks for endless rows and reads none holds the only reader until the stall timeout, or not as long while
// other sessions wait for it. Then other clients are served.
func TestStalledClientLosesItsReader(t *testing.T) {
	for name, limits := range map[string]func(*sqlite.Config){
		"stalled": func(c *sqlite.Config) { c.Limits.MaxSize, c.StallTimeout = 1, 50*time.Millisecond },
		"hurried": func(c *sqlite.Config) { c.Limits.MaxSize, c.Limits.AcquireTimeout = 1, 50*time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, limits)
			other := s.connect(t)
			c := s.wire(t)
			c.w.Send(&pgwire.Query{SQL: `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i, zeroblob(10000) FROM r`})
			if err := c.w.Flush(); err != nil {
				t.Fatal(err)
			}
			if n := one[int64](t, other, `SELECT count(*) FROM users`); n != 2 {
				t.Errorf("%d users", n)
			}
		})
	}
}

// A client that holds the writer and does not read is disconnected, whether rows, descriptions or errors are sent.
// Other clients can then write.
func TestStalledClientLosesTheWriter(t *testing.T) {
	const rows = `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r LIMIT 5000) SELECT i, zeroblob(10000) FROM r`
	wide := "SELECT 1" + strings.Repeat(", 1 AS a_column_with_a_long_name", 1500)
	many := func(m pgwire.Message) (all []pgwire.Message) {
		for range 2000 {
			all = append(all, m)
		}
		return all
	}
	parse := &pgwire.Parse{Name: "wide", Query: wide}
	for name, messages := range map[string][]pgwire.Message{
		"rows":         {&pgwire.Query{SQL: rows}},
		"returning":    {&pgwire.Query{SQL: `INSERT INTO filled ` + rows + ` RETURNING *`}},
		"descriptions": append([]pgwire.Message{parse}, many(&pgwire.Describe{Object: pgwire.ObjectStatement, Name: "wide"})...),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(c *sqlite.Config) { c.StallTimeout = 50 * time.Millisecond })
			other := s.connect(t)
			mustExec(t, other, `CREATE TABLE filled (i integer, b bytea)`)
			c := s.wire(t)
			c.simple(`BEGIN; INSERT INTO filled VALUES (1, NULL)`)
			for _, m := range messages {
				c.w.Send(m)
			}
			if err := c.w.Flush(); err != nil {
				t.Fatal(err)
			}
			mustExec(t, other, `INSERT INTO filled VALUES (2, NULL)`)
			if n := one[int64](t, other, `SELECT count(*) FROM filled`); n != 1 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

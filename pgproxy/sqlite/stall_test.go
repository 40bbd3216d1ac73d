package sqlite_test

import (
	"testing"
	"time"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
)

// A client that asks for endless rows and takes none holds the only reader
// until the stall time-out; then others are served.
func TestStalledClientLosesItsReader(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.MaxSize, c.StallTimeout = 1, 50*time.Millisecond })
	other := s.connect(t)
	c := s.wire(t)
	c.w.Send(&pgwire.Query{SQL: `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i, zeroblob(10000) FROM r`})
	if err := c.w.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := one[int64](t, other, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
}

// Where others wait for the reader, a client that takes no rows does not keep it for all of its time.
func TestStalledClientIsHurried(t *testing.T) {
	s := start(t, func(c *sqlite.Config) {
		c.Limits.MaxSize, c.Limits.AcquireTimeout = 1, 50*time.Second
	})
	other := s.connect(t)
	c := s.wire(t)
	c.w.Send(&pgwire.Query{SQL: `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i, zeroblob(10000) FROM r`})
	if err := c.w.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := one[int64](t, other, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
}

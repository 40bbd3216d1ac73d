package sqlite_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
)

// Values that would take all memory are refused, alone and together.
func TestMemoryOfStatementsIsBounded(t *testing.T) {
	before := sqlite.MemoryLimit()
	s := start(t, func(c *sqlite.Config) { c.MaxMemory = 64 << 20 })
	conn, other := s.connect(t), s.connect(t)
	const value = 15 << 20
	if n := one[int64](t, conn, `SELECT length(hex(zeroblob($1)))`, value/2); n != value {
		t.Errorf("a value of %d bytes", n)
	}
	for _, sql := range []string{`SELECT length(hex(zeroblob(10000000)))`, `SELECT length(group_concat(hex(zeroblob(500000)))) FROM (WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 100) SELECT i FROM r)`} {
		_, err := conn.Exec(t.Context(), sql)
		if pg := wantState(t, err, "54000", sql); !strings.Contains(pg.Hint, "max_memory_mib") {
			t.Errorf("the hint is %q", pg.Hint)
		}
	}
	columns := int(sqlite.MemoryLimit()/value) + 2
	list := strings.TrimSuffix(strings.Repeat("hex(zeroblob(7500000)), ", columns), ", ")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement} {
		_, err := conn.Exec(t.Context(), "SELECT "+list, mode)
		if pg := wantState(t, err, "53200", "values that fit each"); !strings.Contains(pg.Hint, "max_memory_mib") {
			t.Errorf("the hint is %q", pg.Hint)
		}
		for _, c := range []*pgx.Conn{conn, other} {
			if n := one[int64](t, c, `SELECT count(*) FROM users`); n != 2 {
				t.Errorf("%d users afterwards", n)
			}
		}
	}
	mustExec(t, conn, "BEGIN")
	mustExec(t, conn, "UPDATE users SET age = 50")
	_, err := conn.Exec(t.Context(), "INSERT INTO users (name) SELECT "+strings.ReplaceAll(list, ",", " ||"))
	wantState(t, err, "54000", "a write")
	mustExec(t, conn, "ROLLBACK")
	if n := one[int64](t, conn, `SELECT max(age) FROM users`); n != 85 {
		t.Errorf("age %d after the rollback", n)
	}
	if now := sqlite.MemoryLimit() - before; now < 64<<20 || now > 256<<20 {
		t.Errorf("the backend adds %d bytes to the bound", now)
	}
}

// A simple query over the limit gets a complete answer.
func TestQueryThatIsTooLong(t *testing.T) {
	conn := start(t, func(c *sqlite.Config) { c.MaxMessage = 1 << 20 }).connect(t)
	_, err := conn.Exec(t.Context(), "SELECT 1 -- "+strings.Repeat("x", 2<<20), pgx.QueryExecModeSimpleProtocol)
	wantState(t, err, "54000", "a query over the limit")
	if n := one[int64](t, conn, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users afterwards", n)
	}
}

// A trim during a statement that uses much memory schedules another, even when the page caches may use as much.
func TestMemoryOfStatementUnderWay(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	mustExec(t, conn, "CREATE TABLE pages (b BLOB)")
	mustExec(t, conn, "INSERT INTO pages WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 6000) SELECT randomblob(3000) FROM r")
	one[int64](t, conn, "SELECT sum(length(hex(b))) FROM pages")
	if n := sqlite.Cached(); n < 8<<20 {
		t.Fatalf("page caches take %d bytes", n)
	}
	c := s.wire(t)
	c.w.Send(&pgwire.Parse{Query: "SELECT length(hex(zeroblob(20000000))) UNION ALL SELECT 2"})
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Execute{MaxRows: 1})
	c.w.Send(&pgwire.Flush{})
	c.until(pgwire.TypePortalSuspended)
	sqlite.GiveMemoryBack()
	if !sqlite.MemoryWillBeGivenBack() {
		t.Error("no trim is scheduled while a statement uses 40 MB")
	}
}

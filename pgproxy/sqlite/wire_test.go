package sqlite_test

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
	"github.com/jackc/pgx/v5"
)

// wire is a client that sends and receives single messages.
type wire struct {
	t testing.TB
	r *pgwire.Reader
	w *pgwire.Writer
}

func (s *server) wire(t testing.TB) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &wire{t, pgwire.NewReader(conn), pgwire.NewWriter(conn)}
	c.w.Send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "demo"}, {Name: "database", Value: "demo"}}})
	c.until(pgwire.TypeReadyForQuery)
	return c
}

// until flushes and returns the messages up to one of type typ, each as its type and, for some, its
// content.
func (c *wire) until(typ byte) (got []string) {
	c.t.Helper()
	if err := c.w.Flush(); err != nil {
		c.t.Fatal(err)
	}
	for {
		h, err := c.r.Next()
		if err != nil {
			c.t.Fatalf("after %q: %v", got, err)
		}
		body, err := c.r.Body()
		if err != nil {
			c.t.Fatal(err)
		}
		got = append(got, c.describe(h.Type, body))
		if h.Type == typ {
			return got
		}
	}
}

func (c *wire) describe(typ byte, body []byte) string {
	switch typ {
	case pgwire.TypeErrorResponse:
		var e pgwire.ErrorResponse
		if err := e.Decode(body); err != nil {
			c.t.Fatal(err)
		}
		return "E " + e.Code
	case pgwire.TypeDataRow:
		var d pgwire.DataRow
		if err := d.Decode(body); err != nil {
			c.t.Fatal(err)
		}
		return fmt.Sprintf("D %s", bytes.Join(d.Values, []byte(",")))
	case pgwire.TypeCommandComplete, pgwire.TypeReadyForQuery:
		return string(typ) + " " + string(bytes.TrimRight(body, "\x00"))
	}
	return string(typ)
}

func (c *wire) want(got []string, want ...string) {
	c.t.Helper()
	if !slices.Equal(got, want) {
		c.t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestPortalsWithRowLimits(t *testing.T) {
	c := start(t).wire(t)
	c.w.Send(&pgwire.Parse{Query: `SELECT column1 FROM (VALUES (1), (2), (3))`})
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Execute{MaxRows: 2})
	c.w.Send(&pgwire.Execute{MaxRows: 2})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "1", "2", "D 1", "D 2", "s", "D 3", "C SELECT 1", "Z I")
	c.w.Send(&pgwire.Execute{})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "E 34000", "Z I") // portals end with their transaction

	c.w.Send(&pgwire.Query{SQL: `BEGIN`})
	c.until(pgwire.TypeReadyForQuery)
	c.w.Send(&pgwire.Parse{Name: "s", Query: `SELECT id FROM users ORDER BY id`})
	c.w.Send(&pgwire.Bind{Portal: "p", Statement: "s"})
	c.w.Send(&pgwire.Execute{Portal: "p", MaxRows: 1})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "1", "2", "D 1", "s", "Z T")
	c.w.Send(&pgwire.Query{SQL: `UPDATE users SET age = 5`}) // takes the writer while the portal is open
	c.want(c.until(pgwire.TypeReadyForQuery), "C UPDATE 2", "Z T")
	c.w.Send(&pgwire.Execute{Portal: "p"})
	c.w.Send(&pgwire.Close{Object: pgwire.ObjectPortal, Name: "p"})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "D 2", "C SELECT 1", "3", "Z T")
	c.w.Send(&pgwire.Query{SQL: `COMMIT`})
	c.want(c.until(pgwire.TypeReadyForQuery), "C COMMIT", "Z I")
}

func TestErrorSkipsToSync(t *testing.T) {
	c := start(t).wire(t)
	c.w.Send(&pgwire.Parse{Query: `SELECT missing FROM users`})
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Execute{})
	c.w.Send(&pgwire.Sync{})
	c.w.Send(&pgwire.Parse{Query: `SELECT 1`})
	c.w.Send(&pgwire.Describe{Object: pgwire.ObjectStatement})
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Execute{})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "E 42703", "Z I")
	c.want(c.until(pgwire.TypeReadyForQuery), "1", "t", "T", "2", "D 1", "C SELECT 1", "Z I")
}

func TestFlushAnswersBeforeSync(t *testing.T) {
	c := start(t).wire(t)
	c.w.Send(&pgwire.Parse{Query: ``})
	c.w.Send(&pgwire.Describe{Object: pgwire.ObjectStatement})
	c.w.Send(&pgwire.Flush{})
	c.want(c.until(pgwire.TypeNoData), "1", "t", "n")
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Execute{})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "2", "I", "Z I")
	c.w.Send(&pgwire.Query{SQL: ` ; -- nothing`})
	c.want(c.until(pgwire.TypeReadyForQuery), "I", "Z I")
}

func TestGarbageEndsOnlyItsSession(t *testing.T) {
	s := start(t)
	c := s.wire(t)
	if _, err := c.w.Write([]byte{'Q', 0, 0, 0, 5, 'x'}); err != nil { // no terminator
		t.Fatal(err)
	}
	c.want(c.until(pgwire.TypeErrorResponse), "E 08P01")
	c = s.wire(t)
	if _, err := c.w.Write([]byte{'!', 0, 0, 0, 4}); err != nil {
		t.Fatal(err)
	}
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "E 08P01", "Z I")
}

func TestLargeBlob(t *testing.T) {
	conn := start(t).connect(t)
	blob := bytes.Repeat([]byte{0, 1, 2, 255}, 2<<20)
	mustExec(t, conn, `UPDATE users SET avatar = $1 WHERE id = 2`, blob)
	if got := one[[]byte](t, conn, `SELECT avatar FROM users WHERE id = 2`); !bytes.Equal(got, blob) {
		t.Errorf("%d bytes came back", len(got))
	}
}

func TestSchemaChangeUnderPreparedStatement(t *testing.T) {
	s := start(t)
	a, b := s.connect(t), s.connect(t)
	mustExec(t, a, `CREATE TABLE c (x INTEGER)`)
	mustExec(t, a, `INSERT INTO c VALUES (1)`)
	if _, err := a.Prepare(t.Context(), "c", `SELECT * FROM c`); err != nil {
		t.Fatal(err)
	}
	mustExec(t, b, `ALTER TABLE c ADD COLUMN y TEXT`)
	_, err := a.PgConn().ExecPrepared(t.Context(), "c", nil, nil, nil).Close()
	wantState(t, err, "0A000", "prepared statement whose columns changed")
	if tag := mustExec(t, a, `DELETE FROM c WHERE x = $1 RETURNING x`, pgx.QueryExecModeExec, 1); tag != "DELETE 1" {
		t.Errorf("tag %q", tag)
	}
}

// A statement on a table that another session dropped fails with its own error. The session and the
// connection continue.
func TestDroppedTableUnderPreparedStatement(t *testing.T) {
	s := start(t)
	a, b := s.connect(t), s.connect(t)
	mustExec(t, a, `CREATE TABLE gone (x INTEGER)`)
	if _, err := a.Prepare(t.Context(), "g", `SELECT x FROM gone`); err != nil {
		t.Fatal(err)
	}
	mustExec(t, b, `DROP TABLE gone`)
	_, err := a.PgConn().ExecPrepared(t.Context(), "g", nil, nil, nil).Close()
	wantState(t, err, "42P01", "prepared statement whose table was dropped")
	mustExec(t, b, `CREATE TABLE gone (x TEXT)`)
	_, err = a.PgConn().ExecPrepared(t.Context(), "g", nil, nil, nil).Close()
	wantState(t, err, "0A000", "prepared statement whose column has another type")
	if n := one[int64](t, a, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
}

// A message over the limit is refused without being buffered, and the session continues.
func TestMessageOverTheLimit(t *testing.T) {
	conn := start(t, func(c *sqlite.Config) { c.MaxMessage = 1 << 20 }).connect(t)
	_, err := conn.Exec(t.Context(), `UPDATE users SET avatar = $1`, make([]byte, 2<<20))
	wantState(t, err, "54000", "large parameter")
	if n := one[int64](t, conn, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
}

// The memory that a client can use is bounded in bytes.
func TestWhatAClientKeepsIsBounded(t *testing.T) {
	c := start(t, func(c *sqlite.Config) { c.MaxMessage = 1 << 20 }).wire(t)
	ask := func(messages ...pgwire.Message) string {
		t.Helper()
		for _, m := range messages {
			c.w.Send(m)
		}
		return c.until(pgwire.TypeReadyForQuery)[0]
	}
	many := "SELECT 1 IN (1" + strings.Repeat(",1", 10000) + ")"
	for i := 0; ask(&pgwire.Parse{Name: fmt.Sprint(i), Query: many}, &pgwire.Sync{}) != "E 53400"; i++ {
		if i > 20 {
			t.Fatal("statements are not bounded")
		}
	}
	if got := ask(&pgwire.Parse{Name: "small", Query: "SELECT length($1)"}, &pgwire.Sync{}); got != "1" {
		t.Errorf("a small statement: %s", got)
	}
	ask(&pgwire.Query{SQL: "BEGIN"})
	bind := &pgwire.Bind{Statement: "small", Params: [][]byte{make([]byte, 900<<10)}}
	for i := 0; ; i++ {
		bind.Portal = fmt.Sprint(i)
		got := ask(bind, &pgwire.Sync{})
		if got == "E 53400" {
			break
		}
		if got != "2" || i > 20 {
			t.Fatalf("portal %d: %s", i, got)
		}
	}
}

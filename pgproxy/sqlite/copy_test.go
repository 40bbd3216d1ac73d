package sqlite_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
)

func copyIn(t *testing.T, conn *pgx.Conn, sql, data string) (string, error) {
	t.Helper()
	tag, err := conn.PgConn().CopyFrom(t.Context(), strings.NewReader(data), sql)
	return tag.String(), err
}

func copyOut(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := conn.PgConn().CopyTo(t.Context(), &b, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return b.String()
}

func TestCopyBothWays(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE t (id integer PRIMARY KEY, s text, n numeric(10,2), d timestamp, b bytea, ok boolean DEFAULT true)`)
	for _, c := range []struct{ in, data, out, want string }{
		{`COPY t FROM STDIN`, "1\ta\\tb\\\\c\\n\t1.5\t2026-01-02 03:04:05\t\\\\x00ff\tt\n2\t\\N\t\\N\t\\N\t\\N\t\\N\n", `COPY t TO STDOUT`,
			"1\ta\\tb\\\\c\\n\t1.50\t2026-01-02 03:04:05\t\\\\x00ff\tt\n2\t\\N\t\\N\t\\N\t\\N\t\\N\n"},
		{`COPY public.t (id, s) FROM STDIN (FORMAT csv, HEADER)`, "id,s\n1,\"a, \"\"b\"\"\nc\"\n2,\n3,\"\"\n", `COPY t (id, s, ok) TO STDOUT WITH CSV HEADER`,
			"id,s,ok\n1,\"a, \"\"b\"\"\nc\",t\n2,,t\n3,\"\",t\n"},
		{`copy "t" ("id", s) from stdin delimiter '|' null as 'nil'`, "1|nil\n2|a\\|b\n3|x\\x41\\101\\\n\n4|\xc3\xa9", `COPY (SELECT id, s FROM t ORDER BY id) TO STDOUT (DELIMITER '|', NULL 'nil')`,
			"1|nil\n2|a\\|b\n3|xAA\\n\n4|\xc3\xa9\n"},
		{`COPY t(id,s) FROM STDIN CSV QUOTE '''' ESCAPE E'\\' DELIMITER ';' NULL 'NULL'`, "1;'it\\'s; \\\\'\r\n2;NULL\r\n3;'NULL'\r\n", `COPY (SELECT id, s FROM t) TO STDOUT (FORMAT 'csv', QUOTE '''', ESCAPE '\', DELIMITER ';', NULL 'NULL')`,
			"1;'it\\'s; \\\\'\n2;NULL\n3;'NULL'\n"},
		{`COPY t (id) FROM STDIN`, "1\n2\n\\.\nrubbish\n", `COPY (VALUES (1, NULL), (2, '')) TO STDOUT CSV`, "1,\n2,\"\"\n"},
		{`COPY t FROM STDIN`, "", `COPY (INSERT INTO t (id, s) VALUES (9, 'x') RETURNING id, s) TO STDOUT`, "9\tx\n"},
	} {
		mustExec(t, conn, `DELETE FROM t`)
		if tag, err := copyIn(t, conn, c.in, c.data); err != nil || !strings.HasPrefix(tag, "COPY ") {
			t.Errorf("%s: %q, %v", c.in, tag, err)
		}
		if got := copyOut(t, conn, c.out); got != c.want {
			t.Errorf("%s gives\n%q, want\n%q", c.out, got, c.want)
		}
	}
}

func TestCopyErrors(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE t (id integer PRIMARY KEY, age integer CHECK (age > 0))`)
	for _, c := range []struct{ sql, data, state, where string }{
		{`COPY t FROM STDIN`, "1\t2\n2\t3\n3\n", "22P04", `COPY t, line 3: "3"`},
		{`COPY t FROM STDIN`, "1\t2\t3\n", "22P04", "COPY t, line 1: \"1\t2\t3\""},
		{`COPY t FROM STDIN CSV HEADER`, "id,age\n1,x\n", "22P02", `COPY t, line 2, column age: "x"`},
		{`COPY t FROM STDIN (HEADER match)`, "id\tname\n", "22P04", "COPY t, line 1: \"id\tname\""},
		{`COPY t FROM STDIN`, "1\t2\n1\t3\n", "23505", "COPY t, line 2: \"1\t3\""},
		{`COPY t FROM STDIN`, "1\t0\n", "23514", "COPY t, line 1: \"1\t0\""},
		{`COPY t FROM STDIN`, "1\t9999999999\n", "22003", `COPY t, line 1, column age: "9999999999"`},
		{`COPY t FROM STDIN CSV`, "1,2\n2,\"3\n", "22P04", "COPY t, line 3: \"2,\"3\n\""},
		{`COPY t FROM STDIN`, "1\t2\n3\t4\r\n", "22P04", "COPY t, line 2: \"3\t4\r\""},
		{`COPY t FROM STDIN (FORMAT binary)`, "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "22P04", "COPY t, line 1"},
		{`COPY t FROM STDIN (FORMAT binary)`, "id,age and more than a header\n", "22P04", "COPY t, line 0"},
		{`COPY nowhere FROM STDIN`, "", "42P01", ""},
		{`COPY t (id, name) FROM STDIN`, "", "42703", ""},
		{`COPY t (id, ID) FROM STDIN`, "", "42701", ""},
		{`COPY t FROM '/etc/passwd'`, "", "0A000", ""},
		{`COPY t TO PROGRAM 'cat'`, "", "0A000", ""},
		{`COPY t FROM STDIN WHERE id > 1`, "", "0A000", ""},
		{`COPY t FROM STDIN (FORMAT xml)`, "", "22023", ""},
		{`COPY t FROM STDIN (DELIMITER 'ab')`, "", "0A000", ""},
		{`COPY t FROM STDIN (DELIMITER 'a')`, "", "22023", ""},
		{`COPY t FROM STDIN (QUOTE 'a')`, "", "0A000", ""},
		{`COPY t FROM STDIN (FORMAT csv, FORMAT csv)`, "", "42601", ""},
		{`COPY t FROM STDIN (nonsense true)`, "", "42601", ""},
		{`COPY t FROM STDIN CSV FORCE NOT NULL age`, "", "0A000", ""},
		{`COPY (SELECT 1) FROM STDIN`, "", "42601", ""},
		{`COPY (PRAGMA table_info(t)) TO STDOUT`, "", "0A000", ""},
		{`COPY (DELETE FROM t) TO STDOUT`, "", "0A000", ""},
		{`COPY t`, "", "42601", ""},
		{`COPY`, "", "42601", ""},
		{`COPY t (`, "", "42601", ""},
	} {
		_, err := copyIn(t, conn, c.sql, c.data)
		if pg := wantState(t, err, c.state, c.sql); pg.Where != c.where {
			t.Errorf("%s: where %q, want %q (%v)", c.sql, pg.Where, c.where, err)
		}
		if n := one[int64](t, conn, `SELECT count(*) FROM t`); n != 0 {
			t.Fatalf("%s has left %d rows", c.sql, n)
		}
	}
}

func TestCopyInTransaction(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE t (id integer PRIMARY KEY)`)
	mustExec(t, conn, `BEGIN`)
	if _, err := copyIn(t, conn, `COPY t FROM STDIN`, "1\n2\n"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, `SAVEPOINT s`)
	_, err := copyIn(t, conn, `COPY t FROM STDIN`, "3\nx\n")
	wantState(t, err, "22P02", "COPY")
	mustExec(t, conn, `ROLLBACK TO s`)
	if got := copyOut(t, conn, `COPY t TO STDOUT`); got != "1\n2\n" {
		t.Errorf("%q", got)
	}
	mustExec(t, conn, `COMMIT`)
	mustExec(t, conn, `BEGIN READ ONLY`)
	_, err = copyIn(t, conn, `COPY t FROM STDIN`, "3\n")
	wantState(t, err, "25006", "COPY in a read-only transaction")
}

// pgx copies in the binary format, with values of the types that the server described.
func TestCopyBinary(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE t (id bigint PRIMARY KEY, s text, f real, at timestamptz, d date, b bytea, ok boolean, u uuid, j jsonb, small smallint)`)
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	columns := []string{"id", "s", "f", "at", "d", "b", "ok", "u", "j", "small"}
	const many = 2000
	n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"t"}, columns, pgx.CopyFromSlice(many, func(i int) ([]any, error) {
		if i%2 == 1 {
			return []any{i, nil, nil, nil, nil, nil, nil, nil, nil, nil}, nil
		}
		return []any{i, strings.Repeat("é", i), 1.5, now, now, []byte{0, 255}, true, [16]byte{1}, map[string]int{"a": i}, 7}, nil
	}))
	if err != nil || n != many {
		t.Fatal(n, err)
	}
	if got := one[string](t, conn, `SELECT id || ' ' || length(s) || ' ' || f || ' ' || at || ' ' || d || ' ' || hex(b) || ' ' || ok || ' ' || u || ' ' || j || ' ' || small FROM t WHERE id = 4`); got !=
		`4 4 1.5 2026-01-02 03:04:05.000006 2026-01-02 00FF 1 01000000-0000-0000-0000-000000000000 {"a":4} 7` {
		t.Errorf("%s", got)
	}
	data := copyOut(t, conn, `COPY t TO STDOUT (FORMAT binary)`)
	before := copyOut(t, conn, `COPY t TO STDOUT`)
	mustExec(t, conn, `DELETE FROM t`)
	if tag, err := copyIn(t, conn, `COPY t FROM STDIN BINARY`, data); err != nil || tag != fmt.Sprintf("COPY %d", many) {
		t.Fatal(tag, err)
	}
	if after := copyOut(t, conn, `COPY t TO STDOUT`); after != before {
		t.Error("the rows are others after COPY TO and FROM")
	}
}

// psql's \copy in both directions, with a file larger than a buffer.
func TestCopyWithPsql(t *testing.T) {
	s := start(t)
	in, out := filepath.Join(t.TempDir(), "in.csv"), filepath.Join(t.TempDir(), "out.csv")
	var file strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&file, "%d,\"name %d, \"\"quoted\"\"\"\n", i, i)
	}
	if err := os.WriteFile(in, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "psql", "-X", "-v", "ON_ERROR_STOP=1", s.url(""), "-c", `CREATE TABLE t (id integer, name text)`,
		"-c", `\copy t from '`+in+`' csv`, "-c", `\copy (SELECT * FROM t ORDER BY id) to '`+out+`' with (format csv)`,
		"-c", `COPY (SELECT count(*) FROM t) TO STDOUT; SELECT 'next'`)
	printed, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(printed), "COPY 20000") != 2 || !strings.Contains(string(printed), "20000\n") || !strings.Contains(string(printed), "next") {
		t.Fatalf("%v\n%s", err, printed)
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != file.String() {
		t.Errorf("%d bytes came back of %d (%v)", len(got), file.Len(), err)
	}
}

func TestCopyWithPsycopg(t *testing.T) {
	s := start(t)
	out, err := clienttest.Python(t, "-c", `
import psycopg, sys
with psycopg.connect(sys.argv[1]) as c, c.cursor() as cur:
    cur.execute("create table t (id integer, s text)")
    with cur.copy("copy t (id, s) from stdin") as copy:
        copy.write_row((1, "a\tb"))
        copy.write_row((2, None))
    with cur.copy("copy t from stdin (format binary)") as copy:
        copy.set_types(["int4", "text"])
        copy.write_row((3, "c"))
    with cur.copy("copy t to stdout") as copy:
        copy.set_types(["int4", "text"])
        print(list(copy.rows()))`, s.url("")).CombinedOutput()
	if want := `[(1, 'a\tb'), (2, None), (3, 'c')]`; err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestCopyProtocol(t *testing.T) {
	c := start(t).wire(t)
	c.w.Send(&pgwire.Query{SQL: `CREATE TABLE t (id integer PRIMARY KEY, s text)`})
	c.until(pgwire.TypeReadyForQuery)
	c.w.Send(&pgwire.Query{SQL: `COPY t FROM STDIN; SELECT count(*) FROM t`})
	for _, piece := range []string{"1", "\ta\n2", "", "\tb\n"} {
		c.w.Send(&pgwire.CopyData{Data: []byte(piece)})
	}
	c.w.Send(&pgwire.Flush{})
	c.w.Send(&pgwire.CopyDone{})
	c.want(c.until(pgwire.TypeReadyForQuery), "G", "C COPY 2", "T", "D 2", "C SELECT 1", "Z I")

	c.w.Send(&pgwire.Query{SQL: `COPY t FROM STDIN`})
	c.w.Send(&pgwire.CopyData{Data: []byte("3\tc\nx\td\n")})
	c.w.Send(&pgwire.CopyData{Data: bytes.Repeat([]byte("4\te\n"), 10000)})
	c.w.Send(&pgwire.CopyDone{})
	c.w.Send(&pgwire.Query{SQL: `SELECT count(*) FROM t`})
	c.want(c.until(pgwire.TypeReadyForQuery), "G", "E 22P02", "Z I")
	c.want(c.until(pgwire.TypeReadyForQuery), "T", "D 2", "C SELECT 1", "Z I")

	c.w.Send(&pgwire.Query{SQL: `COPY t FROM STDIN`})
	c.w.Send(&pgwire.CopyData{Data: []byte("3\tc\n")})
	c.w.Send(&pgwire.CopyFail{Message: "enough"})
	c.want(c.until(pgwire.TypeReadyForQuery), "G", "E 57014", "Z I")

	c.w.Send(&pgwire.Query{SQL: `COPY t FROM STDIN`})
	c.w.Send(&pgwire.Query{SQL: `SELECT 1`})
	c.want(c.until(pgwire.TypeReadyForQuery), "G", "E 08P01", "Z I")

	c.w.Send(&pgwire.Parse{Query: `COPY t FROM STDIN`})
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Describe{Object: pgwire.ObjectPortal})
	c.w.Send(&pgwire.Execute{})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeCopyInResponse), "1", "2", "n", "G")
	c.w.Send(&pgwire.CopyData{Data: []byte("3\tc\n")})
	c.w.Send(&pgwire.CopyDone{})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "C COPY 1", "Z I")

	c.w.Send(&pgwire.Parse{Query: `COPY t TO STDOUT`})
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Execute{})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "1", "2", "H", "d", "d", "d", "c", "C COPY 3", "Z I")
}

// A client that begins a COPY and sends nothing loses the writer after the stall timeout.
func TestStalledCopyLosesTheWriter(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.StallTimeout = 300 * time.Millisecond })
	other := s.connect(t)
	c := s.wire(t)
	c.w.Send(&pgwire.Query{SQL: `COPY posts FROM STDIN`})
	c.w.Send(&pgwire.CopyData{Data: []byte("7\t1\tseven\n")})
	c.want(c.until(pgwire.TypeCopyInResponse), "G")
	mustExec(t, other, `INSERT INTO posts VALUES (8, 1, 'eight')`)
	c.want(c.until(pgwire.TypeErrorResponse), "E 25P03")
	if n := one[int64](t, other, `SELECT count(*) FROM posts`); n != 2 {
		t.Errorf("%d posts", n)
	}
}

// A client that sends nothing loses the writer earlier while other sessions wait for it.
func TestStalledCopyIsHurried(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.AcquireTimeout = 50 * time.Second })
	other := s.connect(t)
	c := s.wire(t)
	c.w.Send(&pgwire.Query{SQL: `COPY posts FROM STDIN`})
	c.want(c.until(pgwire.TypeCopyInResponse), "G")
	mustExec(t, other, `INSERT INTO posts VALUES (8, 1, 'eight')`)
}

// A cancel request and the statement timeout end a COPY that waits for its client.
func TestCopyIsCanceled(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	front := conn.PgConn().Frontend()
	for _, timeout := range []string{"0", "300"} {
		mustExec(t, conn, `SET statement_timeout = `+timeout)
		front.Send(&pgproto3.Query{String: `COPY posts FROM STDIN`})
		front.Send(&pgproto3.CopyData{Data: []byte("7\t1\tseven\n")})
		if err := front.Flush(); err != nil {
			t.Fatal(err)
		}
		for ready, failed := false, ""; !ready; {
			m, err := front.Receive()
			if err != nil {
				t.Fatal(err)
			}
			switch m := m.(type) {
			case *pgproto3.CopyInResponse:
				if timeout == "0" {
					err = conn.PgConn().CancelRequest(t.Context())
				}
			case *pgproto3.ErrorResponse:
				failed = m.Code
			case *pgproto3.ReadyForQuery:
				if ready = true; failed != "57014" {
					t.Errorf("statement_timeout %s: SQLSTATE %q", timeout, failed)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		mustExec(t, conn, `SET statement_timeout = 0`)
		if n := one[int64](t, conn, `SELECT count(*) FROM posts`); n != 1 {
			t.Errorf("%d posts", n)
		}
	}
}

// A line without an end takes no more memory than a message may have.
func TestCopyLineIsBounded(t *testing.T) {
	conn := start(t, func(c *sqlite.Config) { c.MaxMessage = 1 << 20 }).connect(t)
	_, err := conn.PgConn().CopyFrom(t.Context(), io.LimitReader(ones{}, 64<<20), `COPY posts FROM STDIN`)
	wantState(t, err, "54000", "an endless line")
	if got := one[int64](t, conn, `SELECT count(*) FROM posts`); got != 1 {
		t.Errorf("%d posts", got)
	}
}

// ones is an endless line.
type ones struct{}

func (ones) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte("1"), len(p))), nil }

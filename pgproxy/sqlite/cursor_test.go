package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const five = `SELECT column1 AS n FROM (VALUES (1), (2), (3), (4), (5))`

// simple runs a simple query and returns the answer without ReadyForQuery in a block.
func (c *wire) simple(sql string) string {
	c.t.Helper()
	c.w.Send(&pgwire.Query{SQL: sql})
	return strings.TrimSuffix(strings.Join(c.until(pgwire.TypeReadyForQuery), "; "), "; Z T")
}

func TestCursorInSimpleQueries(t *testing.T) {
	c := start(t).wire(t)
	for _, step := range [][2]string{
		{`BEGIN`, "C BEGIN"},
		{`DECLARE "C x" BINARY INSENSITIVE NO SCROLL CURSOR WITHOUT HOLD FOR SELECT true`, "C DECLARE CURSOR"},
		{`FETCH "C x"`, "T; D \x01; C FETCH 1"},
		{`DECLARE C CURSOR FOR ` + five, "C DECLARE CURSOR"},
		{`FETCH c`, "T; D 1; C FETCH 1"},
		{`FETCH NEXT FROM C`, "T; D 2; C FETCH 1"},
		{`MOVE c`, "C MOVE 1"},
		{`FETCH FORWARD 2 IN "c"`, "T; D 4; D 5; C FETCH 2"},
		{`FETCH ALL FROM c`, "T; C FETCH 0"},
		{`FETCH c`, "T; C FETCH 0"},
		{`CLOSE c`, "C CLOSE CURSOR"},
		{`DECLARE c SCROLL CURSOR FOR ` + five, "C DECLARE CURSOR"},
		{`MOVE FORWARD 2 IN c`, "C MOVE 2"},
		{`FETCH RELATIVE 2 FROM c`, "T; D 4; C FETCH 1"},
		{`MOVE FORWARD ALL IN c`, "C MOVE 1"},
		{`CLOSE ALL`, "C CLOSE CURSOR ALL"},
		{`DECLARE c CURSOR FOR ` + five + `; FETCH 2 c; FETCH FORWARD ALL FROM c`, "C DECLARE CURSOR; T; D 1; D 2; C FETCH 2; T; D 3; D 4; D 5; C FETCH 3"},
		{`COMMIT`, "C COMMIT; Z I"},
		{`FETCH c`, "E 34000; Z I"}, // the cursor ended with its transaction
		{`DECLARE c CURSOR FOR ` + five + `; FETCH 2 FROM c; CLOSE c`, "C DECLARE CURSOR; T; D 1; D 2; C FETCH 2; C CLOSE CURSOR; Z I"},
	} {
		if got := c.simple(step[0]); got != step[1] {
			t.Errorf("%s: %s, want %s", step[0], got, step[1])
		}
	}
}

func TestCursorMistakes(t *testing.T) {
	c := start(t).wire(t)
	for _, step := range [][3]string{
		{"", `DECLARE c CURSOR FOR SELECT 1`, "25P01"},
		{"BEGIN", `FETCH nothing`, "34000"},
		{"BEGIN", `MOVE nothing`, "34000"},
		{"BEGIN", `CLOSE nothing`, "34000"},
		{"BEGIN; DECLARE c CURSOR FOR SELECT 1", `DECLARE c CURSOR FOR SELECT 2`, "42P03"},
		{"BEGIN; DECLARE c SCROLL CURSOR FOR SELECT 1", `FETCH PRIOR FROM c`, "0A000"},
		{"BEGIN; DECLARE c CURSOR FOR SELECT 1", `FETCH -1 FROM c`, "0A000"},
		{"BEGIN; DECLARE c CURSOR FOR SELECT 1", `FETCH BACKWARD ALL FROM c`, "0A000"},
		{"BEGIN; DECLARE c CURSOR FOR SELECT 1", `MOVE ABSOLUTE 1 IN c`, "0A000"},
		{"BEGIN; DECLARE c CURSOR FOR SELECT 1", `FETCH 1 2 FROM c`, "42601"},
		{"BEGIN", `FETCH`, "42601"},
		{"BEGIN", `CLOSE`, "42601"},
		{"BEGIN", `DECLARE c`, "42601"},
		{"BEGIN", `DECLARE c CURSOR FOR`, "42601"},
		{"BEGIN", `DECLARE c CURSOR FOR DELETE FROM users`, "42601"},
		{"BEGIN", `DECLARE c CURSOR FOR DECLARE d CURSOR FOR SELECT 1`, "42601"},
		{"BEGIN", `DECLARE c CURSOR FOR WITH x AS (SELECT 1) DELETE FROM users`, "0A000"},
		{"BEGIN", `DECLARE c CURSOR FOR SELECT missing FROM users`, "42703"},
		{"BEGIN", `DECLARE c CURSOR FOR SELECT $1::int`, "42P02"},
		{"BEGIN", `DECLARE c CURSOR WITH HOLD FOR SELECT 1`, "0A000"},
		{"", `DECLARE c CURSOR WITH HOLD FOR SELECT 1 FROM users FOR UPDATE`, "0A000"},
		{"", `DROP SCHEMA public`, "0A000"},
	} {
		if step[0] != "" {
			c.simple(step[0])
		}
		if got, _, _ := strings.Cut(c.simple(step[1]), ";"); got != "E "+step[2] {
			t.Errorf("%s, %s: %s, want %s", step[0], step[1], got, step[2])
		}
		c.simple("ROLLBACK")
	}
}

// The extended protocol describes the rows of FETCH, returns them in the requested formats, and binds the parameters of
// a cursor's query.
func TestCursorInTheExtendedProtocol(t *testing.T) {
	conn := start(t).connect(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `DECLARE c CURSOR FOR SELECT id, name, active, born FROM users WHERE id >= $1 ORDER BY id`, 1); err != nil {
		t.Fatal(err)
	}
	type user struct {
		ID     int32
		Name   string
		Active bool
		Born   time.Time
	}
	for want := 2; want >= 0; want -= 2 {
		rows, err := tx.Query(t.Context(), `FETCH 10 FROM c`)
		if err != nil {
			t.Fatal(err)
		}
		users, err := pgx.CollectRows(rows, pgx.RowToStructByPos[user])
		if err != nil || len(users) != want || rows.CommandTag().String() != fmt.Sprintf("FETCH %d", want) {
			t.Fatalf("%v, %v, %s", users, err, rows.CommandTag())
		}
		if want == 2 && (users[1].Name != "grace" || users[0].Born.Year() != 1815) {
			t.Errorf("%v", users)
		}
	}
	// A new cursor of that name has other columns.
	if _, err := tx.Exec(t.Context(), `CLOSE c; DECLARE c CURSOR FOR SELECT 'x'`); err != nil {
		t.Fatal(err)
	}
	res := tx.Conn().PgConn().ExecParams(t.Context(), `FETCH c`, nil, nil, nil, nil).Read()
	if res.Err != nil || len(res.Rows) != 1 || string(res.Rows[0][0]) != "x" {
		t.Errorf("%v %v", res.Rows, res.Err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A cursor is a portal: the protocol describes, executes and closes it, and FETCH reads a portal of the protocol.
func TestCursorIsAPortal(t *testing.T) {
	c := start(t).wire(t)
	c.simple(`BEGIN; DECLARE c CURSOR FOR ` + five)
	c.w.Send(&pgwire.Describe{Object: pgwire.ObjectPortal, Name: "c"})
	c.w.Send(&pgwire.Execute{Portal: "c", MaxRows: 2})
	c.w.Send(&pgwire.Parse{Query: "FETCH 3 FROM c"})
	c.w.Send(&pgwire.Describe{Object: pgwire.ObjectStatement})
	c.w.Send(&pgwire.Bind{})
	c.w.Send(&pgwire.Execute{MaxRows: 2})
	c.w.Send(&pgwire.Execute{MaxRows: 2})
	c.w.Send(&pgwire.Close{Object: pgwire.ObjectPortal, Name: "c"})
	c.w.Send(&pgwire.Parse{Query: five})
	c.w.Send(&pgwire.Bind{Portal: "p"})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "T", "D 1", "D 2", "s", "1", "t", "T", "2", "D 3", "D 4", "s", "D 5", "C FETCH 1", "3", "1", "2", "Z T")
	if got := c.simple(`FETCH 2 FROM p; FETCH c`); got != "T; D 1; D 2; C FETCH 2; E 34000; Z E" {
		t.Error(got)
	}
}

// A cursor WITH HOLD survives committed and failed transactions.
func TestCursorWithHold(t *testing.T) {
	c := start(t).wire(t)
	for _, step := range [][2]string{
		{`DECLARE h CURSOR WITH HOLD FOR SELECT name FROM users ORDER BY id`, "C DECLARE CURSOR; Z I"},
		{`UPDATE users SET name = name || '!'`, "C UPDATE 2; Z I"},
		{`BEGIN`, "C BEGIN"},
		{`FETCH h`, "T; D ada; C FETCH 1"}, // in the snapshot of the DECLARE
		{`SELECT missing`, "E 42703; Z E"},
		{`ROLLBACK`, "C ROLLBACK; Z I"},
		{`FETCH 5 FROM h`, "T; D grace; C FETCH 1; Z I"},
		{`CLOSE h`, "C CLOSE CURSOR; Z I"},
		{`FETCH h`, "E 34000; Z I"},
		{`DECLARE h CURSOR WITH HOLD FOR SELECT name FROM users`, "C DECLARE CURSOR; Z I"},
		{`DISCARD ALL`, "C DISCARD ALL; Z I"},
		{`CLOSE h`, "E 34000; Z I"},
	} {
		if got := c.simple(step[0]); got != step[1] {
			t.Errorf("%s: %s, want %s", step[0], got, step[1])
		}
	}
}

// A session whose cursor holds a connection is ended when it sends nothing, like one in a transaction.
func TestCursorWithHoldAndAnIdleClient(t *testing.T) {
	c := start(t, shortIdle).wire(t)
	c.simple(`DECLARE h CURSOR WITH HOLD FOR ` + five)
	c.want(c.until(pgwire.TypeErrorResponse), "E 25P03")
}

// An endless fetch can be canceled; its cursor is then closed.
func TestCancelOfAFetch(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `DECLARE h CURSOR WITH HOLD FOR WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i FROM r`)
	ctx, cancel := context.WithCancel(t.Context())
	rows, err := conn.Query(ctx, `FETCH ALL FROM h`)
	if err != nil {
		t.Fatal(err)
	}
	if !rows.Next() {
		t.Fatal("no row:", rows.Err())
	}
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
	}
	wantState(t, rows.Err(), "57014", "a fetch that was canceled")
	cancel()
	_, err = conn.Exec(t.Context(), `CLOSE h`)
	wantState(t, err, "34000", "the cursor of a fetch that was canceled")
	if n := one[int64](t, conn, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
}

// Cursors are bounded in number and in the bytes of their queries, and release their connections.
func TestCursorsAreBounded(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.MaxMessage = 1 << 20 })
	conn := s.connect(t)
	large := "'" + strings.Repeat("x", 900<<10) + "'"
	declare := func(query string) error {
		mustExec(t, conn, "BEGIN")
		var err error
		for i := 0; err == nil && i <= 100; i++ {
			_, err = conn.Exec(t.Context(), fmt.Sprintf("DECLARE c%d CURSOR FOR %s", i, query))
		}
		mustExec(t, conn, "ROLLBACK")
		return err
	}
	wantState(t, declare("SELECT length("+large+") WHERE false"), "53400", "cursors with large queries")
	wantState(t, declare("SELECT 1 WHERE false"), "53400", "many cursors") // each is at its end
	var got []string
	for range 20 { // more than the connections
		mustExec(t, conn, `DECLARE h CURSOR WITH HOLD FOR SELECT 1`)
		res, err := conn.PgConn().Exec(t.Context(), `FETCH ALL FROM h; CLOSE h`).ReadAll()
		if err = errors.Join(err, errOf(res)); err != nil {
			t.Fatal(err)
		}
		got = append(got, res[0].CommandTag.String())
	}
	if slices.ContainsFunc(got, func(tag string) bool { return tag != "FETCH 1" }) {
		t.Error(got)
	}
}

func errOf(results []*pgconn.Result) error {
	var errs []error
	for _, r := range results {
		errs = append(errs, r.Err)
	}
	return errors.Join(errs...)
}

// The cursors and portals of a transaction share one reader, so that they neither wait for one another nor starve other
// sessions.
func TestCursorsShareAReader(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.MaxSize, c.Limits.AcquireTimeout = 2, time.Hour })
	c, other := s.wire(t), s.connect(t)
	c.simple(`BEGIN`)
	for i := range 20 {
		if got := c.simple(fmt.Sprintf(`DECLARE c%d CURSOR FOR SELECT id FROM users ORDER BY id; FETCH c%d`, i, i)); got != "C DECLARE CURSOR; T; D 1; C FETCH 1" {
			t.Fatal(got)
		}
		c.w.Send(&pgwire.Parse{Query: five})
		c.w.Send(&pgwire.Bind{Portal: fmt.Sprint(i)})
		c.w.Send(&pgwire.Execute{Portal: fmt.Sprint(i), MaxRows: 1})
		c.w.Send(&pgwire.Sync{})
		c.want(c.until(pgwire.TypeReadyForQuery), "1", "2", "D 1", "s", "Z T")
		if n := one[int64](t, other, `SELECT count(*) FROM users`); n != 2 {
			t.Error(n)
		}
	}
	mustExec(t, other, `DELETE FROM users WHERE id = 2`)
	if got := c.simple(`SELECT count(*) FROM users; CLOSE c0; FETCH ALL FROM c1; FETCH c2`); got != "T; D 1; C SELECT 1; C CLOSE CURSOR; T; D 2; C FETCH 1; T; D 2; C FETCH 1" {
		t.Error(got)
	}
	c.simple(`COMMIT`)
	if got := c.simple(`SELECT count(*) FROM users`); got != "T; D 1; C SELECT 1; Z I" {
		t.Error(got)
	}
}

// A session whose cursors hold all readers gets an error at once: no reader would be released while it waits.
func TestCursorsThatHoldAllReaders(t *testing.T) {
	c := start(t, func(c *sqlite.Config) { c.Limits.MaxSize, c.Limits.AcquireTimeout = 2, time.Hour }).wire(t)
	for _, step := range [][2]string{
		{`DECLARE a CURSOR WITH HOLD FOR ` + five, "C DECLARE CURSOR; Z I"},
		{`DECLARE b CURSOR WITH HOLD FOR ` + five, "C DECLARE CURSOR; Z I"},
		{`DECLARE c CURSOR WITH HOLD FOR ` + five, "E 53400; Z I"},
		{`SELECT 1`, "E 53400; Z I"},
		{`CLOSE a`, "C CLOSE CURSOR; Z I"},
		{`SELECT 1; FETCH b`, "T; D 1; C SELECT 1; T; D 1; C FETCH 1; Z I"},
	} {
		if got := c.simple(step[0]); got != step[1] {
			t.Errorf("%s: %s, want %s", step[0], got, step[1])
		}
	}
}

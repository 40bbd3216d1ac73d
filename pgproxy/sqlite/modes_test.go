package sqlite_test

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/pgwire"
)

// Transactions have the session's default modes. Drivers set them in different ways.
func TestDefaultModesOfTransactions(t *testing.T) {
	s := start(t)
	for _, set := range []string{
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET default_transaction_read_only = true", "SET default_transaction_read_only TO 'on'",
		"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
	} {
		conn := s.connect(t)
		mustExec(t, conn, set)
		for _, sql := range []string{"DELETE FROM posts", "CREATE TABLE made (x)", "BEGIN; DELETE FROM posts; COMMIT"} {
			_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
			wantState(t, err, "25006", set+"; "+sql)
			mustExec(t, conn, "ROLLBACK")
		}
		if got := one[string](t, conn, "SHOW transaction_read_only"); got != "on" {
			t.Errorf("%s: transaction_read_only is %s", set, got)
		}
		mustExec(t, conn, "BEGIN READ WRITE; UPDATE posts SET title = 'new'; COMMIT", pgx.QueryExecModeSimpleProtocol)
		mustExec(t, conn, "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE")
		mustExec(t, conn, "UPDATE posts SET title = 'newer'")
	}
}

// A serializable transaction runs alone, however it was requested.
func TestSerializableByDefault(t *testing.T) {
	s := start(t)
	for _, begin := range []string{
		"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE; BEGIN", "SET default_transaction_isolation = 'repeatable read'; BEGIN",
		"BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN; SET transaction_isolation TO serializable", "START TRANSACTION ISOLATION LEVEL REPEATABLE READ",
	} {
		one1, other := s.connect(t), s.connect(t)
		mustExec(t, one1, begin, pgx.QueryExecModeSimpleProtocol)
		if got := one[string](t, one1, "SHOW TRANSACTION ISOLATION LEVEL"); got != "serializable" && got != "repeatable read" {
			t.Errorf("%s: the isolation level is %s", begin, got)
		}
		before := one[int64](t, one1, "SELECT age FROM users WHERE id = 1")
		mustExec(t, other, "SET statement_timeout = 20")
		_, err := other.Exec(t.Context(), "UPDATE users SET age = age + 1 WHERE id = 1")
		wantState(t, err, "57014", begin+": a write of another client")
		mustExec(t, one1, "UPDATE users SET age = age + 1 WHERE id = 1")
		mustExec(t, one1, "COMMIT")
		if after := one[int64](t, one1, "SELECT age FROM users WHERE id = 1"); after != before+1 {
			t.Errorf("%s: age went from %d to %d", begin, before, after)
		}
		_ = one1.Close(context.Background())
		_ = other.Close(context.Background())
	}
}

// Settings are rolled back with their transaction.
func TestSettingsOfATransaction(t *testing.T) {
	conn := start(t).connect(t)
	const before = "31s" // longer than any statement
	mustExec(t, conn, "SET statement_timeout = '31s'; SET application_name = 'mine'", pgx.QueryExecModeSimpleProtocol)
	for sql, want := range map[string]string{
		"BEGIN; SET LOCAL statement_timeout = '32s'; COMMIT":                                                        before,
		"BEGIN; SET LOCAL statement_timeout = '32s'; ROLLBACK":                                                      before,
		"BEGIN; SET statement_timeout = '32s'; ROLLBACK":                                                            before,
		"BEGIN; SET statement_timeout = '32s'; SELECT * FROM nowhere":                                               before,
		"BEGIN; SET LOCAL statement_timeout = '33s'; SET statement_timeout = '32s'; COMMIT":                         "32s",
		"BEGIN; SET statement_timeout = '32s'; SET LOCAL statement_timeout = '33s'; COMMIT":                         "32s",
		"SET LOCAL statement_timeout = '32s'":                                                                       before,
		"SELECT set_config('statement_timeout', '32s', true)":                                                       before,
		"SELECT set_config('statement_timeout', '32s', false)":                                                      "32s",
		"SET statement_timeout = '32s'; SELECT * FROM nowhere":                                                      before,
		"BEGIN; SET LOCAL application_name = 'other'; SET a.b = 'c'; SET LOCAL TIME ZONE 'Asia/Tokyo'; ROLLBACK":    before,
		"BEGIN; SET LOCAL statement_timeout = '32s'; COMMIT AND CHAIN; SET LOCAL statement_timeout = '33s'; COMMIT": before,
		"BEGIN; SAVEPOINT s; SET statement_timeout = '32s'; RELEASE s; COMMIT":                                      "32s",
	} {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil && !strings.Contains(sql, "nowhere") {
			t.Fatalf("%s: %v", sql, err)
		}
		mustExec(t, conn, "ROLLBACK")
		if got := one[string](t, conn, "SHOW statement_timeout"); got != want {
			t.Errorf("after %s: statement_timeout is %s, want %s", sql, got, want)
		}
		if got := one[string](t, conn, "SHOW application_name"); got != "mine" || conn.PgConn().ParameterStatus("application_name") != "mine" {
			t.Errorf("after %s: application_name is %s, and was reported as %s", sql, got, conn.PgConn().ParameterStatus("application_name"))
		}
		if got := one[string](t, conn, "SHOW TimeZone"); got != "UTC" {
			t.Errorf("after %s: TimeZone is %s", sql, got)
		}
		if _, err := conn.Exec(t.Context(), "SHOW a.b"); err == nil {
			t.Errorf("after %s: a.b is still set", sql)
		}
		mustExec(t, conn, "SET statement_timeout = '31s'")
	}
}

// COMMIT AND CHAIN begins the next transaction.
func TestChainedTransactions(t *testing.T) {
	c := start(t).wire(t)
	for _, step := range [][]string{
		{"COMMIT AND CHAIN", "E 25P01", "Z I"},
		{"BEGIN READ ONLY", "C BEGIN", "Z T"},
		{"COMMIT AND CHAIN", "C COMMIT", "Z T"},
		{"DELETE FROM posts", "E 25006", "Z E"},
		{"ROLLBACK AND CHAIN", "C ROLLBACK", "Z T"},
		{"ROLLBACK AND NO CHAIN", "C ROLLBACK", "Z I"},
		{"BEGIN; DELETE FROM posts; COMMIT AND CHAIN; DELETE FROM users; ROLLBACK", "C BEGIN", "C DELETE 1", "C COMMIT", "C DELETE 2", "C ROLLBACK", "Z I"},
		{"SELECT count(*) FROM users", "T", "D 2", "C SELECT 1", "Z I"},
	} {
		c.w.Send(&pgwire.Query{SQL: step[0]})
		c.want(c.until(pgwire.TypeReadyForQuery), step[1:]...)
	}
}

// DEALLOCATE has PostgreSQL's answer: gateways read it.
func TestDeallocate(t *testing.T) {
	c := start(t).wire(t)
	for _, sql := range []string{"DEALLOCATE S1", `DEALLOCATE PREPARE "s1"`, "DEALLOCATE ALL"} {
		c.w.Send(&pgwire.Parse{Name: "s1", Query: "SELECT 1"})
		c.w.Send(&pgwire.Sync{})
		c.want(c.until(pgwire.TypeReadyForQuery), "1", "Z I")
		tag := "DEALLOCATE"
		if strings.HasSuffix(sql, "ALL") {
			tag = sql
		}
		c.w.Send(&pgwire.Query{SQL: sql})
		c.want(c.until(pgwire.TypeReadyForQuery), "C "+tag, "Z I")
		c.w.Send(&pgwire.Bind{Statement: "s1"})
		c.w.Send(&pgwire.Sync{})
		c.want(c.until(pgwire.TypeReadyForQuery), "E 26000", "Z I")
	}
}

// JDBC leaves the type of a date or time to the server and always sends the zone of its machine.
func TestZonesOfParameters(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, "CREATE TABLE times (d DATE, t TIMESTAMP, z TIMESTAMPTZ)")
	for _, zone := range []string{"+09", "-03:30", " +09"} {
		params := [][]byte{[]byte("2020-02-01 " + strings.TrimSpace(zone)), []byte("2020-02-01 00:30:00.5" + zone), []byte("2020-02-01 00:30:00" + zone)}
		if r := conn.PgConn().ExecParams(t.Context(), "INSERT INTO times VALUES ($1, $2, $3)", params, nil, nil, nil).Read(); r.Err != nil {
			t.Fatal(zone, r.Err)
		}
		r := conn.PgConn().ExecParams(t.Context(), "DELETE FROM times RETURNING d, t, z", nil, nil, nil, nil).Read()
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		want := "2020-01-31 15:30:00+00"
		if strings.HasPrefix(zone, "-") {
			want = "2020-02-01 04:00:00+00"
		}
		if d, ts, z := string(r.Rows[0][0]), string(r.Rows[0][1]), string(r.Rows[0][2]); d != "2020-02-01" || ts != "2020-02-01 00:30:00.5" || z != want {
			t.Errorf("zone %s: %s, %s, %s", zone, d, ts, z)
		}
	}
}

// A date is the same day in both formats.
func TestDatesWithATimeOfDay(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, "CREATE TABLE days (d DATE)")
	for _, day := range []string{"1960-01-01 10:00:00", "1969-12-31 12:00:00", "1970-01-01 12:00:00", "0001-01-01 23:59:59", "2000-01-01", "1999-12-31 01:00:00"} {
		mustExec(t, conn, "INSERT INTO days VALUES (CAST($1 AS TEXT))", day)
		var text [2]string
		for format := range int16(2) {
			r := conn.PgConn().ExecParams(t.Context(), "SELECT d FROM days", nil, nil, nil, []int16{format}).Read()
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			text[format] = string(r.Rows[0][0])
		}
		days := int32(binary.BigEndian.Uint32([]byte(text[1])))
		text[1] = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, int(days)).Format(time.DateOnly)
		if text[0] != day[:10] || text[1] != day[:10] {
			t.Errorf("%s: %s as text, %s in binary", day, text[0], text[1])
		}
		mustExec(t, conn, "DELETE FROM days")
	}
}

// TestResetOfAsyncpg runs what asyncpg's pool sends when a connection is released to it.
func TestResetOfAsyncpg(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL")
}

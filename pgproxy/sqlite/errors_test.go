package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pool/sqlitepool"
	"github.com/jackc/pgx/v5"
)

func TestErrorsHaveSQLSTATE(t *testing.T) {
	conn := start(t).connect(t)
	for sql, state := range map[string]string{
		`INSERT INTO users (name) VALUES ('ada')`:                "23505",
		`INSERT INTO posts (author) VALUES (99)`:                 "23503",
		`INSERT INTO posts (title) VALUES ('x')`:                 "23502",
		`UPDATE users SET age = -1`:                              "23514",
		`SELECT * FROM nowhere`:                                  "42P01",
		`SELECT missing FROM users`:                              "42703",
		`SELEC 1`:                                                "42601",
		`SELECT 1 FROM`:                                          "42601",
		`SELECT nofunction(1)`:                                   "42883",
		`CREATE TABLE users (id int)`:                            "42P07",
		`LISTEN x`:                                               "0A000",
		`COPY users FROM PROGRAM 'cat'`:                          "0A000",
		`CREATE EXTENSION x`:                                     "0A000",
		`CREATE TEMP TABLE x (a int)`:                            "0A000",
		`PRAGMA journal_mode = DELETE`:                           "0A000",
		`ATTACH '/tmp/x' AS y`:                                   "0A000",
		`VACUUM INTO '/tmp/x'`:                                   "0A000",
		`SELECT $1::int8; SELECT 2`:                              "42P02",
		`SHOW nothing_of_the_kind`:                               "42704",
		`SET client_encoding = LATIN1`:                           "0A000",
		`SELECT 9223372036854775807 + abs(-9223372036854775808)`: "22003",
		`SELECT 'maybe'::bool`:                                   "22P02",
		`DEALLOCATE nothing`:                                     "26000",
	} {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		wantState(t, err, state, sql)
	}
	if n := one[int64](t, conn, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users after failed statements", n)
	}
}

func TestErrorPosition(t *testing.T) {
	conn := start(t).connect(t)
	_, err := conn.Exec(t.Context(), `SELECT 'é', $1::int8 FROM nowhere`, pgx.QueryExecModeExec, 1)
	wantState(t, err, "42P01", "no such table")
	_, err = conn.Exec(t.Context(), `SELECT 1; SELECT 'é', 5::int8 FROMM users x y`, pgx.QueryExecModeSimpleProtocol)
	if pg := wantState(t, err, "42601", "syntax error"); pg.Position < 30 || pg.Position > 45 {
		t.Errorf("position %d: %s", pg.Position, pg.Message)
	}
}

func TestReadOnlyFile(t *testing.T) {
	made := start(t)
	conn := made.connect(t)
	conn.Close(context.Background())
	path := filepath.Join(t.TempDir(), "copy.db")
	data, err := os.ReadFile(made.path)
	if err != nil {
		t.Fatal(err)
	}
	wal, err := os.ReadFile(made.path + "-wal")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{path: data, path + "-wal": wal} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, func(c *sqlite.Config) { c.Path, c.ReadOnly = path, true })
	conn = s.connect(t)
	if n := one[int64](t, conn, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
	_, err = conn.Exec(t.Context(), `DELETE FROM users`)
	wantState(t, err, "25006", "write to a read-only file")
	if st := s.b.Status(); len(st.Endpoints) != 1 {
		t.Errorf("status of a read-only file: %+v", st)
	}
}

// A file that may not grow is reported with a clear error, and not counted as an internal error. SQLite's message is
// the same as for a full disk.
func TestFullDisk(t *testing.T) {
	s := start(t)
	if err := s.b.Exec(t.Context(), "PRAGMA max_page_count = 1"); err != nil { // the limit becomes the current size
		t.Fatal(err)
	}
	conn := s.connect(t)
	_, err := conn.Exec(t.Context(), "CREATE TABLE big AS SELECT hex(zeroblob(1000000)) AS x")
	wantState(t, err, "53100", "a table for which there is no room")
	if err == nil || !strings.Contains(err.Error(), "the disk of the database file is full") {
		t.Errorf("the client was told %v", err)
	}
	if n := one[int64](t, conn, "SELECT count(*) FROM users"); n != 2 {
		t.Errorf("%d users", n)
	}
	if got := s.p.Stats().Errors; got["disk_full"] != 1 || got["internal"] != 0 {
		t.Errorf("counted: %v", got)
	}
}

func TestCorruptFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.db")
	if err := os.WriteFile(path, []byte("no database at all, not even close"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.New(sqlite.Config{Path: path}); !errors.Is(err, sqlitepool.ErrNotDatabase) {
		t.Errorf("New of garbage: %v", err)
	}
	whole := filepath.Join(t.TempDir(), "whole.db")
	made, err := sqlite.New(sqlite.Config{Path: whole})
	if err != nil {
		t.Fatal(err)
	}
	script := `CREATE TABLE big AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 5000) SELECT i, hex(randomblob(50)) AS x FROM r`
	if err := errors.Join(made.Exec(t.Context(), script), made.Drain(t.Context())); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for i := 8 * 4096; i < len(data); i++ {
		data[i] = 0xa5
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := sqlite.New(sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	damaged := serve(t, b, path).connect(t)
	_, err = damaged.Exec(t.Context(), `SELECT sum(length(x)) FROM big`)
	wantState(t, err, "XX001", "read of a damaged page")
}

func TestDeletedFile(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	mustExec(t, conn, `UPDATE users SET age = 3`)
	if err := os.Rename(s.path, s.path+".moved"); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Exec(t.Context(), `UPDATE users SET age = 4`)
	if pg := wantState(t, err, "58030", "write to a deleted file"); strings.Contains(pg.Message, s.path) {
		t.Errorf("the message names the file: %s", pg.Message)
	}
	if err := os.Rename(s.path+".moved", s.path); err != nil {
		t.Fatal(err)
	}
	if n := one[int64](t, conn, `SELECT age FROM users LIMIT 1`); n != 3 {
		t.Errorf("age %d", n)
	}
}

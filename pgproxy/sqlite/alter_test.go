package sqlite_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/headpond/headpond/pgproxy/sqlite"
)

// dump opens the file without the backend, checks it, and returns its schema and rows.
func (s *server) dump(t testing.TB) []string {
	t.Helper()
	conn, err := driver.OpenConn(s.path, driver.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	query := func(sql string) (rows []string) {
		err := sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *driver.Stmt) error {
			var row []string
			for i := range stmt.ColumnCount() {
				row = append(row, fmt.Sprintf("%v:%s", stmt.ColumnType(i), stmt.ColumnText(i)))
			}
			rows = append(rows, strings.Join(row, "|"))
			return nil
		}})
		if err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		return rows
	}
	if found := query(`PRAGMA integrity_check`); len(found) != 1 || !strings.HasSuffix(found[0], ":ok") {
		t.Errorf("integrity_check: %v", found)
	}
	if found := query(`PRAGMA foreign_key_check`); len(found) != 0 {
		t.Errorf("foreign_key_check: %v", found)
	}
	all := query(`SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name`)
	for _, name := range query(`SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name`) {
		_, name, _ = strings.Cut(name, ":")
		all = append(all, name)
		all = append(all, query(`SELECT * FROM "`+strings.ReplaceAll(name, `"`, `""`)+`"`)...)
	}
	return all
}

// isDefensive fails the test if the writer lets a client write to the schema table.
func isDefensive(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `UPDATE sqlite_schema SET sql = sql`)
	if err == nil || !strings.Contains(err.Error(), "may not be modified") {
		t.Fatalf("the schema table can be written: %v", err)
	}
}

const odd = `
CREATE TABLE "o, (dd" ( -- a comment, with (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	"a,b" TEXT -- it's )
		NOT NULL DEFAULT 'x,)--', /* /* */
	[c d] INT CHECK ([c d] > 0), "check" REAL DEFAULT (1 + 1), ` + "`unique`" + ` TEXT COLLATE NOCASE UNIQUE,
	late TEXT, CONSTRAINT "pos ""x""" CHECK ("check" > 0), FOREIGN KEY (late) REFERENCES keyed(k) ON DELETE SET NULL ON UPDATE SET DEFAULT
);
CREATE TABLE keyed (k TEXT PRIMARY KEY, v INT, w INT AS (v + 1), UNIQUE (v, k)) WITHOUT ROWID;
CREATE TABLE strict (id INTEGER PRIMARY KEY, n INT, s TEXT) STRICT;
CREATE TABLE log (what TEXT);
CREATE INDEX part ON "o, (dd" (id) WHERE "a,b" > 5;
CREATE INDEX expr ON "o, (dd" (lower("a,b"), [c d] DESC);
CREATE VIEW seen AS SELECT "a,b", [c d] AS cd FROM "o, (dd";
CREATE TRIGGER logged AFTER UPDATE ON "o, (dd" BEGIN INSERT INTO log VALUES ('updated ' || new."a,b"); END;
CREATE TRIGGER gone AFTER DELETE ON "o, (dd" BEGIN INSERT INTO log VALUES ('deleted'); END;
INSERT INTO keyed (k, v) VALUES ('1', 1), ('02', 2);
INSERT INTO strict VALUES (1, 2, '3');
INSERT INTO "o, (dd" ("a,b", [c d], "unique", late) VALUES ('3', 1, 'q', '1'), ('10', 2, 'r', '02');
ALTER TABLE "o, (dd" ADD COLUMN added INT DEFAULT 7;
CREATE INDEX on_added ON "o, (dd" (added);`

func startOdd(t *testing.T) (*server, *pgx.Conn) {
	s := start(t)
	s.foreign(t, odd)
	return s, s.connect(t)
}

// A refused statement leaves the file unchanged.
func TestFailedAlter(t *testing.T) {
	s, conn := startOdd(t)
	mustExec(t, conn, `CREATE TABLE bad (id serial PRIMARY KEY, a text, b int, c int)`)
	mustExec(t, conn, `INSERT INTO bad (a, b, c) VALUES ('abc', NULL, -1), ('2', 99, -1)`)
	mustExec(t, conn, `CREATE TABLE child (bad int REFERENCES bad(id) ON DELETE CASCADE)`)
	mustExec(t, conn, `INSERT INTO child VALUES (1)`)
	before := s.dump(t)
	for _, test := range [][2]string{
		{`ALTER TABLE bad ALTER COLUMN a TYPE integer`, "22P02"},
		{`ALTER TABLE bad ALTER COLUMN a TYPE integer USING nowhere`, "42703"},
		{`ALTER TABLE bad ALTER COLUMN a TYPE integer USING 1 WHERE id = 1`, "42601"},
		{`ALTER TABLE bad ALTER COLUMN a TYPE integer nonsense`, "42601"},
		{`ALTER TABLE bad ALTER COLUMN b SET NOT NULL`, "23502"},
		{`ALTER TABLE bad ALTER COLUMN c SET DEFAULT 5, ALTER COLUMN b SET NOT NULL`, "23502"},
		{`ALTER TABLE bad ADD CHECK (c > 0)`, "23514"},
		{`ALTER TABLE bad ADD CONSTRAINT u UNIQUE (c)`, "23505"},
		{`ALTER TABLE bad ADD CONSTRAINT u UNIQUE (nowhere)`, "42703"},
		{`ALTER TABLE bad ADD FOREIGN KEY (b) REFERENCES users(id)`, "23503"},
		{`ALTER TABLE bad ADD FOREIGN KEY (b) REFERENCES nowhere(id)`, "42P01"},
		{`ALTER TABLE bad ADD FOREIGN KEY (id) REFERENCES posts(title)`, "42830"},
		{`ALTER TABLE bad ADD CHECK (id > 0) STRICT`, "42601"},
		{`ALTER TABLE bad ADD COLUMN`, "42601"},
		{`ALTER TABLE bad ADD COLUMN z int NOT NULL`, "23502"},
		{`ALTER TABLE bad RENAME TO`, "42601"},
		{`ALTER TABLE bad RENAME COLUMN a TO`, "42601"},
		{`ALTER TABLE bad DROP COLUMN a b`, "42601"},
		{`ALTER TABLE bad DROP CONSTRAINT nowhere`, "42704"},
		{`ALTER TABLE bad DROP CONSTRAINT bad_pkey`, "0A000"},
		{`ALTER TABLE "o, (dd" ADD CONSTRAINT "pos ""x""" CHECK (id > 0)`, "42710"},
		{`ALTER TABLE "o, (dd" DROP CONSTRAINT part`, "42704"},
		{`ALTER TABLE keyed ALTER COLUMN v TYPE text`, "0A000"},
		{`ALTER TABLE strict ALTER COLUMN n TYPE varchar(5)`, "42601"},
		{`ALTER TABLE sqlite_sequence ADD CHECK (1)`, "42501"},
		{`ALTER TABLE seen ALTER COLUMN cd SET NOT NULL`, "0A000"},
		{`DROP TABLE bad`, "2BP01"},
		{`DROP TABLE log, bad`, "2BP01"},
		{`DROP TABLE log bad`, "42601"},
		{`TRUNCATE bad`, "0A000"},
		{`TRUNCATE log bad`, "42601"},
	} {
		_, err := conn.Exec(t.Context(), test[0], pgx.QueryExecModeSimpleProtocol)
		wantState(t, err, test[1], test[0])
		if after := s.dump(t); !slices.Equal(before, after) {
			t.Fatalf("%s leaves\n%s", test[0], strings.Join(after, "\n"))
		}
		isDefensive(t, conn)
	}
	mustExec(t, conn, `INSERT INTO bad DEFAULT VALUES`)
}

// Rows of other tables stay, and no foreign key refers to a dropped table.
func TestDropAndTruncateCascade(t *testing.T) {
	s, conn := startOdd(t)
	mustExec(t, conn, `DROP TABLE users CASCADE`)
	if n := one[int64](t, conn, `SELECT count(*) FROM posts`); n != 1 {
		t.Errorf("%d posts", n)
	}
	mustExec(t, conn, `INSERT INTO posts (author) VALUES (99)`)
	s.foreign(t, `DROP VIEW names`)
	s.dump(t)
	mustExec(t, conn, `TRUNCATE keyed RESTART IDENTITY CASCADE`)
	for _, table := range []string{"keyed", `"o, (dd"`, "log"} {
		if n := one[int64](t, conn, `SELECT count(*) FROM `+table); n != 0 {
			t.Errorf("%d rows in %s", n, table)
		}
	}
	mustExec(t, conn, `DROP TABLE keyed, "o, (dd"`)
	s.foreign(t, `DROP VIEW seen`)
	s.dump(t)
}

// A statement that is cancelled at any moment has either no effect or its whole effect.
func TestAlterInterrupted(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	mustExec(t, conn, `CREATE TABLE big (id INTEGER PRIMARY KEY, a text UNIQUE, b int)`)
	mustExec(t, conn, `INSERT INTO big SELECT i, i, i FROM generate_series(1, 3000) AS g(i)`)
	before := s.dump(t)
	for ms := 1; ms < 40; ms += 3 {
		mustExec(t, conn, fmt.Sprintf(`SET statement_timeout = '%dms'`, ms))
		_, err := conn.Exec(t.Context(), `ALTER TABLE big ADD CHECK (b > 0), ALTER COLUMN b SET NOT NULL, ALTER COLUMN a TYPE integer`)
		mustExec(t, conn, `RESET statement_timeout`)
		isDefensive(t, conn)
		if err == nil {
			break
		}
		wantState(t, err, "57014", "ALTER TABLE")
		if after := s.dump(t); !slices.Equal(before, after) {
			t.Fatalf("cancelled after %d ms it leaves %s", ms, after[0])
		}
	}
}

// Connections of this process and of others read the schema again.
func TestAlterSeenByOthers(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.MaxSize = 2 })
	conn := s.connect(t)
	other, err := driver.OpenConn(s.path, driver.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	const insert = `INSERT INTO posts (author, title) VALUES (1, NULL)`
	if err := sqlitex.Execute(other, insert, nil); err != nil { // and keep it compiled
		t.Fatal(err)
	}
	mustExec(t, conn, `DELETE FROM posts WHERE title IS NULL`)
	mustExec(t, conn, `ALTER TABLE posts ALTER COLUMN title SET NOT NULL`)
	if err := sqlitex.Execute(other, insert, nil); driver.ErrCode(err) != driver.ResultConstraintNotNull {
		t.Errorf("another process writes NULL: %v", err)
	}
}

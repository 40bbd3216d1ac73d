package sqlite_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

func TestDriverFieldsAreWhereExpected(t *testing.T) {
	if !sqlite.NativeOK() {
		t.Error("the driver's fields moved: declared column types are lost")
	}
}

func TestDeclaredTypes(t *testing.T) {
	s := start(t)
	for name, mode := range map[string]pgx.QueryExecMode{
		"prepared": pgx.QueryExecModeCacheStatement, "described": pgx.QueryExecModeDescribeExec,
		"exec": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.connect(t)
			var (
				id, age  int64
				nick     string
				active   bool
				score    float64
				avatar   []byte
				born, at time.Time
				price    float64
				email    *string
			)
			err := conn.QueryRow(t.Context(), `SELECT u.id AS x, name AS nick, active, score, avatar, born, seen, price, age, NULL
				FROM users u WHERE id = $1`, mode, 1).Scan(&id, &nick, &active, &score, &avatar, &born, &at, &price, &age, &email)
			if err != nil {
				t.Fatal(err)
			}
			if id != 1 || nick != "ada" || !active || score != 1.5 || !bytes.Equal(avatar, []byte{0, 255}) || price != 12.5 || age != 36 || email != nil {
				t.Error("wrong values:", id, nick, active, score, avatar, price, age, email)
			}
			if born.Format(time.DateOnly) != "1815-12-10" || at.Format(time.DateTime) != "2026-01-02 03:04:05" {
				t.Error("wrong times:", born, at)
			}
		})
	}
}

// The dimension of generate_subscripts may be a parameter: asyncpg sends every number of SQLAlchemy as one.
func TestSubscriptsOfADimension(t *testing.T) {
	conn := start(t).connect(t)
	for dimension, want := range map[int]int{1: 2, 2: 0} {
		rows, err := conn.Query(t.Context(), `SELECT generate_subscripts('{7,8}'::int[], $1::INTEGER)`, dimension)
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for rows.Next() {
			got++
		}
		if rows.Err() != nil || got != want {
			t.Errorf("dimension %d: %d rows, want %d, %v", dimension, got, want, rows.Err())
		}
	}
}

// Results contain the length of VARCHAR, which Django's inspectdb reads, and the digits of NUMERIC.
func TestModifiersOfResults(t *testing.T) {
	conn := start(t).connect(t)
	res := conn.PgConn().ExecParams(t.Context(), `SELECT email, price, name, email || 'x' FROM users LIMIT 1`, nil, nil, nil, nil).Read()
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	for i, want := range []int32{100 + 4, 10<<16 + 2 + 4, -1, -1} {
		if f := res.FieldDescriptions[i]; f.TypeModifier != want {
			t.Errorf("%s: %d, want %d", f.Name, f.TypeModifier, want)
		}
	}
}

func TestExpressionTypes(t *testing.T) {
	conn := start(t).connect(t)
	for sql, want := range map[string]any{
		`SELECT 1`: int32(1), `SELECT 1.5`: 1.5, `SELECT 'a'`: "a", `SELECT x'01'`: []byte{1}, `SELECT true`: true,
		`SELECT count(*) FROM users`: int64(2), `SELECT count(*) + 1 FROM users`: int64(3), `SELECT max(score) FROM users`: 2.0,
		`SELECT sum(age) FROM users`: int64(121), `SELECT avg(age) FROM users`: 60.5, `SELECT coalesce(email, 'none') FROM users WHERE id = 2`: "none",
		`SELECT EXISTS (SELECT 1 FROM users)`: true, `SELECT id = 1 FROM users WHERE id = 1`: true, `SELECT name || '!' FROM users WHERE id = 1`: "ada!",
		`SELECT CASE WHEN active THEN 1 ELSE 0 END FROM users WHERE id = 1`: int32(1), `SELECT '7'::int`: int32(7), `SELECT 5::text`: "5",
		`SELECT (SELECT id FROM users WHERE name = 'grace')`: int32(2), `WITH a AS (SELECT 1) SELECT 'x' FROM a`: "x",
		`SELECT length(name) FROM users WHERE id = 1`: int32(3), `SELECT x FROM (SELECT id AS x FROM users) WHERE x = 2`: int32(2),
		`SELECT row_number() OVER (ORDER BY id) FROM users LIMIT 1`: int64(1), `SELECT -age FROM users WHERE id = 1`: int32(-36),
		`SELECT name LIKE 'ad%' AND active FROM users WHERE id = 1`: true, `SELECT active FROM users UNION SELECT 1 = 1`: false,
		`SELECT id FROM names WHERE name = 'ada'`: int32(1), `SELECT round(score) FROM users WHERE id = 1`: 2.0,
	} {
		var got any
		if err := conn.QueryRow(t.Context(), sql).Scan(&got); err != nil {
			t.Errorf("%s: %v", sql, err)
		} else if b, ok := want.([]byte); ok {
			if g, ok := got.([]byte); !ok || !bytes.Equal(g, b) {
				t.Errorf("%s = %#v, want %#v", sql, got, want)
			}
		} else if got != want {
			t.Errorf("%s = %#v, want %#v", sql, got, want)
		}
	}
}

func TestParameterTypes(t *testing.T) {
	conn := start(t).connect(t)
	at := time.Date(2026, 3, 4, 5, 6, 7, 123456000, time.UTC)
	mustExec(t, conn, `INSERT INTO users (name, email, active, score, avatar, born, seen, price, age) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		"edsger", "42", true, 3.25, []byte("\x00raw"), at, at, 1.25, 72)
	for sql, arg := range map[string]any{
		`name = $1`: "edsger", `email = $1`: "42", `active = $1 AND id = 3`: true, `score = $1`: 3.25, `avatar = $1`: []byte("\x00raw"), `seen = $1`: at,
		`price = $1`: 1.25, `age = $1`: 72, `age BETWEEN 70 AND $1 AND id = 3`: 73, `$1 < age AND id = 3`: 71, `age IN (1, $1)`: 72, `age + $1 = 73`: 1,
		`lower(name) = $1`: "edsger", `id = $1::int8`: 3, `typeof(email) = 'text' AND id = $1`: 3, `id = (SELECT count(*) FROM users LIMIT $1)`: 1,
		`id > 2 AND name LIKE $1`: "ed%",
	} {
		if id := one[int64](t, conn, `SELECT id FROM users WHERE `+sql, arg); id != 3 {
			t.Errorf("%s with %v found user %d", sql, arg, id)
		}
	}
	if v := one[string](t, conn, `SELECT $1`, "5"); v != "5" {
		t.Errorf("untyped parameter came back as %q", v)
	}
	if v := one[string](t, conn, `SELECT typeof(email) FROM users WHERE id = 3`); v != "text" {
		t.Errorf("a text was stored as %s", v)
	}
	_, err := conn.PgConn().ExecParams(t.Context(), `SELECT * FROM users WHERE age = $1`, [][]byte{[]byte("many")}, nil, nil, nil).Close()
	wantState(t, err, "22P02", "text for an integer parameter")
}

func TestValueThatDoesNotFitItsColumn(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE loose (n INTEGER)`)
	mustExec(t, conn, `INSERT INTO loose VALUES (1), ('many')`, pgx.QueryExecModeSimpleProtocol)
	rows, err := conn.Query(t.Context(), `SELECT n FROM loose ORDER BY rowid`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
	}
	if pg := wantState(t, rows.Err(), "42804", "text in an integer column"); pg.Hint == "" {
		t.Error("no hint to CAST")
	}
	_, err = conn.PgConn().Exec(t.Context(), `SELECT n FROM loose ORDER BY rowid`).ReadAll()
	wantState(t, err, "42804", "the same in a simple query")
	if s := one[string](t, conn, `SELECT CAST(n AS TEXT) FROM loose ORDER BY rowid DESC`); s != "many" {
		t.Errorf("the text is read as %q", s)
	}
}

// A text of unknown type is bound as a number only if SQLite prints that number as the same text.
func TestGuessedParametersKeepTheirText(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE texts (x TEXT)`)
	for _, s := range []string{"42", "-7", "1.5", "0.30000000000000004", "0.00001", "1234567890123456.5", "-0", "-0.0", "007", "1e5", "9223372036854775808", "", "."} {
		_, err := conn.PgConn().ExecParams(t.Context(), `INSERT INTO texts SELECT $1`, [][]byte{[]byte(s)}, nil, nil, nil).Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := one[string](t, conn, `SELECT x FROM texts`); got != s {
			t.Errorf("%q was stored as %q", s, got)
		}
		mustExec(t, conn, `DELETE FROM texts`)
	}
}

// Values that SQLite cannot store are refused, not changed.
func TestValuesSQLiteCannotKeep(t *testing.T) {
	conn := start(t).connect(t)
	_, err := conn.Exec(t.Context(), `UPDATE users SET score = $1`, math.NaN())
	wantState(t, err, "22P03", "NaN in binary")
	_, err = conn.Exec(t.Context(), `UPDATE users SET score = $1`, pgx.QueryExecModeExec, "NaN")
	wantState(t, err, "22P02", "NaN as text")
	_, err = conn.Exec(t.Context(), `UPDATE users SET seen = $1`, pgtype.Timestamp{InfinityModifier: pgtype.Infinity, Valid: true})
	wantState(t, err, "22P03", "infinity in binary")
	mustExec(t, conn, `UPDATE users SET score = $1`, math.Inf(-1))
	if f := one[float64](t, conn, `SELECT score FROM users LIMIT 1`); !math.IsInf(f, -1) {
		t.Errorf("-Infinity came back as %v", f)
	}
}

// INTEGER columns with larger values, in a file made by another program.
func TestIntegersBeyondFourBytes(t *testing.T) {
	s := start(t)
	s.foreign(t, `CREATE TABLE old (id INTEGER PRIMARY KEY, at INTEGER, n INT, late INTEGER); INSERT INTO old VALUES (1, 1767225600000, 5, 5);
		WITH RECURSIVE r(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM r WHERE i < 1000) INSERT INTO old SELECT i, 1767225600000, 7, CASE i WHEN 500 THEN 5000000000 ELSE 1 END FROM r;
		CREATE VIEW seen AS SELECT at AS moment FROM old; CREATE TABLE made (id INTEGER PRIMARY KEY, n INTEGER)`)
	conn := s.connect(t)
	for sql, want := range map[string]string{
		`SELECT id FROM old LIMIT 1`: "int4 1", `SELECT at FROM old LIMIT 1`: "int8 1767225600000", `SELECT n FROM old LIMIT 1`: "int4 5", `SELECT moment + 1 FROM seen LIMIT 1`: "int8 1767225600001",
		`SELECT max(at) FROM old`: "int8 1767225600000", `SELECT late FROM old LIMIT 1`: "int4 5", `SELECT rowid FROM users LIMIT 1`: "int4 1",
	} {
		if typ, got, err := answer(t, conn, sql); err != nil || typ+" "+got != want {
			t.Errorf("%s = %s %s, %v; want %s", sql, typ, got, err, want)
		}
	}
	if id := one[int64](t, conn, `UPDATE old SET at = $1 WHERE id = 7 RETURNING at`, int64(1767225600001)); id != 1767225600001 {
		t.Errorf("stored %d", id)
	}
	// A larger value outside the checked rows is refused once and makes its column int8.
	_, _, err := answer(t, conn, `SELECT late FROM old WHERE id = 500`)
	if pg := wantState(t, err, "22003", "a large value met late"); !strings.Contains(pg.Hint, "BIGINT") {
		t.Errorf("the hint is %q", pg.Hint)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		if n := one[int64](t, conn, `SELECT late FROM old WHERE id = 500`, mode); n != 5000000000 {
			t.Errorf("the large value is %d", n)
		}
	}
	mustExec(t, conn, `INSERT INTO made VALUES (1, 3000000000)`)
	_, _, _ = answer(t, conn, `SELECT n FROM made`) // refused if the schema was already cached
	if n := one[int64](t, s.connect(t), `SELECT n FROM made`); n != 3000000000 {
		t.Errorf("stored %d", n)
	}
}

// Operations that SQLite would compute with the years of two dates are refused everywhere.
func TestDateArithmetic(t *testing.T) {
	conn := start(t).connect(t)
	for _, sql := range []string{
		`SELECT DATE '2026-01-05' - DATE '2026-01-01'`, `SELECT '2026-01-05'::date - '2026-01-01'::date`, `SELECT born - born FROM users`,
		`SELECT id FROM users u WHERE (u.born) - 1 > 5`, `UPDATE users SET age = current_date - born`, `SELECT now() - seen FROM users`,
		`SELECT 1 + (SELECT max(born) FROM users)`, `DELETE FROM users WHERE 7 + ((users.born)) = CAST($1 AS date)`, `SELECT id FROM users ORDER BY seen - $1`,
	} {
		var args []any
		if strings.Contains(sql, "$1") {
			args = []any{time.Unix(0, 0)}
		}
		_, err := conn.Exec(t.Context(), sql, args...)
		wantState(t, err, "0A000", sql)
	}
	for _, sql := range []string{
		`SELECT julianday(seen) - julianday(born) FROM users`, `SELECT date(born, '+1 day'), age - 1, extract(year FROM born) - 1 FROM users`,
		`SELECT born, -age, -1 FROM users WHERE age + 1 > 0`, `SELECT strftime('%Y', born) - 1 FROM users`, `INSERT INTO posts (author, title) VALUES (1, 2 - 1)`,
	} {
		mustExec(t, conn, sql)
	}
}

package sqlite_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/headpond/headpond/pgwire"
)

// answer returns the type and the text of the single value of a simple query.
func answer(t *testing.T, conn *pgx.Conn, sql string) (typ, value string, err error) {
	t.Helper()
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		return "", "", err
	}
	return typeOf(t, conn, results[0].FieldDescriptions[0]), string(results[0].Rows[0][0]), nil
}

func typeOf(t *testing.T, conn *pgx.Conn, f pgconn.FieldDescription) string {
	t.Helper()
	typ, ok := conn.TypeMap().TypeForOID(f.DataTypeOID)
	if !ok {
		t.Errorf("column %q has the unknown type %d", f.Name, f.DataTypeOID)
		return "?"
	}
	return typ.Name
}

// Each cast types its column and checks its value, in a simple query and in a prepared one in binary format.
func TestCasts(t *testing.T) {
	conn := start(t).connect(t)
	for sql, want := range map[string]string{
		`'7'::int`: "int4 7", `' 7 '::int4`: "int4 7", `'32767'::smallint`: "int2 32767", `2147483648::bigint`: "int8 2147483648", `1.5::int`: "int4 2", `2.5::int`: "int4 2",
		`CAST('7' AS INTEGER)`: "int4 7", `true::int`: "int4 1", `'42'::oid`: "oid 42", `'abc'::int`: "22P02", `'1.5'::int`: "22P02", `'3000000000'::int`: "22003",
		`3000000000::int`: "22003", `40000::int2`: "22003", `1e300::bigint`: "22003", `'99999999999999999999'::bigint`: "22003", `''::int`: "22P02", `x'00'::int`: "42846",
		`'1.5'::float8`: "float8 1.5", `'abc'::real`: "22P02", `'1e400'::float8`: "22003", `'NaN'::float8`: "22P02",
		`'on'::bool`: "bool t", `0::boolean`: "bool f", `'maybe'::bool`: "22P02",
		`'2024-02-29'::date`: "date 2024-02-29", `DATE '2024-02-29'`: "date 2024-02-29", `'2024-13-45'::date`: "22008", `'2023-02-29'::date`: "22008", `'soon'::date`: "22007",
		`'2024-01-02 03:04:05.5'::date`: "date 2024-01-02", `'2024-01-02T03:04:05.5+02:00'::timestamp`: "timestamp 2024-01-02 03:04:05.5",
		`TIMESTAMP WITH TIME ZONE '2024-01-02 03:04:05+02'`: "timestamptz 2024-01-02 01:04:05+00", `'2024-01-02'::timestamptz`: "timestamptz 2024-01-02 00:00:00+00",
		`'2024-01-02 25:00:00'::timestamp`: "22008", `'03:04'::time`: "time 03:04:00", `'2024-01-02 03:04:05.25'::time`: "time 03:04:05.25", `'25:00'::time`: "22008", `'x'::time`: "22007",
		`'{"a": 1}'::json`: `json {"a": 1}`, `'[1]'::jsonb`: `jsonb [1]`, `'{a}'::jsonb`: "22P02", `JSON 'null'`: "json null",
		`'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid`: "uuid a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", `'{a0eebc999c0b4ef8bb6d6bb9bd380a11}'::uuid`: "uuid a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", `'a0eebc99'::uuid`: "22P02", `'12.50'::numeric`: "numeric 12.5", `'1e3'::numeric(9,2)`: "numeric 1000", `'twelve'::numeric`: "22P02",
		`12345678901234567890.123456789`: "numeric 12345678901234567890.123456789", `9223372036854775808`: "numeric 9223372036854775808",
		`'12345678901234567.89'::numeric::text`: "text 12345678901234567.89", `12345678901234567.89::float8`: "float8 1.2345678901234568e+16",
		`12345678901234567.5::bigint`: "int8 12345678901234568", `5::text`: "text 5", `'\x0102'::bytea`: `bytea \x0102`, `'\xz'::bytea`: "22P02",
		`INTERVAL '1 day'`: "0A000", `NULL::date IS NULL`: "bool t",
	} {
		check := func(how, typ, got string, err error) {
			if !strings.Contains(want, " ") {
				wantState(t, err, want, how+" "+sql)
			} else if err != nil || typ+" "+got != want {
				t.Errorf("%s %s = %s %s, %v; want %s", how, sql, typ, got, err, want)
			}
		}
		typ, got, err := answer(t, conn, "SELECT "+sql)
		check("simple", typ, got, err)
		typ, got, err = binaryAnswer(t, conn, "SELECT "+sql)
		check("binary", typ, got, err)
	}
}

// binaryAnswer runs a query in binary format and returns the text that a client makes of the value.
func binaryAnswer(t *testing.T, conn *pgx.Conn, sql string) (typ, got string, err error) {
	t.Helper()
	r := conn.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, []int16{pgwire.FormatBinary}).Read()
	if r.Err != nil {
		return "", "", r.Err
	}
	f := r.FieldDescriptions[0]
	typ = typeOf(t, conn, f)
	var v any
	if err := conn.TypeMap().Scan(f.DataTypeOID, pgtype.BinaryFormatCode, r.Rows[0][0], &v); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
	_, text, err := answer(t, conn, sql)
	if err != nil {
		return "", "", err
	}
	var same any
	if err := conn.TypeMap().Scan(f.DataTypeOID, pgtype.TextFormatCode, []byte(text), &same); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
	encode := func(v any) string {
		b, err := conn.TypeMap().Encode(f.DataTypeOID, pgtype.TextFormatCode, v, nil)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		return string(b)
	}
	if encode(v) != encode(same) {
		t.Errorf("%s is %q in binary and %q in text", sql, encode(v), encode(same))
	}
	return typ, text, nil
}

// Values for which inference or the column's declaration gives another type.
func TestNothingContradictsItsType(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE loose (id INTEGER PRIMARY KEY, n INTEGER, small SMALLINT, u UUID, j JSON, d DATE, at TIME, s TEXT, p NUMERIC)`)
	mustExec(t, conn, `INSERT INTO loose (n, small, u, j, d, at, s, p) VALUES ('many', 70000, 'no', '{', '2024-13-01', '25:00', char(97, 0, 98), 'x')`, pgx.QueryExecModeSimpleProtocol)
	for sql, state := range map[string]string{
		`9223372036854775807 + 1`: "22003", `2147483647 + 1`: "22003", `sum(id) + 9223372036854775807 FROM loose`: "22003",
		`n FROM loose`: "42804", `u FROM loose`: "42804", `j FROM loose`: "42804", `d FROM loose`: "42804", `at FROM loose`: "42804",
		`s FROM loose`: "22021", `p FROM loose`: "42804", `CAST(x'ff' AS TEXT)`: "22021", `char(0) || 'x'`: "22021", `hex(zeroblob(40000)) || char(0)`: "22021",
		`CASE WHEN id = 1 THEN 1 END + 2147483647 FROM loose`: "22003",
	} {
		_, err := conn.PgConn().Exec(t.Context(), "SELECT "+sql).ReadAll()
		wantState(t, err, state, "simple "+sql)
		for _, format := range []int16{pgwire.FormatText, pgwire.FormatBinary} {
			wantState(t, conn.PgConn().ExecParams(t.Context(), "SELECT "+sql, nil, nil, nil, []int16{format}).Read().Err, state, "extended "+sql)
		}
	}
	for sql, want := range map[string]string{
		`+name FROM users WHERE id = 1`: "text ada", `+ +'5'`: "text 5", `-age FROM users WHERE id = 1`: "int4 -36", `CASE WHEN 1 = 2 THEN 1 ELSE 3000000000 END`: "int8 3000000000",
		`CASE WHEN 1 = 1 THEN 1.5 ELSE 1 END`: "float8 1.5", `coalesce(NULL, 1, 2.5)`: "float8 1", `4294967296 * 2`: "int8 8589934592", `sum(age) FROM users`: "int8 121",
		`1 UNION SELECT 2.5 ORDER BY 1 DESC`: "float8 2.5", `NULL UNION SELECT 7 ORDER BY 1 DESC`: "int4 7", `1 UNION ALL SELECT 'x' ORDER BY 1 DESC`: "text x",
		`now() IS NOT NULL`: "bool t", `count(*) FROM loose`: "int8 1", `CAST(s AS BLOB) FROM loose`: `bytea \x610062`,
	} {
		typ, got, err := answer(t, conn, "SELECT "+sql)
		if err != nil || typ+" "+got != want {
			t.Errorf("%s = %s %s, %v; want %s", sql, typ, got, err, want)
		}
	}
}

// The functions with which reports group by time.
func TestTimeFunctions(t *testing.T) {
	conn := start(t).connect(t)
	for sql, want := range map[string]string{
		`EXTRACT(year FROM born) FROM users WHERE id = 1`: "numeric 1815", `extract(epoch from timestamp '2024-01-01')`: "numeric 1704067200",
		`EXTRACT(DOW FROM DATE '2024-03-03')`: "numeric 0", `EXTRACT(isodow FROM DATE '2024-03-03')`: "numeric 7", `EXTRACT(week FROM DATE '2024-12-30')`: "numeric 1",
		`EXTRACT(second FROM TIMESTAMP '2024-03-03 01:02:03.25')`: "numeric 3.25", `EXTRACT(hour FROM TIME '10:20:30')`: "numeric 10", `EXTRACT(quarter FROM DATE '2024-06-30')`: "numeric 2",
		`date_part('month', '2024-05-06'::date)`: "float8 5", `EXTRACT(fortnight FROM DATE '2024-03-03')`: "22023", `EXTRACT(day FROM 'x')`: "22007",
		`date_trunc('month', seen) FROM users WHERE id = 1`: "timestamp 2026-01-01 00:00:00", `date_trunc('week', DATE '2024-03-03')`: "timestamptz 2024-02-26 00:00:00+00",
		`date_trunc('hour', '2024-03-03 04:05:06+01'::timestamptz)`: "timestamptz 2024-03-03 03:00:00+00", `date_trunc('day', NULL) IS NULL`: "bool t",
		`to_timestamp(1704067200.5)`: "timestamptz 2024-01-01 00:00:00.5+00", `now() > TIMESTAMP '2024-01-01'`: "bool t",
	} {
		typ, got, err := answer(t, conn, "SELECT "+sql)
		if !strings.Contains(want, " ") {
			wantState(t, err, want, sql)
		} else if err != nil || typ+" "+got != want {
			t.Errorf("%s = %s %s, %v; want %s", sql, typ, got, err, want)
		}
	}
	for sql, want := range map[string]string{
		`now()`: "timestamptz", `CURRENT_TIMESTAMP`: "timestamptz", `LOCALTIMESTAMP`: "timestamp", `CURRENT_DATE`: "date", `current_time`: "time", `localtime`: "time",
		`clock_timestamp()`: "timestamptz", `gen_random_uuid()`: "uuid", `now()::date`: "date",
	} {
		if typ, _, err := binaryAnswerOf(t, conn, "SELECT "+sql); err != nil || typ != want {
			t.Errorf("%s is of type %s, %v; want %s", sql, typ, err, want)
		}
	}
}

// binaryAnswerOf runs a query in binary format and returns a value that differs each time.
func binaryAnswerOf(t *testing.T, conn *pgx.Conn, sql string) (typ string, v any, err error) {
	t.Helper()
	r := conn.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, []int16{pgwire.FormatBinary}).Read()
	if r.Err != nil {
		return "", nil, r.Err
	}
	f := r.FieldDescriptions[0]
	return typeOf(t, conn, f), v, conn.TypeMap().Scan(f.DataTypeOID, pgtype.BinaryFormatCode, r.Rows[0][0], &v)
}

// TestNumericIsExact stores decimals that are not doubles in a NUMERIC column, in every format, and reads them
// unchanged.
func TestNumericIsExact(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE sums (id INTEGER PRIMARY KEY, n NUMERIC)`)
	for s, kept := range map[string]string{
		"12.5": "real", "7": "integer", "12.50": "real", "-0.1": "real", "0.30000000000000004": "real", "9007199254740993": "integer",
		"12345678901234567.89": "text", "-0.1234567890123456789": "text", "123456789012345678901234567890": "text", "9223372036854775808": "text", "1.00000000000000000001": "text",
	} {
		want := strings.Replace(s, "12.50", "12.5", 1)
		var n pgtype.Numeric
		if err := n.Scan(s); err != nil {
			t.Fatal(err)
		}
		exec := func(sql string, formats []int16, params ...[]byte) {
			t.Helper()
			if err := conn.PgConn().ExecParams(t.Context(), sql, params, []uint32{pgtype.NumericOID}, formats, nil).Read().Err; err != nil {
				t.Fatalf("%s of %s: %v", sql, s, err)
			}
		}
		binary, err := conn.TypeMap().Encode(pgtype.NumericOID, pgtype.BinaryFormatCode, n, nil)
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, conn, `DELETE FROM sums`)
		exec(`INSERT INTO sums (n) VALUES ($1)`, nil, []byte(s))
		exec(`INSERT INTO sums (n) VALUES ($1)`, []int16{pgwire.FormatBinary}, binary)
		mustExec(t, conn, `INSERT INTO sums (n) VALUES (`+s+`)`, pgx.QueryExecModeSimpleProtocol)
		mustExec(t, conn, `INSERT INTO sums (n) VALUES ('`+s+`'::numeric)`, pgx.QueryExecModeSimpleProtocol)
		rows, err := conn.PgConn().Exec(t.Context(), `SELECT n, typeof(n), n::text FROM sums`).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range rows[0].Rows {
			if string(row[0]) != want || string(row[1]) != kept || string(row[2]) != want && kept == "text" {
				t.Errorf("%s came back as %s, kept as %s, text %s, in row %d", s, row[0], row[1], row[2], i+1)
			}
		}
		r := conn.PgConn().ExecParams(t.Context(), `SELECT count(*), n FROM sums WHERE n = $1 GROUP BY n`, [][]byte{[]byte(s)}, []uint32{pgtype.NumericOID}, nil, nil).Read()
		if r.Err != nil || len(r.Rows) != 1 || string(r.Rows[0][0]) != "4" {
			t.Errorf("%s is equal to other rows than the four: %q, %v", s, r.Rows, r.Err)
		}
	}
	if n := one[float64](t, conn, `SELECT sum(n) FROM (SELECT '12345678901234567.89'::numeric AS n UNION ALL SELECT 1)`); n != 12345678901234568 {
		t.Errorf("a sum of exact numbers is %v", n)
	}
}

// Texts that PostgreSQL refuses are refused in every format.
func TestTextWithNUL(t *testing.T) {
	conn := start(t).connect(t)
	for what, value := range map[string]string{"NUL": "a\x00b", "invalid UTF-8": "a\xffb"} {
		for _, oid := range []uint32{0, pgtype.TextOID, pgtype.VarcharOID, pgtype.JSONOID} {
			for _, format := range []int16{pgwire.FormatText, pgwire.FormatBinary} {
				err := conn.PgConn().ExecParams(t.Context(), `INSERT INTO users (name) VALUES ($1)`, [][]byte{[]byte(value)}, []uint32{oid}, []int16{format}, nil).Read().Err
				want := "22021"
				if oid == pgtype.JSONOID {
					want = "22P02"
				}
				wantState(t, err, want, what)
			}
		}
	}
	_, err := conn.Exec(t.Context(), `INSERT INTO users (name) VALUES (E'a\000b')`)
	wantState(t, err, "22021", "NUL in an escape")
	_, err = conn.Exec(t.Context(), "INSERT INTO users (name) VALUES ('a\xffb')")
	wantState(t, err, "22021", "invalid UTF-8 in a literal")
	mustExec(t, conn, `INSERT INTO users (name, avatar) VALUES ('ok', $1)`, []byte("a\x00\xff"))
}

// TestParametersOfEveryType sends each type in both formats and reads it back in both.
func TestParametersOfEveryType(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE every (i2 SMALLINT, i4 INTEGER, i8 BIGINT, f DOUBLE PRECISION, b BOOLEAN, n NUMERIC, s VARCHAR(9), c CHAR(3), x BYTEA, j JSON, jb JSONB, d DATE, at TIME, ts TIMESTAMP, tz TIMESTAMPTZ, u UUID)`)
	values := []string{"-32768", "2147483647", "-9223372036854775808", "0.1", "t", "12345678901234567.89", "ä", "abc", `\x00ff`, `{"a": [1]}`, `[1]`, "2024-02-29", "03:04:05.25",
		"2024-01-02 03:04:05.123456", "2024-01-02 03:04:05+00", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}
	const insert = `INSERT INTO every VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`
	sd, err := conn.PgConn().Prepare(t.Context(), "insert", insert, nil)
	if err != nil {
		t.Fatal(err)
	}
	texts, binaries := make([][]byte, len(values)), make([][]byte, len(values))
	for i, v := range values {
		texts[i] = []byte(v)
		var decoded any
		if err := conn.TypeMap().Scan(sd.ParamOIDs[i], pgtype.TextFormatCode, texts[i], &decoded); err != nil {
			t.Fatal(v, err)
		}
		if binaries[i], err = conn.TypeMap().Encode(sd.ParamOIDs[i], pgtype.BinaryFormatCode, decoded, nil); err != nil {
			t.Fatal(v, err)
		}
	}
	for format, params := range [][][]byte{texts, binaries} {
		mustExec(t, conn, `DELETE FROM every`)
		if err := conn.PgConn().ExecPrepared(t.Context(), "insert", params, []int16{int16(format)}, nil).Read().Err; err != nil {
			t.Fatal(err)
		}
		for resultFormat, want := range [][][]byte{texts, binaries} {
			r := conn.PgConn().ExecParams(t.Context(), `SELECT * FROM every`, nil, nil, nil, []int16{int16(resultFormat)}).Read()
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			for i := range want {
				if r.FieldDescriptions[i].DataTypeOID != sd.ParamOIDs[i] {
					t.Errorf("column %s is of type %d, its parameter %d", r.FieldDescriptions[i].Name, r.FieldDescriptions[i].DataTypeOID, sd.ParamOIDs[i])
				}
				got, want := string(r.Rows[0][i]), string(want[i])
				if strings.HasPrefix(r.FieldDescriptions[i].Name, "j") {
					got, want = strings.ReplaceAll(got, " ", ""), strings.ReplaceAll(want, " ", "")
				}
				if got != want {
					t.Errorf("column %s: %q sent in format %d is %q in format %d, want %q", r.FieldDescriptions[i].Name, values[i], format, got, resultFormat, want)
				}
			}
		}
	}
	for n, bad := range map[int]string{0: "40000", 1: "3000000000", 11: "2024-02-30", 12: "24:30", 15: "xyz"} {
		params := append([][]byte{}, texts...)
		params[n] = []byte(bad)
		if err := conn.PgConn().ExecPrepared(t.Context(), "insert", params, nil, nil).Read().Err; err == nil {
			t.Errorf("%q was taken for parameter $%d", bad, n+1)
		}
	}
}

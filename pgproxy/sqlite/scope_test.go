package sqlite_test

import (
	"strings"
	"testing"
)

// Columns of subqueries, common table expressions and views have the types of their expressions.
func TestTypesThroughQueries(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE VIEW totals AS SELECT author, count(*), sum(id) AS ids, max(title) AS last FROM posts GROUP BY 1`)
	mustExec(t, conn, `CREATE VIEW over_totals AS SELECT count + 1 AS more, ids / 2.0::float8 AS half FROM totals`)
	for sql, want := range map[string]string{
		`SELECT * FROM (SELECT 1 AS a, 'x' AS b, 1 = 1 AS c) s`:                                                                  "int4 text bool",
		`SELECT a, c FROM (SELECT 1 AS a, 1 = 1 AS c) s`:                                                                         "int4 bool",
		`SELECT s.* , s.a + 1 FROM (SELECT 1 AS a, 1.5 AS b) s`:                                                                  "int4 float8 int4",
		`WITH a AS (SELECT count(*) AS n FROM users) SELECT n, n + 1 FROM a`:                                                     "int8 int8",
		`WITH a(n, m) AS (SELECT count(*), max(seen) FROM users) SELECT m, n FROM a`:                                             "timestamp int8",
		`WITH a AS (SELECT 1 AS n), b AS (SELECT n, 'x' AS m FROM a) SELECT * FROM b`:                                            "int4 text",
		`WITH RECURSIVE r(i, at) AS (SELECT 1, DATE '2026-01-01' UNION ALL SELECT i + 1, at FROM r WHERE i < 3) SELECT * FROM r`: "int4 date",
		`SELECT x.n, y.n FROM (SELECT 1 AS n) x JOIN (SELECT 'a' AS n) y ON true`:                                                "int4 text",
		`SELECT (SELECT max(born) FROM users), (SELECT n FROM (SELECT 1 = 2 AS n) i)`:                                            "date bool",
		`SELECT u.id, t.n FROM users u JOIN (SELECT author, count(*) AS n FROM posts GROUP BY author) t ON t.author = u.id`:      "int4 int8",
		`SELECT * FROM (VALUES (1, 'a', 1.5), (2, 'b', 2)) v`:                                                                    "int4 text float8",
		`SELECT * FROM (VALUES (1, true)) v(a, b)`:                                                                               "int4 bool",
		`SELECT n FROM (SELECT 1 AS n UNION SELECT 3000000000) u`:                                                                "int8",
		`SELECT author, count, ids, last FROM totals`:                                                                            "int4 int8 int8 text",
		`SELECT * FROM over_totals`:                                                                                              "int8 float8",
		`SELECT count FROM (SELECT count(*) FROM users) c`:                                                                       "int8",
		`SELECT name FROM (SELECT name::text FROM users) c`:                                                                      "text",
		`SELECT id FROM (SELECT u.id::bigint FROM users u) c`:                                                                    "int8",
		`SELECT kind, n FROM (SELECT relkind AS kind, count(*) AS n FROM pg_catalog.pg_class GROUP BY 1) k`:                      "char int8",
		`SELECT string_to_array('a,b', ','), array_remove('{1,2}'::int[], 2)`:                                                    "_text _int4",
		`SELECT array_agg(id ORDER BY name), array_agg(name ORDER BY id DESC) FROM users`:                                        "_int4 _text",
		`SELECT * FROM unnest('{1,2}'::int[], '{x}'::text[]) AS t(n, s)`:                                                         "int4 text",
		`SELECT unnest('{1,2}'::int[]), generate_subscripts('{t}'::bool[], 1)`:                                                   "int4 int4",
		`SELECT * FROM string_to_table('a,b', ',') AS w`:                                                                         "text",
		`SELECT 1 AS a UNION SELECT n FROM (SELECT 'x' AS n) s`:                                                                  "text",
		`SELECT DISTINCT s.id, p.* FROM (SELECT id FROM users) s CROSS JOIN (SELECT 1 = 1 AS yes, 2 AS two) p`:                   "int4 bool int4",
		`SELECT v FROM (SELECT CASE WHEN n > 1 THEN n ELSE 0 END AS v FROM (SELECT (SELECT count(*) FROM posts) AS n) a) b`:      "int8",
		`INSERT INTO posts (author, title) SELECT id, t FROM (SELECT id, 'x' AS t FROM users) s RETURNING id, id = 1, author`:    "int4 bool int4",
	} {
		res := conn.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, nil).Read()
		if res.Err != nil {
			t.Errorf("%s: %v", sql, res.Err)
			continue
		}
		var got []string
		for _, f := range res.FieldDescriptions {
			name := "char"
			if typ, ok := conn.TypeMap().TypeForOID(f.DataTypeOID); ok && f.DataTypeOID != 18 {
				name = typ.Name
			}
			got = append(got, name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s, want %s", sql, strings.Join(got, " "), want)
		}
	}
}

// Columns of a subquery that PostgreSQL names after a function or a cast column can be used outside.
func TestNamesOfInnerColumns(t *testing.T) {
	conn := start(t).connect(t)
	for _, sql := range []string{
		`SELECT max FROM (SELECT max(id) FROM users) m`, `WITH c AS (SELECT count(*) FILTER (WHERE active) FROM users) SELECT count + 1 FROM c`,
		`SELECT row_number FROM (SELECT row_number() OVER (ORDER BY id DESC) FROM users) r WHERE row_number = 2`,
		`SELECT u.id FROM (SELECT id::text FROM users ORDER BY 1) u LIMIT 1 OFFSET 1`,
	} {
		if n := one[any](t, conn, sql); n != int32(2) && n != int64(2) && n != "2" {
			t.Errorf("%s = %v", sql, n)
		}
	}
}

package sqlite_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
	driver "zombiezen.com/go/sqlite"
)

func TestRewrite(t *testing.T) {
	for in, want := range map[string]string{
		`select $1, '$1', "$1" -- $1`:                 `select ?1, '$1', "$1" -- $1`,
		`select $1::int8`:                             `select ?1`,
		`select a.b::text::int from t`:                `select pg_int4(pg_text(a.b)) from t`,
		`select (1+2)::double precision`:              `select pg_float8((1+2))`,
		`select lower(x)::varchar(10)`:                `select pg_varchar(lower(x))`,
		`select 'true'::bool`:                         `select pg_bool('true')`,
		`select cast(x as timestamp) from t`:          `select pg_timestamp(x) from t`,
		`select E'a\n''b\\' `:                         "select 'a\n''b\\' ",
		`select $$it's$$, $x$a$$b$x$`:                 `select 'it''s', 'a$$b'`,
		`select * from pg_catalog.pg_class`:           `select * from pg_class`,
		`select * from information_schema.tables`:     `select * from information_schema_tables`,
		`select * from public.users`:                  `select * from main.users`,
		`select * from "public"."users"`:              `select * from main."users"`,
		`select "public"."u"."public" from "public"`:  `select main."u"."public" from "public"`,
		`select * from "pg_catalog"."pg_class"`:       `select * from "pg_class"`,
		`"information_schema"."tables"`:               `"information_schema_tables"`,
		`"information_schema".tables`:                 `"information_schema_tables"`,
		`select cast($1 as int), $1::int, $1::text`:   `select ?1, ?1, pg_text(?1)`,
		`create view v as select a::int from t`:       `create view v as select CAST(a AS INTEGER) AS "a" from t`,
		`select 12345678901234567.5, 1.5`:             `select pg_numeric('12345678901234567.5'), 1.5`,
		`select -9223372036854775808`:                 `select -9223372036854775808`,
		`select -12345678901234567.5`:                 `select pg_numeric('-12345678901234567.5')`,
		`select a-12345678901234567.5`:                `select a-pg_numeric('12345678901234567.5')`,
		`select date '2024-01-01', date(x), a.date`:   `select pg_date('2024-01-01'), date(x), a.date`,
		`extract(year from t.at)`:                     `extract('year' , t.at)`,
		`select localtime, localtimestamp`:            `select localtime(), localtimestamp()`,
		`a OPERATOR(pg_catalog.~) 'x'`:                `a  REGEXP  'x'`,
		`select a !~ 'x'`:                             `select a  NOT REGEXP  'x'`,
		`select ~1`:                                   `select ~1`,
		`x COLLATE pg_catalog.default`:                `x `,
		`select current_user, t.current_user from t`:  `select current_user(), t.current_user from t`,
		`select 1 from t for update of t skip locked`: `select 1 from t `,
		`create table t (id serial primary key)`:      `create table t (id INTEGER primary key)`,
		`select E'\x41\u00e9\101\8\xg'`:               `select 'AéA8xg'`,
		`select a$1, $1, a$$ from t`:                  `select a$1, ?1, a$$ from t`,
		`select 1 /* a /* b */ , 2 */`:                `select 1`,
		`select 1 /* a */ , 2 /* ' */`:                `select 1 /* a */ , 2 /* ' */`,
		`select x -> '$.a' from t`:                    `select x -> '$.a' from t`,
	} {
		got, err := sqlite.Rewrite(in)
		if err != nil || strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("rewrite(%s)\n got %s, %v\nwant %s", in, got, err, want)
		}
	}
}

func TestRewriteRefuses(t *testing.T) {
	for _, sql := range []string{
		`select * from generate_series()`, `select * from generate_series(1, 2, 3, 4)`, `select unnest(a, b) from t`,
		`select cast(a as from)`, `select a::array[1]`,
	} {
		if out, err := sqlite.Rewrite(sql); err == nil {
			t.Errorf("rewrite(%s) = %s", sql, out)
		}
	}
}

func TestSplitStatements(t *testing.T) {
	for in, want := range map[string][]string{
		"select 1; select ';' ;;": {"select 1", "select ';' "},
		"-- nothing\n ; ":         nil,
		"create trigger x after insert on t begin update t set a = case when 1 then 2 end; delete from t; end; select 1": {
			"create trigger x after insert on t begin update t set a = case when 1 then 2 end; delete from t; end", "select 1"},
		"begin; insert into t values (1); end": {"begin", "insert into t values (1)", "end"},
	} {
		if got := sqlite.SplitStatements(in); !slices.Equal(got, want) {
			t.Errorf("split(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNumericBinary(t *testing.T) {
	for _, s := range []string{"0", "1", "-1", "10000", "12345678.9012", "0.0001", "-0.5", "100.00", "99999999999999999999.000001"} {
		if got, err := sqlite.NumericRoundTrip(s); got != s || err != nil {
			t.Errorf("%s came back as %s, %v", s, got, err)
		}
	}
}

// made are the strings that the rewriter adds.
var made = []string{"both", "leading", "trailing", " ", "(?i)", "x", "n", "89ab", "-", "-4"}

// madeNames are the quoted names that the rewriter adds: types, and functions with another name in SQLite.
var madeNames = []string{"?column?", "ordinality", "case", "timezone", "btrim", "ltrim", "rtrim", "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "bpchar", "varchar", "timestamptz", "timetz"}

// unexplained returns the elements of after that are not in the statement (also in lower case, or as two names in one)
// and not in made.
func unexplained(sql string, before, after, made []string) (added []string) {
	words := map[string]bool{}
	for _, w := range append(made, before...) {
		words[w] = true
	}
	var last []string // the last two names: a schema and its table
	for _, t := range sqlite.Names(sql) {
		for _, name := range []string{t, strings.ToLower(t)} {
			words[name] = true
			for _, schema := range last {
				words[schema+"."+name], words[schema+"_"+name] = true, true
			}
		}
		last = []string{t, strings.ToLower(t)}
	}
	for _, v := range after {
		if !words[v] && !words[strings.TrimPrefix(v, "-")] { // a number too long for SQLite becomes a string
			added = append(added, v)
		}
	}
	return added
}

// lost returns the elements of before that are missing in after.
func lost(before, after []string) (missing []string) {
	count := map[string]int{}
	for _, v := range after {
		count[v]++
	}
	for _, v := range before {
		if count[v]--; count[v] < 0 {
			missing = append(missing, v)
		}
	}
	return missing
}

// FuzzRewrite checks that the output consists of tokens and that a second rewrite changes none of them. For statements
// that SQLite's parser accepts it also checks that no string is lost, and that no string or quoted name is added except
// made and madeNames.
func FuzzRewrite(f *testing.F) {
	for _, s := range []string{
		`select $1::int8, 'it''s', "a""b", [x], E'\'', $q$a$q$ from t where a ~ 'x' -- '`, `a::b::c::d[]`, `(x)::text`,
		`for update`, `cast(cast(1 as bool) as text)`, `OPERATOR(pg_catalog.~)`, `collate "C"`, `array(select 1) from pg_x`, `::`, `'`, `E'\`,
		`pg_catalog.x::regclass collate pg_catalog.default`, `default now()`, `a::a:0::A00`, `''$$0`, `$$a$$'b'`, `0::in~`, `0::i(1'a'`, `'a'collate"default"'b'`, `x'00' ?1 :a @b $a $1a`, `/* ' */ 'a'`,
		`a = any(array[1,2]::int[])`, `b <> all ($1)`, `(x).y`, `a.b[c.d]`, `array[array(select 1)]`, `from (values (1)) as t(a, b)`, `from unnest(a) with ordinality t(a,b)`,
		`select unnest(a.b), generate_subscripts(a.b, 1)`, `extract(year from x)`, `trim(both 'x' from y)`, `insert into t values (default)`, `create table t (id serial primary key)`,
		`from a.b join c.d.e`, `a.pg_catalog.b`, `select a from (select lower(b), c::text from d) e`, `with a as (select count(*)) select 1`, `date '2026-01-01'`, `select 1 as default`, `a at time zone 'UTC'`,
		`select array ( select select cast ( $1 ] as int ) , $1 :: int , $1 :: text name from people where false )`, `create table t ) id serial primary key (`, `generate_series ( ) `, `select * from generate_series()`,
		`select (select 9223372036854775808), (select current_user), (select a[1] from t)`, `create table t (id int generated always as identity (start with 1) primary key, v text default 'x'::text)`, `select cast(a as from)`, `select 1 from t for update of 'x'`,
	} {
		f.Add(s)
	}
	parser, err := driver.OpenConn(":memory:")
	if err != nil {
		f.Fatal(err)
	}
	defer parser.Close()
	f.Fuzz(func(t *testing.T, sql string) {
		if what := rewriteProblem(parser, sql); what != "" {
			t.Fatal(what)
		}
	})
}

// notSQL matches the errors of SQLite's parser. Other errors, such as a missing table, come after parsing.
var notSQL = regexp.MustCompile(`syntax error|incomplete input|unrecognized token|unknown database`)

// rewriteProblem returns what is wrong with the rewriting of a statement; "" if nothing is, or if SQLite rejects the
// statement.
func rewriteProblem(parser *driver.Conn, sql string) string {
	if !sqlite.Covered(sql) {
		return fmt.Sprintf("tokens of %q are out of place", sql)
	}
	out, err := sqlite.Rewrite(sql)
	if err != nil {
		return ""
	}
	if !sqlite.Covered(out) {
		return fmt.Sprintf("tokens of the output %q are out of place", out)
	}
	if stmt, _, err := parser.PrepareTransient(out); err == nil {
		stmt.Finalize()
	} else if notSQL.MatchString(err.Error()) { // and the original, too
		return ""
	}
	again, err := sqlite.Rewrite(out)
	if err != nil || !slices.Equal(sqlite.Tokens(again), sqlite.Tokens(out)) {
		return fmt.Sprintf("not idempotent:\n in  %q\n out %q\n and %q, %v", sql, out, again, err)
	}
	in, names := sqlite.Literals(sql)
	got, gotNames := sqlite.Literals(out)
	if missing := lost(in, got); missing != nil {
		return fmt.Sprintf("the strings %q are lost:\n in  %q\n out %q", missing, sql, out)
	}
	if added := unexplained(sql, in, got, made); added != nil {
		return fmt.Sprintf("the strings %q appeared:\n in  %q\n out %q", added, sql, out)
	}
	if added := unexplained(sql, names, gotNames, madeNames); added != nil {
		return fmt.Sprintf("the quoted names %q appeared:\n in  %q\n out %q", added, sql, out)
	}
	return ""
}

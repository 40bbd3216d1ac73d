package pgproxy_test

import (
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// parse is Parse with Sync, run a Bind and Execute with Sync.
func parse(name, sql string) []pgwire.Message {
	return []pgwire.Message{&pgwire.Parse{Name: name, Query: sql}, &pgwire.Sync{}}
}

func run(names ...string) (ms []pgwire.Message) {
	for _, name := range names {
		ms = append(ms, &pgwire.Bind{Statement: name}, &pgwire.Execute{})
	}
	return append(ms, &pgwire.Sync{})
}

func ask(texts ...string) (ms []pgwire.Message) {
	for _, sql := range texts {
		ms = append(ms, query(sql))
	}
	return ms
}

// sameAsDirect sends requests on a direct connection and through a gateway with one server connection, which another client, of other
// settings, uses in between where it can, and has the server plan all statements again. The answers must be the same, notices too. They
// are returned as one text.
func sameAsDirect(t *testing.T, db *pgtest.Cluster, requests ...[]pgwire.Message) (answers string) {
	t.Helper()
	return sameBeside(t, db, "set application_name = 'other'; discard plans", requests...)
}

// sameBeside is sameAsDirect with what the other client does.
func sameBeside(t *testing.T, db *pgtest.Cluster, others string, requests ...[]pgwire.Message) (answers string) {
	t.Helper()
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	direct := &stateScript{w: dialDirect(t, db), values: map[string]string{}, channel: "directly"}
	through := &stateScript{w: g.dial(t), values: map[string]string{}, channel: "through_it"}
	other := g.dial(t, zoneTokyo, pgwire.Param{Name: "DateStyle", Value: "German"})
	idle := true
	for i, request := range requests {
		ends := 0
		for _, m := range request {
			switch m.(type) {
			case *pgwire.Query, *pgwire.Sync:
				ends++
			}
		}
		if idle {
			other.send(query(others))
			other.until(pgwire.TypeReadyForQuery)
		}
		direct.send(request)
		want, err := direct.answer(ends)
		if err != nil {
			t.Fatal(err)
		}
		through.send(request)
		got, err := through.answer(ends)
		if got != want || err != nil {
			t.Errorf("request %d, %+v: through the gateway and directly\n%s\n%s\n%v", i, request, got, want, err)
		}
		idle = strings.HasSuffix(got, "Z I ")
		answers += got
	}
	return answers
}

// send sends a request in one write. CHANNEL in its texts is the script's own.
func (s *stateScript) send(request []pgwire.Message) {
	own := make([]pgwire.Message, len(request))
	for i, m := range request {
		switch m := m.(type) {
		case *pgwire.Query:
			own[i] = query(strings.ReplaceAll(m.SQL, "CHANNEL", s.channel))
		case *pgwire.Parse:
			own[i] = &pgwire.Parse{Name: m.Name, Query: strings.ReplaceAll(m.Query, "CHANNEL", s.channel)}
		default:
			own[i] = m
		}
	}
	s.w.send(own...)
}

func dialDirect(t *testing.T, db *pgtest.Cluster) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", db.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return newWire(t, conn).login(pgwire.Param{Name: "user", Value: db.Superuser()}, pgwire.Param{Name: "database", Value: "postgres"})
}

// TestPlansOfAnotherClient has one client's DISCARD PLANS come before a statement that another one uses behind a SET, in one write.
func TestPlansOfAnotherClient(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	w, other := g.dial(t), g.dial(t)
	w.ask(parse("s", "select '2020-01-01 12:00'::timestamptz")...)
	_, want := w.ask(run("s")...)
	other.ask(query("discard plans"))
	w.send(append([]pgwire.Message{&pgwire.Parse{Query: "set timezone = 'Asia/Seoul'"}, &pgwire.Bind{}, &pgwire.Execute{}, &pgwire.Sync{}}, run("s")...)...)
	w.until(pgwire.TypeReadyForQuery)
	w.until(pgwire.TypeReadyForQuery)
	w.ask(query("reset timezone"))
	if _, got := w.ask(run("s")...); got != want {
		t.Errorf("the statement returns %q, before %q", got, want)
	}
}

// TestParsedAgain has statements parsed again after their client has changed the settings under which they were read.
func TestParsedAgain(t *testing.T) {
	db := pgtest.Shared(t)
	makeTempSchemas(t, db)
	const zoned = "select '2020-01-01 12:00'::timestamptz"
	for name, requests := range map[string][][]pgwire.Message{
		"zone":                      {parse("s", zoned), ask("set timezone = 'Asia/Seoul'"), run("s"), ask("reset timezone"), run("s")},
		"dates":                     {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'"), run("s")},
		"intervals":                 {parse("s", "select extract(epoch from interval '-1 2:03')"), ask("set intervalstyle = 'sql_standard'"), run("s")},
		"dollars":                   {parse("s", "select $$01/02/2020$$::date"), ask("set datestyle = 'ISO, DMY'"), run("s")},
		"strings":                   {parse("s", `select 'a\\b', $1::text`), ask("set standard_conforming_strings = off"), {&pgwire.Bind{Statement: "s", Params: [][]byte{[]byte("x")}}, &pgwire.Execute{}, &pgwire.Sync{}}},
		"encoding":                  {parse("s", "select length('ä'), ascii('ä')"), ask("set client_encoding = 'LATIN1'"), run("s")},
		"unnamed":                   {{&pgwire.Parse{Name: "set", Query: "set timezone = 'Asia/Seoul'"}, &pgwire.Parse{Query: zoned}, &pgwire.Sync{}}, run("set"), run("")},
		"described":                 {parse("s", zoned), ask("set timezone = 'Asia/Seoul'"), {&pgwire.Describe{Object: 'S', Name: "s"}, &pgwire.Sync{}}, run("s")},
		"in a block":                {parse("s", zoned), ask("begin", "set local timezone = 'Asia/Seoul'"), run("s"), ask("show timezone", "commit", "show timezone"), run("s")},
		"rolled back":               {parse("s", zoned), ask("set timezone = 'Asia/Seoul'"), ask("begin"), run("s"), ask("rollback", "show timezone"), run("s")},
		"an error":                  {parse("s", "select date '01/02/2020', 1/0"), ask("set datestyle = 'ISO, DMY'"), run("s"), ask("show datestyle"), parse("n", "select date '01/02/2020'"), run("n")},
		"a pipeline":                {parse("s", zoned), parse("d", "select date '01/02/2020'"), ask("set timezone = 'Asia/Seoul'", "set datestyle = 'ISO, DMY'"), run("s", "d", "s"), ask("show timezone")},
		"begun with it":             {parse("s", zoned), parse("begin", "begin"), ask("set timezone = 'Asia/Seoul'"), run("begin", "s"), ask("commit", "show timezone")},
		"at once":                   {parse("s", zoned), append(ask("set timezone = 'Asia/Seoul'"), run("s")...), append(ask("begin", "set local timezone = 'Asia/Kabul'"), run("s")...), ask("commit")},
		"path":                      {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'", "set search_path = pg_catalog"), run("s"), ask("set datestyle = 'ISO, MDY'"), run("s")},
		"plans":                     {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'", "discard plans"), run("s")},
		"a temporary table":         {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'", "create temp table CHANNEL (a int) on commit drop"), run("s"), ask("set datestyle = 'ISO, MDY'"), run("s")},
		"perhaps a temporary table": {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'", "do $$ begin execute 'select 1'; end $$"), run("s"), ask("select 1/0", "create temp table CHANNEL (a int) on commit drop"), run("s")},
		"temporary and undone":      {parse("s", "select date '01/02/2020'"), parse("n", "select date '01/02/2020', 1"), ask("set datestyle = 'ISO, DMY'", "begin", "create temp table CHANNEL (a int) on commit drop"), run("s"), ask("rollback", "set datestyle = 'ISO, MDY'"), run("s", "n"), ask("set datestyle = 'ISO, DMY'"), run("s", "n")},
		"temporary and chained":     {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'", "begin", "create temp table CHANNEL (a int) on commit drop", "commit and chain", "rollback"), run("s"), ask("set datestyle = 'ISO, MDY'"), run("s"), ask("create temp table CHANNEL (a int) on commit drop"), run("s")},
		"temporary, commit fails":   {ask("create table CHANNEL (a int unique deferrable initially deferred)"), parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'", "begin", "create temp table t_CHANNEL (a int) on commit drop", "insert into CHANNEL values (1), (1)", "commit"), run("s"), ask("create temp table t_CHANNEL (a int) on commit drop"), run("s"), ask("drop table CHANNEL")},
		"temporary, then an error":  {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'"), ask("begin; create temp table CHANNEL (a int) on commit drop; commit; select 1/0"), run("s"), ask("set datestyle = 'ISO, MDY'", "create temp table CHANNEL (a int) on commit drop"), run("s")},
		"notices beside PREPARE":    {ask("begin", "prepare p as select 1"), parse("s", "select 1 as "+strings.Repeat("x", 70)), run("s"), ask("set standard_conforming_strings = off"), parse("e", `select '\x00'`), ask("rollback", "deallocate p"), run("e")},
		"names in quotes":           {parse(`a"b\c`, "select 1"), parse(`a"b\c`, "select 1"), run(`headpond_"\`)},
		"settings in BIG5":          {ask("set client_encoding = 'BIG5'", "set search_path = \"\xa4\x5c\"", "set app.q = '\xa4\x5c ''\\ '", "select 1"), ask("show search_path"), ask("show app.q"), ask("set role postgres", "set client_encoding = 'UTF8'"), ask("show search_path"), ask("show app.q")},
		"names behind SJIS":         {ask("set client_encoding = 'SJIS'"), parse("s", "select 1"), parse("k", "select 2"), ask("select E'\x95\x5c'; deallocate s"), run("s"), ask("select length(E'\xb1\\'; deallocate s; --'); deallocate k"), run("k")},
		"utility statements":        {parse("d", "declare h cursor with hold for select date '01/02/2020'"), parse("t", "create temp table CHANNEL on commit drop as select date '01/02/2020' as d"), parse("e", "explain (verbose, costs off) select date '01/02/2020'"), parse("v", "(select date '01/02/2020')"), ask("set datestyle = 'ISO, DMY'"), run("e"), run("v"), ask("begin"), run("d"), run("t"), ask("fetch h", "table CHANNEL", "rollback")},
		"names in LATIN1":           {ask("set client_encoding = 'LATIN1'"), parse("\xe4", "select 1"), parse("\xe4", "select 1"), run("\xe4"), ask("deallocate \xe4"), run("\xe4")},
		"set before a query":        {parse("s", "set work_mem = '2MB'"), ask("set timezone = 'Asia/Seoul'", "begin"), run("s"), ask("set transaction isolation level serializable", "commit")},
		"in a failed block":         {parse("s", zoned), ask("set timezone = 'Asia/Seoul'", "begin", "select 1/0"), run("s"), ask("rollback", "set timezone = 'Asia/Kabul'"), run("s")},
		"behind a Parse":            {parse("s", zoned), append(ask("set timezone = 'Asia/Seoul'"), append([]pgwire.Message{&pgwire.Parse{Name: "n", Query: "select 1"}}, run("s", "n")...)...)},
		"described behind a Parse":  {parse("s", zoned), append(ask("set timezone = 'Asia/Seoul'"), append([]pgwire.Message{&pgwire.Parse{Name: "n", Query: "select 1"}, &pgwire.Describe{Object: 'S', Name: "s"}}, run("s", "n")...)...)},
		"by SQL":                    {parse("s", zoned), ask("set timezone = 'Asia/Seoul'"), ask("execute s", "begin", "set local timezone = 'Asia/Kabul'", "execute s", "rollback")},
		"no sync":                   {parse("s", zoned), ask("set timezone = 'Asia/Seoul'"), {&pgwire.Bind{Statement: "s"}, &pgwire.Execute{}, &pgwire.Flush{}, &pgwire.Bind{Statement: "s"}, &pgwire.Execute{}, &pgwire.Sync{}}},
		"plans at once":             {parse("s", "select date '01/02/2020'"), parse("d", "discard plans"), append(run("d"), run("s")...), ask("set datestyle = 'ISO, DMY'"), run("s")},
		"plans in a pipeline":       {parse("s", "select date '01/02/2020'"), parse("d", "discard plans"), ask("set datestyle = 'ISO, DMY'"), run("d", "s"), ask("set datestyle = 'ISO, MDY'"), run("s")},
		"plans and unnamed":         {{&pgwire.Parse{Query: "select date '01/02/2020'"}, &pgwire.Parse{Name: "d", Query: "discard plans"}, &pgwire.Sync{}}, append(run("d"), run("")...), ask("set application_name = 'x'"), parse("s", "select date '01/02/2020'"), append(run("d"), run("s")...), ask("set datestyle = 'ISO, DMY'"), run("s")},
		"temporary at once":         {parse("s", "select date '01/02/2020'"), parse("t", "create temp table CHANNEL (a int) on commit drop"), append(run("t"), run("s")...), ask("set datestyle = 'ISO, DMY'"), run("s")},
		"temporary, rolled back to": {parse("s", "select date '01/02/2020'"), ask("begin", "savepoint a", "create temp table CHANNEL (a int) on commit drop", "rollback to a"), run("s"), ask("set datestyle = 'ISO, DMY'"), run("s"), ask("create temp table CHANNEL (a int) on commit drop"), run("s"), ask("commit"), run("s")},
		"rolled back to, in it":     {parse("s", "select date '01/02/2020'"), ask("begin", "savepoint a", "create temp table CHANNEL (a int) on commit drop", "set datestyle = 'ISO, DMY'"), run("s"), ask("rollback to a"), run("s"), ask("set datestyle = 'ISO, DMY'"), run("s"), ask("commit"), run("s")},
		"concurrently":              {ask("create table CHANNEL (a text)"), parse("i", "create index concurrently on CHANNEL ((a || 'select'))"), ask("set datestyle = 'ISO, DMY'"), run("i"), ask("drop table CHANNEL")},
		"a table of its time":       {ask("create temp table t_CHANNEL (a date) on commit drop"), parse("t", "create temp table CHANNEL (selected date default '01/02/2020') on commit drop"), ask("set datestyle = 'ISO, DMY'", "begin"), run("t"), ask("insert into CHANNEL default values; select * from CHANNEL", "commit")},
		"a table from WITH":         {parse("t", "create temp table CHANNEL(a) on commit drop as(with w as (select date '01/02/2020') table w)"), ask("set datestyle = 'ISO, DMY'", "begin"), run("t"), ask("table CHANNEL", "commit")},
		"a view of its time":        {parse("v", "create temp view v_CHANNEL as select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'", "begin"), run("v"), ask("select * from v_CHANNEL", "rollback")},
		"changed in it":             {parse("s", zoned), parse("set", "set timezone = 'Asia/Seoul'"), run("set", "s"), ask("show timezone"), run("s"), ask("reset timezone"), run("s")},
		"changed in it, in a block": {parse("s", "select date '01/02/2020', interval '-1 2:03'"), parse("set", "set local datestyle = 'ISO, DMY'"), parse("i", "set local intervalstyle = 'sql_standard'"), ask("begin"), run("set", "s", "i", "s"), ask("show datestyle"), run("s"), ask("commit", "show datestyle"), run("s")},
		"changed in it and back":    {parse("s", "select date '01/02/2020'"), parse("set", "set datestyle = 'ISO, DMY'"), parse("back", "reset datestyle"), run("set", "s", "back", "s"), ask("show datestyle"), run("s")},
		"changed before it":         {parse("s", "select date '01/02/2020'"), ask("set datestyle = 'ISO, DMY'"), parse("set", "set datestyle = 'German'"), run("set", "s"), ask("show datestyle"), run("s"), ask("select current_date - current_date")},
		"changed in it, unnamed":    {{&pgwire.Parse{Query: zoned}, &pgwire.Parse{Name: "set", Query: "set timezone = 'Asia/Seoul'"}, &pgwire.Sync{}}, run("set", ""), run(""), ask("show timezone")},
		"changed, undone":           {parse("s", zoned), parse("set", "set timezone = 'Asia/Seoul'"), parse("e", "select 1/0"), ask("begin"), run("set", "s", "e", "s"), ask("rollback", "show timezone"), run("s")},
		"encoding in it":            {parse("s", "select length('ä'), ascii('ä')"), parse("set", "set client_encoding = 'LATIN1'"), run("set", "s"), run("s"), ask("show client_encoding")},
		"strings in it":             {parse("s", `select 'a\\b'`), parse("set", "set standard_conforming_strings = off"), run("set", "s"), run("s"), ask(`select 'a\\b'`)},
		"path in it":                {parse("s", "select date '01/02/2020'"), parse("p", "set search_path = pg_catalog"), ask("set datestyle = 'ISO, DMY'"), run("p", "s"), run("s")},
		"described in it":           {parse("s", zoned), parse("set", "set timezone = 'Asia/Seoul'"), {&pgwire.Bind{Statement: "set"}, &pgwire.Execute{}, &pgwire.Describe{Object: 'S', Name: "s"}, &pgwire.Bind{Statement: "s"}, &pgwire.Execute{}, &pgwire.Sync{}}, run("s")},
		"behind a rollback":         {parse("s", zoned), parse("r", "rollback"), parse("b", "begin"), parse("set", "set timezone = 'Asia/Seoul'"), run("b", "set", "s"), run("r", "s"), ask("show timezone"), run("s")},
		"behind a commit":           {parse("s", zoned), parse("c", "commit"), parse("b", "begin"), parse("set", "set local timezone = 'Asia/Seoul'"), run("b", "set", "s"), run("c", "s"), ask("show timezone"), run("s")},
		"gone":                      {ask("create table CHANNEL (a int)"), parse("s", "select 'x' from CHANNEL"), ask("set timezone = 'Asia/Seoul'", "drop table CHANNEL"), run("s"), ask("select 1")},
	} {
		t.Run(name, func(t *testing.T) { sameAsDirect(t, db, requests...) })
	}
}

// makeTempSchemas has the server make its schemas for temporary tables, which it keeps. Where a new one is made, servers read all literals again,
// even if that is rolled back.
func makeTempSchemas(t *testing.T, db *pgtest.Cluster) {
	t.Helper()
	for range 8 { // some servers use a place again at once, others after all the rest
		t.Run("schemas", func(t *testing.T) {
			for range 20 { // connections at a time
				dialDirect(t, db).ask(query("create temp table made (a int)"))
			}
		})
	}
}

// TestNoticesOnce has statements whose Parse brings a notice parsed again: the client has the notice.
func TestNoticesOnce(t *testing.T) {
	long := strings.Repeat("x", 70)
	answers := sameAsDirect(t, pgtest.Shared(t), parse("s", "select 1 as "+long), ask("set timezone = 'Asia/Seoul'"), run("s"), ask("set timezone = 'Asia/Kabul'", "begin"), run("s"), ask("commit"))
	if n := strings.Count(answers, "N SNOTICE"); n != 1 {
		t.Errorf("%d notices in %s", n, answers)
	}
}

// TestListInPipeline lists prepared statements behind a Bind that no Sync has followed: the client sees no name of the gateway's.
func TestListInPipeline(t *testing.T) {
	g := start(t, pgtest.Shared(t), small)
	w, other := g.dial(t), g.connect(t, "")
	w.ask(parse("one", "select 1")...)
	w.ask(parse("list", "select name from pg_prepared_statements where name = 'list' or name like 'headpond%'")...)
	for range 2 {
		do(t, other, "select 1")
		types, bodies := w.ask(run("one", "list")...)
		if types != "2DC2DCZ" || !has(bodies, "list") || has(bodies, "headpond_") {
			t.Errorf("%s %q", types, bodies)
		}
	}
}

package integration

import (
	"maps"

	"github.com/jackc/pgx/v5/pgproto3"
)

// kind is one kind of session state. In its statements {k} stands for a name that is unique to the kind, {n} for a
// unique number, and {v} for a value: values[0] for the client that makes the state, values[1] for another client that
// makes the same state.
type kind struct {
	group   string // row of the table in docs/session-state.md
	name    string // in testdata/leakhunt.txt
	values  [2]string
	startup map[string]string // parameters in the startup packet
	fixture string            // statements that run once, first
	known   string            // a statement that runs once; {r} is its result
	leave   step              // makes the state
	rival   step              // makes the same state in another client; nil = leave
	see     step              // returns the present state
	settles bool              // even without a gateway other clients may see a change a moment after the client has disconnected
}

// step is an action of a client. It returns the answers.
type step func(p *player) string

// queries sends each statement as a Query.
func queries(statements ...string) step {
	return func(p *player) string {
		said := ""
		for _, sql := range statements {
			said = also(said, p.query(p.text(sql)))
		}
		return said
	}
}

// params sends a statement with parameters in the extended protocol.
func params(sql string, args ...string) step {
	return func(p *player) string { return p.extended(p.text(sql), p.texts(args)...) }
}

// fastPath calls a function with the protocol's FunctionCall.
func fastPath(signature string, args ...string) step {
	return func(p *player) string {
		oid, err := p.hunter.functionOID(signature)
		if err != nil {
			return err.Error()
		}
		return p.function(oid, p.texts(args)...)
	}
}

// parse prepares a statement with Parse; an empty name is the unnamed statement.
func parse(name, sql string) step {
	return func(p *player) string {
		p.Send(&pgproto3.Parse{Name: p.text(name), Query: p.text(sql)})
		p.Send(&pgproto3.Sync{})
		return p.answer()
	}
}

// execute runs a statement prepared by parse.
func execute(name string) step {
	return func(p *player) string {
		p.sendBind("", p.text(name))
		p.Send(&pgproto3.Execute{})
		p.Send(&pgproto3.Sync{})
		return p.answer()
	}
}

// openPortal leaves a portal open in a transaction, with rows still to come.
func openPortal(p *player) string {
	begun := p.query("begin")
	p.Send(&pgproto3.Parse{Query: "select generate_series(1, 2)"})
	p.sendBind(p.text("p_{k}"), "")
	p.Send(&pgproto3.Execute{Portal: p.text("p_{k}"), MaxRows: 1})
	p.Send(&pgproto3.Sync{})
	return also(begun, p.answer())
}

// notified makes another client notify the kind's channel and returns what the client receives.
func notified(p *player) string {
	if err := p.hunter.exec(p.text("notify c_{k}, 'x'")); err != nil {
		return err.Error()
	}
	return p.query("select 1")
}

// The groups, in the order of the table.
const (
	bySet       = "settings by `SET`"
	byOther     = "settings by other ways (`set_config`, functions, `DO`, `CALL`, views, triggers, fast path)"
	atStart     = "settings at start-up"
	identities  = "roles"
	prepared    = "prepared statements, SQL's and the protocol's"
	listening   = "`LISTEN`"
	temporary   = "temporary tables, views, sequences, functions"
	locks       = "session advisory locks"
	heldCursors = "`WITH HOLD` cursors"
	sequences   = "`currval`, `lastval`, `setseed`, cached values"
	extensions  = "`LOAD`, connections of dblink, replication origins"
	inside      = "what a transaction holds: locks, portals, large objects, `SET LOCAL`"
)

var (
	mem    = [2]string{"1234kB", "4321kB"}
	tenant = [2]string{"mine", "theirs"}
	roles  = [2]string{"hunt_a", "hunt_b"}
	ones   = [2]string{"1", "2"}

	showMem    = queries("show work_mem")
	showTenant = queries("select current_setting('app.tenant', true)")
	showZone   = queries("show timezone")
	whoAmI     = queries("select current_user, session_user")
	own        = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
	tryLock    = queries(own, "select pg_try_advisory_xact_lock({n})") // takes no lock that lasts
)

// with adds the common fields to kinds.
func with(common kind, kinds ...kind) []kind {
	for i := range kinds {
		k := &kinds[i]
		k.group = common.group
		if k.see == nil {
			k.see = common.see
		}
		if k.values == [2]string{} {
			k.values = common.values
		}
		k.settles = k.settles || common.settles
	}
	return kinds
}

func settingKinds() []kind {
	return with(kind{group: bySet, values: mem, see: showMem},
		kind{name: "set", leave: queries("set work_mem = '{v}'")},
		kind{name: "set-extended", leave: params("set work_mem = '{v}'")},
		kind{name: "set-in-transaction", leave: queries("begin", "set work_mem = '{v}'", "commit")},
		kind{name: "set-among-others", leave: queries("select 1; set work_mem = '{v}'; select 2")},
		kind{name: "set-after-comment", leave: queries("/* a -- /* b */ */ SET/**/work_mem to '{v}'")},
		kind{name: "set-custom", values: tenant, leave: queries("set app.tenant = '{v}'"), see: showTenant},
		kind{name: "set-twice", leave: queries("set work_mem = '9999kB'", "set work_mem = '{v}'")},
		kind{name: "set-time-zone", values: [2]string{"Asia/Tokyo", "Asia/Dubai"}, leave: queries("set time zone '{v}'"), see: showZone},
		kind{name: "set-names", values: [2]string{"LATIN1", "LATIN2"}, leave: queries("set names '{v}'"), see: queries("show client_encoding")},
		kind{name: "set-schema", values: [2]string{"pg_catalog", "information_schema"}, leave: queries("set schema '{v}'"), see: queries("show search_path")},
		kind{name: "set-search-path", values: [2]string{"pg_catalog", "information_schema"}, leave: queries("set search_path = {v}"), see: queries("show search_path")},
		kind{name: "set-datestyle", values: [2]string{"SQL, DMY", "Postgres, DMY"}, leave: queries("set datestyle = {v}"), see: queries("show datestyle")},
		kind{name: "set-timeout", values: [2]string{"12345ms", "23456ms"}, leave: queries("set statement_timeout = '{v}'"), see: queries("show statement_timeout")},
		kind{name: "set-application-name", values: tenant, leave: queries("set application_name = '{v}'"), see: queries("show application_name")},
		kind{name: "set-read-only", values: [2]string{"on", "on"}, leave: queries("set default_transaction_read_only = {v}"), see: queries("show default_transaction_read_only")},
		kind{name: "set-xml-option", values: [2]string{"document", "document"}, leave: queries("set xml option {v}"), see: queries("show xmloption")},
		kind{name: "session-characteristics", values: [2]string{"serializable", "repeatable read"},
			leave: queries("set session characteristics as transaction isolation level {v}"), see: queries("show default_transaction_isolation")},
	)
}

func hiddenSettingKinds() []kind {
	set := "set_config('work_mem', '{v}', false)"
	return with(kind{group: byOther, values: mem, see: showMem},
		kind{name: "set-config", leave: queries("select " + set)},
		kind{name: "set-config-custom", values: tenant, leave: queries("select set_config('app.tenant', '{v}', false)"), see: showTenant},
		kind{name: "set-config-extended", leave: params("select set_config($1, $2, false)", "work_mem", "{v}")},
		kind{name: "set-config-fast-path", leave: fastPath("set_config(text, text, boolean)", "work_mem", "{v}", "f")},
		kind{name: "set-config-cursor", leave: queries("begin", "declare c_{k} cursor for select "+set, "fetch c_{k}", "commit")},
		kind{name: "set-config-copy", leave: queries("copy (select " + set + ") to stdout")},
		kind{name: "set-config-execute", leave: queries("prepare e_{k} as select "+set, "execute e_{k}", "deallocate e_{k}")},
		kind{name: "set-config-view", values: [2]string{"1234kB", "1234kB"}, fixture: "create view v_{k} as select set_config('work_mem', '1234kB', false)",
			leave: queries("select * from v_{k}")},
		kind{name: "set-config-trigger", fixture: "create table t_{k} (v text); create trigger g before insert on t_{k} for each row execute function hunt_trigger()",
			leave: queries("insert into t_{k} values ('{v}')")},
		kind{name: "set-function", leave: queries("select hunt_do('set work_mem = ''{v}''')")},
		kind{name: "set-do", leave: queries("do $$ begin set work_mem = '{v}'; end $$")},
		kind{name: "set-call", leave: queries("call hunt_call('set work_mem = ''{v}''')")},
		kind{name: "update-pg-settings", values: [2]string{"1234", "4321"}, leave: queries("update pg_settings set setting = '{v}' where name = 'work_mem'")},
		kind{name: "set-by-extension", values: [2]string{"0.9", "0.8"}, leave: queries("select set_limit({v})"), see: queries("select show_limit()")},
	)
}

func loginKinds() []kind {
	kinds := with(kind{group: atStart, values: mem, see: showMem},
		kind{name: "startup-parameter", startup: map[string]string{"work_mem": "{v}"}, leave: queries("select 1")},
		kind{name: "startup-options", startup: map[string]string{"options": "-c work_mem={v}"}, leave: queries("select 1")},
		kind{name: "startup-then-set", startup: map[string]string{"options": "-c work_mem=5432kB"}, leave: queries("set work_mem = '{v}'")},
		kind{name: "startup-then-reset", startup: map[string]string{"options": "-c work_mem={v}"}, leave: queries("set work_mem = '9999kB'", "reset work_mem")},
	)
	return append(kinds, with(kind{group: identities, values: roles, see: whoAmI},
		kind{name: "set-role", leave: queries("set role {v}")},
		kind{name: "set-config-role", leave: queries("select set_config('role', '{v}', false)")},
		kind{name: "set-role-function", leave: queries("select hunt_do('set role {v}')")},
		kind{name: "session-authorization", leave: queries("set session authorization {v}")},
		kind{name: "set-config-session-authorization", leave: queries("select set_config('session_authorization', '{v}', false)")},
	)...)
}

func statementKinds() []kind {
	names := queries("select string_agg(name, ' ' order by name) from pg_prepared_statements")
	kinds := with(kind{group: prepared, values: ones},
		kind{name: "prepare", leave: queries("prepare s_{k} as select {v}"), see: queries("execute s_{k}")},
		kind{name: "prepare-extended", leave: params("prepare s_{k} as select {v}"), see: params("execute s_{k}")},
		kind{name: "prepare-function", leave: queries("select hunt_do('prepare s_{k} as select {v}')"), see: queries("execute s_{k}")},
		kind{name: "prepare-listed", leave: queries("prepare s_{k} as select {v}"), see: names},
		kind{name: "parse", leave: parse("s_{k}", "select {v}"), see: execute("s_{k}")},
		kind{name: "parse-unnamed", leave: parse("", "select {v}"), see: execute("")},
		kind{name: "parse-then-execute", leave: parse("s_{k}", "select {v}"), see: queries("execute s_{k}")},
		kind{name: "parse-listed", leave: parse("s_{k}", "select {v}"), see: names},
		kind{name: "prepare-then-bind", leave: queries("prepare s_{k} as select {v}"), see: execute("s_{k}")},
	)
	return append(kinds, with(kind{group: listening, see: notified, settles: true},
		kind{name: "listen", leave: queries("listen c_{k}")},
		kind{name: "listen-in-transaction", leave: queries("begin", "listen c_{k}", "commit")},
		kind{name: "listen-function", leave: queries("select hunt_do('listen c_{k}')")},
		kind{name: "listen-listed", leave: queries("listen c_{k}"), see: queries("select string_agg(c, ' ') from pg_listening_channels() c")},
	)...)
}

func objectKinds() []kind {
	look := queries("select n from t_{k}")
	kinds := with(kind{group: temporary, values: ones, see: look},
		kind{name: "temporary-table", leave: queries("create temp table t_{k} as select {v} as n")},
		kind{name: "temporary-table-pg-temp", leave: queries("create table pg_temp.t_{k} as select {v} as n")},
		kind{name: "temporary-table-into", leave: queries("select {v} as n into temp t_{k}")},
		kind{name: "temporary-table-function", leave: queries("select hunt_do('create temp table t_{k} as select {v} as n')")},
		kind{name: "temporary-view", leave: queries("create temp view t_{k} as select {v} as n")},
		kind{name: "temporary-sequence", leave: queries("create temp sequence t_{k} start {v}"), see: queries("select last_value from t_{k}")},
		kind{name: "temporary-function", leave: queries("create function pg_temp.f_{k}() returns int language sql as 'select {v}'"),
			see: queries("select to_regprocedure('pg_temp.f_{k}()') is not null")},
		// A dropped temporary table still has an effect: temp_buffers cannot be changed any more. The last query waits for the gateway's check
		// after DROP: a client whose server connection is killed before the end of that check gets an error, and one after it a new connection.
		kind{name: "temporary-buffers", leave: queries("create temp table t_{k} as select {v} as n", "drop table t_{k}", "select 1"), see: queries("set temp_buffers = '9MB'")},
	)
	kinds = append(kinds, with(kind{group: locks, see: tryLock, settles: true},
		kind{name: "lock", leave: queries("select pg_try_advisory_lock({n})")},
		kind{name: "lock-waiting", leave: queries("select pg_advisory_lock({n})"), rival: tryLock},
		kind{name: "lock-shared", leave: queries("select pg_advisory_lock_shared({n})"), rival: tryLock},
		kind{name: "lock-extended", leave: params("select pg_try_advisory_lock($1)", "{n}")},
		kind{name: "lock-function", leave: queries("select hunt_do('select pg_advisory_lock({n})')"), rival: tryLock},
		kind{name: "lock-fast-path", leave: fastPath("pg_try_advisory_lock(bigint)", "{n}")},
		kind{name: "lock-rolled-back", leave: queries("begin", "select pg_try_advisory_lock({n})", "rollback")},
	)...)
	return append(kinds, with(kind{group: heldCursors, values: ones, see: queries("fetch first from c_{k}")},
		kind{name: "hold", leave: queries("declare c_{k} scroll cursor with hold for select {v}")},
		kind{name: "hold-in-transaction", leave: queries("begin", "declare c_{k} scroll cursor with hold for select {v}", "commit")},
		kind{name: "hold-function", leave: queries("select hunt_do('declare c_{k} scroll cursor with hold for select {v}')")},
	)...)
}

func otherKinds() []kind {
	hundreds := [2]string{"100", "200"}
	kinds := with(kind{group: sequences, values: hundreds},
		kind{name: "currval", fixture: "create sequence q_{k}", leave: queries("select setval('q_{k}', {v})"), see: queries("select currval('q_{k}')")},
		kind{name: "lastval", fixture: "create sequence q_{k}", leave: queries("select setval('q_{k}', {v}, false)", "select nextval('q_{k}')"), see: queries("select lastval()")},
		// The first value of each ten is the first one that a session gets; it caches the others.
		kind{name: "sequence-cache", fixture: "create sequence q_{k} cache 10", leave: queries("select setval('q_{k}', 100, false)", "select nextval('q_{k}')"),
			rival: queries("select 1"), see: queries("select nextval('q_{k}') % 10 > 0")},
		kind{name: "setseed", values: [2]string{"0.25", "0.75"}, known: "select setseed(0.25); select random()", leave: queries("select setseed({v})"),
			see: queries("select random() = {r}")},
		kind{name: "set-seed", values: [2]string{"0.25", "0.75"}, known: "select setseed(0.25); select random()", leave: queries("set seed to {v}"),
			see: queries("select random() = {r}")},
	)
	kinds = append(kinds, with(kind{group: extensions},
		kind{name: "load", leave: queries("load 'auto_explain'"), see: queries("select count(*) > 0 from pg_settings where name like 'auto\\_explain.%'")},
		kind{name: "dblink", leave: queries("select dblink_connect('c_{k}', '{loopback} user=hunt_a')"), see: queries("select dblink_get_connections()")},
		kind{name: "replication-origin", fixture: "select pg_replication_origin_create('o_{k}')", leave: queries("select pg_replication_origin_session_setup('o_{k}')"),
			see: queries("select pg_replication_origin_session_is_setup()")},
	)...)
	return append(kinds, with(kind{group: inside, values: mem},
		kind{name: "transaction", leave: queries("begin", "select pg_current_xact_id() is not null"), see: queries("select pg_current_xact_id_if_assigned() is not null")},
		kind{name: "set-local", leave: queries("begin", "set local work_mem = '{v}'"), see: showMem},
		kind{name: "transaction-lock", leave: queries("begin", "select pg_advisory_xact_lock({n})"),
			see: tryLock, settles: true},
		kind{name: "portal", leave: openPortal, see: queries("select count(*) from pg_cursors where name = 'p_{k}'")},
		kind{name: "large-object", fixture: "select lo_create({n})", leave: queries("begin", "select lo_open({n}, 262144)"), see: queries("select lo_tell(0)")},
	)...)
}

// huntKinds returns all kinds.
func huntKinds() []kind {
	var kinds []kind
	for _, some := range [][]kind{settingKinds(), hiddenSettingKinds(), loginKinds(), statementKinds(), objectKinds(), otherKinds()} {
		kinds = append(kinds, some...)
	}
	for i := range kinds {
		if kinds[i].rival == nil {
			kinds[i].rival = kinds[i].leave
		}
		kinds[i].startup = maps.Clone(kinds[i].startup)
	}
	return kinds
}

// huntFixture creates what all kinds use.
const huntFixture = `
create extension pg_trgm;
create extension dblink;
create role hunt_a login superuser;
create role hunt_b login superuser;
create table hunt_sink (v text);
create function hunt_do(sql text) returns void language plpgsql as 'begin execute sql; end';
create procedure hunt_call(sql text) language plpgsql as 'begin execute sql; end';
create function hunt_trigger() returns trigger language plpgsql as 'begin perform set_config(''work_mem'', new.v, false); return new; end';
create view hunt_probe as select set_config('work_mem', '1235kB', false);
`

// also joins two answers, leaving out empty ones.
func also(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "|" + b
}

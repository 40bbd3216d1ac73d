package integration

import (
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/lib/pq"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/pgtest"
)

// consoleGateway starts a gateway with a console for its database's user, and returns the gateway and the console's URL.
func consoleGateway(t *testing.T, db database) (g *gateway, listen, url string) {
	t.Helper()
	listen = address(t)
	config := strings.Replace(db.pgConfig(t, listen, "transaction", "max_size: 5, acquire_timeout: 1m"), "{mode:",
		"{console: {admins: "+db.user+"}, mode:", 1)
	return startGateway(t, config), listen, strings.Replace(db.dsn(listen), "/"+db.name+"?", "/pgbouncer?", 1)
}

// exported are the columns of PgBouncer that pgbouncer_exporter makes metrics of, by the command.
var exported = map[string]string{
	"SHOW DATABASES;":    "name host port database force_user pool_size pool_mode max_connections current_connections paused disabled",
	"SHOW STATS_TOTALS;": "database query_count query_time bytes_received bytes_sent wait_time xact_count xact_time client_parse_count server_parse_count bind_count",
	"SHOW POOLS;": "database user cl_active cl_active_cancel_req cl_waiting cl_waiting_cancel_req sv_active sv_active_cancel sv_being_canceled " +
		"sv_idle sv_used sv_tested sv_login maxwait",
}

// labels are those of its columns that are not numbers.
var labels = []string{"name", "host", "port", "database", "force_user", "pool_mode", "user"}

// TestConsoleForPgbouncerExporter asks by lib/pq what pgbouncer_exporter asks, and reads the columns as it does.
func TestConsoleForPgbouncerExporter(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "shop")
	_, listen, url := consoleGateway(t, db)
	if out, code := psql(t, db.dsn(listen), "select 1; select 2"); code != 0 {
		t.Fatal(out)
	}
	console, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = console.Close() }()
	console.SetMaxOpenConns(1)
	if err := console.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	rowsOf(t, console, "SHOW STATS")
	for query, names := range exported {
		rows := rowsOf(t, console, query)
		found := false
		for _, row := range rows {
			found = found || row["database"] == "shop"
			for name := range strings.FieldsSeq(names) {
				value, ok := row[name]
				if _, err := strconv.ParseFloat(value, 64); !ok || err != nil && !slices.Contains(labels, name) {
					t.Errorf("%s %s: %q", query, name, value)
				}
			}
			if query == "SHOW STATS_TOTALS;" && row["database"] == "shop" && (row["query_count"] != "1" || row["bytes_received"] == "0" || row["query_time"] == "0") {
				t.Errorf("%v", row)
			}
		}
		if !found {
			t.Errorf("%s: no row of the database: %v", query, rows)
		}
	}
	eventually(t, "psql's session has ended", func() error {
		if v := lookUp(rowsOf(t, console, "SHOW LISTS;"), "list", "used_clients"); v["items"] != "1" {
			return fmt.Errorf("used_clients: %v", v)
		}
		return nil
	})
	if v := lookUp(rowsOf(t, console, "SHOW CONFIG;"), "key", "max_client_conn"); v["value"] != "10000" {
		t.Errorf("max_client_conn: %v", v)
	}
	if v := rowsOf(t, console, "SHOW VERSION;"); len(v) != 1 || !strings.HasPrefix(v[0]["version"], "PgBouncer 1.25.") {
		t.Errorf("version: %v", v)
	}
}

// lookUp returns the row in which a column has a value.
func lookUp(rows []map[string]string, column, value string) map[string]string {
	i := slices.IndexFunc(rows, func(r map[string]string) bool { return r[column] == value })
	if i < 0 {
		return nil
	}
	return rows[i]
}

// rowsOf returns the rows of a query by column; NULL is "".
func rowsOf(t *testing.T, db *sql.DB, query string) (all []map[string]string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	values, into := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		row := map[string]string{}
		for i, v := range values {
			switch v := v.(type) {
			case nil:
				row[names[i]] = ""
			case []byte:
				row[names[i]] = string(v)
			default:
				row[names[i]] = fmt.Sprint(v)
			}
		}
		all = append(all, row)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return all
}

// TestConsoleForPsql runs what a runbook has, with pgbench on the database: no transaction fails.
func TestConsoleForPsql(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "shop")
	g, listen, url := consoleGateway(t, db)
	db.pgbenchInit(t)
	bench := start(t, exec.Command(program(t, "pgbench"), "-n", "-c", "8", "-R", "200", "-T", "8", db.dsn(listen)))
	eventually(t, "pgbench runs", func() error {
		if out, _ := psql(t, url, "SHOW POOLS"); !strings.Contains(out, "shop|shop|") || strings.Contains(out, "shop|shop|0|0") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	want := func(command, answer string) {
		t.Helper()
		if out, code := psql(t, url, command); code != 0 || !strings.Contains(out, answer) {
			t.Errorf("%s: exit code %d: %s", command, code, out)
		}
	}
	for range 3 {
		want("PAUSE;", "PAUSE")
		want("SHOW DATABASES", "|1|0\n") // paused
		want("RESUME;", "RESUME")
	}
	want("RELOAD", "RELOAD")
	want("SHOW STATE; SHOW HELP", "paused|no")
	in := startPsql(t, url)
	in.says(t, `\d`, "Use SHOW HELP")
	in.says(t, `\l`, "Use SHOW HELP")
	in.says(t, "SHOW VERSION;", "PgBouncer 1.25")
	if list := g.clients(1, "-database", "pgbouncer"); list[0].User != "shop" || list[0].Upstream != "console:pgbouncer" {
		t.Errorf("%+v", list)
	}
	if err := bench.Wait(); err != nil || !strings.Contains(bench.out.String(), "number of failed transactions: 0 ") {
		t.Errorf("%v\n%s", err, bench.out)
	}
}

// TestConsoleForDrivers: psycopg and JDBC run commands by both protocols.
func TestConsoleForDrivers(t *testing.T) {
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "shop")
	_, listen, url := consoleGateway(t, db)
	for name, cmd := range map[string]*exec.Cmd{
		"psycopg": clienttest.Python(t, clienttest.Program(t, "console.py"), url),
		"JDBC":    clienttest.Java(t, clienttest.Program(t, "Console.java"), fmt.Sprintf("jdbc:postgresql://%s/pgbouncer?user=%s&password=%s&sslmode=disable", listen, db.user, db.password)),
	} {
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "ok\n") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestConsoleLikePgBouncer compares the columns, and their types, with those of the installed PgBouncer. A newer version may
// have more, and gives some another name or type.
func TestConsoleLikePgBouncer(t *testing.T) {
	changed := map[string]string{ // in versions from 1.18 to 1.25
		"databases.reserve_pool": "reserve_pool_size",
	}
	db := newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "shop")
	_, _, url := consoleGateway(t, db)
	ours, theirs := connect(t, url), connect(t, pgBouncerConsole(t))
	for _, name := range []string{
		"pools", "clients", "servers", "sockets", "active_sockets", "stats", "stats_totals", "stats_averages", "totals", "lists", "databases", "users", "config",
		"version", "mem", "dns_hosts", "dns_zones", "timezone",
	} {
		at, have := 0, columnsOf(t, ours, "show "+name)
		for _, column := range columnsOf(t, theirs, "show "+name) {
			title, typ, _ := strings.Cut(column, " ")
			if to, ok := changed[name+"."+title]; ok {
				title = to
			}
			if title == "id" {
				typ = "20" // int8: docs/console.md
			}
			i := slices.Index(have[at:], title+" "+typ)
			if i < 0 {
				t.Errorf("show %s: PgBouncer has %q, which is missing or out of order in %q", name, column, have)
				continue
			}
			at += i + 1
		}
	}
}

// columnsOf returns the names of a query's columns, each with the OID of its type.
func columnsOf(t *testing.T, conn *pgx.Conn, query string) (list []string) {
	t.Helper()
	results := conn.PgConn().Exec(t.Context(), query)
	if results.NextResult() {
		for _, f := range results.ResultReader().FieldDescriptions() { // ReadAll has none for a result without rows
			list = append(list, fmt.Sprintf("%s %d", f.Name, f.DataTypeOID))
		}
	}
	if err := results.Close(); err != nil || len(list) == 0 {
		t.Fatalf("%s: %v", query, err)
	}
	return list
}

// pgBouncerConsole starts a PgBouncer and returns the URL of its console.
func pgBouncerConsole(t *testing.T) string {
	t.Helper()
	listen := address(t)
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(sharedDir(t), "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\nshop = host=127.0.0.1 port=1\n[pgbouncer]\nlisten_addr = %s\nlisten_port = %s\nunix_socket_dir =\nauth_type = any\nadmin_users = shop\n", host, port)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	startPgBouncer(t, file, listen)
	return "postgres://shop@" + listen + "/pgbouncer?sslmode=disable"
}

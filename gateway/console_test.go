package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

const consoleText = `
engine: {engine}
drain_timeout: 10s
listeners:
  - name: db
    protocol: postgres
    listen: "{listen}"
    postgres: {users_file: "{users}", databases: {app: pg, other: pg}, {console}}
upstreams:
  pg:
    endpoints: ["{db}"]
    postgres: {user: "{user}", dbname: postgres, read_catalogs: false}
    pool: {max_size: 3, acquire_timeout: 1m}
`

const consoleKeys = "console: {admins: [alice], viewers: [stats]}"

// consoleTest is a gateway with a console.
type consoleTest struct {
	*gatewaytest.Gateway
	t     *testing.T
	pairs []string
}

// eachConsole runs a test with a gateway on each engine.
func eachConsole(t *testing.T, keys string, test func(c *consoleTest)) {
	t.Helper()
	db := pgtest.Start(t)
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) { test(newConsoleTest(t, db, engine, keys)) })
	}
}

func newConsoleTest(t *testing.T, db *pgtest.Cluster, engine, keys string) *consoleTest {
	t.Helper()
	db.Exec(t, "drop table if exists counters", "create table counters (client int primary key, n int not null)")
	users := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(users, []byte("\"alice\" \"pw\"\n\"stats\" \"pw\"\n\"bob\" \"pw\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pairs := []string{
		"{engine}", engine, "{listen}", conntest.FreeAddress(t), "{users}", users, "{db}", db.Addr(), "{user}", db.Superuser(),
	}
	return &consoleTest{run(t, parse(t, consoleText, append(pairs, "{console}", keys)...)), t, pairs}
}

// dsn is how a user reaches a database.
func (c *consoleTest) dsn(user, database string) string {
	return "postgres://" + user + ":pw@" + c.Addr("db") + "/" + database + "?sslmode=disable&application_name=tester"
}

// connect logs in.
func (c *consoleTest) connect(user, database string) *pgconn.PgConn {
	c.t.Helper()
	conn, err := pgconn.Connect(context.Background(), c.dsn(user, database))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// ask runs commands and returns the rows of the last one, by column.
func ask(conn *pgconn.PgConn, sql string) (rows []map[string]string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	for _, values := range results[len(results)-1].Rows {
		row := map[string]string{}
		for i, f := range results[len(results)-1].FieldDescriptions {
			row[f.Name] = string(values[i])
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// want runs a command that must succeed.
func (c *consoleTest) want(conn *pgconn.PgConn, sql string) []map[string]string {
	c.t.Helper()
	rows, err := ask(conn, sql)
	if err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

// row returns the row in which a column has a value.
func (c *consoleTest) row(conn *pgconn.PgConn, sql, column, value string) map[string]string {
	c.t.Helper()
	rows := c.want(conn, sql)
	i := slices.IndexFunc(rows, func(r map[string]string) bool { return r[column] == value })
	if i < 0 {
		c.t.Fatalf("%s: no row with %s = %s: %v", sql, column, value, rows)
	}
	return rows[i]
}

// refused runs a command that must fail.
func (c *consoleTest) refused(conn *pgconn.PgConn, sql, code, text string) {
	c.t.Helper()
	_, err := ask(conn, sql)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != code || !strings.Contains(e.Message+e.Hint, text) {
		c.t.Errorf("%.100q: %v; want %s with %q", sql, err, code, text)
	}
}

// TestConsoleRoles: only listed users with the right password get the console, and viewers change nothing.
func TestConsoleRoles(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		for dsn, code := range map[string]string{
			c.dsn("bob", "pgbouncer"):                                   "42501",
			strings.Replace(c.dsn("alice", "pgbouncer"), "pw", "no", 1): "28P01",
			c.dsn("nobody", "pgbouncer"):                                "28P01",
			c.dsn("alice", "nodb"):                                      "3D000",
			c.dsn("alice", "pgbouncer") + "&replication=database":       "42501",
		} {
			conn, err := pgconn.Connect(context.Background(), dsn)
			if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != code || e.Severity != "FATAL" {
				c.t.Errorf("%s: %v, want %s", dsn, err, code)
			}
			if err == nil {
				_ = conn.Close(context.Background())
			}
		}
		stats := c.connect("stats", "pgbouncer")
		if got := c.want(stats, "show version")[0]["version"]; got != "PgBouncer 1.25.2 (Headpond test)" {
			c.t.Error(got)
		}
		for _, sql := range []string{"pause", "PAUSE app", "resume", "kill", "kill app", "kill_client 1", "reload"} {
			c.refused(stats, sql, "42501", "admin access needed")
		}
		if until := c.Snapshot().Upstreams[0].PausedUntil; !until.IsZero() {
			c.t.Error("a viewer has paused the upstream")
		}
		i := slices.IndexFunc(c.Sessions(), func(s listener.Info) bool {
			return s.User == "stats" && s.Database == "pgbouncer" && s.Upstream == "console:pgbouncer"
		})
		if i < 0 {
			c.t.Errorf("the register lacks the console's session: %v", c.Sessions())
		}
	})
}

// TestConsoleCommands: how commands may be written, and the errors, after which the session continues.
func TestConsoleCommands(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		conn := c.connect("alice", "pgbouncer")
		for _, sql := range []string{
			"show pools", "SHOW POOLS;", " /* a /* b */ c */ Show -- d\n pools ;; ", "SELECT pools", "show databases; show pools",
		} {
			if rows := c.want(conn, sql); len(rows) != 3 || rows[0]["database"] != "app" || rows[2]["database"] != "pgbouncer" {
				c.t.Errorf("%s: %v", sql, rows)
			}
		}
		for _, sql := range []string{
			"", ";", "-- ping", "select 1", "SELECT version()", "SELECT pg_catalog.version();", "set extra_float_digits = 3", "SET client_encoding TO 'UTF8'",
			"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "set application_name = 'x'", "DISCARD ALL", "deallocate all", "reset all", "show help",
			"show timezone", "show datestyle", "set session datestyle to iso", "set time zone 'UTC'",
		} {
			c.want(conn, sql)
		}
		for _, x := range [][3]string{
			{"show nonsense", "42601", "Use SHOW HELP;"}, {"nonsense", "42601", "Use SHOW HELP;"}, {"show", "42601", "Use SHOW HELP;"},
			{"show pools twice", "42601", "Use SHOW HELP;"}, {"select * from pg_class", "42601", "Use SHOW HELP;"}, {"pause 'app'", "42601", "Use SHOW HELP;"},
			{"show version; nonsense; show version", "42601", "nonsense"}, {"pause \"app", "42601", "unterminated"}, {"/* ", "42601", "unterminated"},
			{"set max_client_conn = 5", "0A000", "Change the configuration file"}, {"begin", "0A000", "autocommit"}, {"suspend", "0A000", "PAUSE"},
			{"shutdown wait_for_clients", "0A000", "SIGTERM"}, {"disable app", "0A000", "databases"}, {"reconnect", "0A000", "RESUME"},
			{"disable", "0A000", "databases"}, {"show fds", "0A000", "SHOW CLIENTS"},
			{"pause nowhere", "3D000", "no such database: nowhere"}, {"pause pgbouncer", "0A000", "console itself"}, {"resume", "55000", "no database is paused"},
			{"resume app", "55000", "database app is not paused"}, {"kill_client 99", "42704", "client not found"}, {"kill_client x", "42601", "invalid client id"},
			{"kill_client", "42601", "needs an argument"}, {"reload", "F0000", "see the log"}, // the test's configuration is no file
			{"show " + strings.Repeat("x", 1<<20), "54000", "over the console's limit"}, {"show \xff\xfe", "42601", "�"},
		} {
			c.refused(conn, x[0], x[1], x[2])
		}
		if rows := c.want(conn, "show state"); len(rows) != 3 || rows[0]["value"] != "yes" {
			c.t.Errorf("after the errors: %v", rows)
		}
	})
}

// TestConsoleCounts: the statistics are those of the clients, and outlast them.
func TestConsoleCounts(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		conn := c.connect("stats", "pgbouncer")
		client := c.connect("bob", "app")
		for range 3 {
			c.want(client, "begin")
			c.want(client, "select 1")
			c.want(client, "commit")
		}
		c.want(client, "select pg_sleep(0.05)")
		pool := func() map[string]string { return c.row(conn, "show pools", "database", "app") }
		if p := pool(); p["cl_active"] != "1" || p["sv_idle"] != "1" || p["sv_active"] != "0" || p["pool_mode"] != "transaction" {
			c.t.Errorf("idle: %v", p)
		}
		c.want(client, "begin")
		if p := pool(); p["cl_active"] != "1" || p["sv_idle"] != "0" || p["sv_active"] != "1" {
			c.t.Errorf("in a transaction: %v", p)
		}
		info := c.row(conn, "show clients", "database", "app")
		server := c.row(conn, "show servers", "state", "active")
		if info["state"] != "active" || info["user"] != "bob" || info["application_name"] != "tester" || info["link"] != server["ptr"] ||
			server["link"] != info["ptr"] || server["remote_pid"] == "0" || server["database"] != "app" {
			c.t.Errorf("client %v\nserver %v", info, server)
		}
		c.want(client, "commit")
		if n := c.row(conn, "show users", "name", "bob")["current_client_connections"]; n != "1" {
			c.t.Errorf("%s clients of bob", n)
		}
		before := c.row(conn, "show stats", "database", "app")
		want := map[string]string{"total_xact_count": "5", "total_query_count": "12", "total_server_assignment_count": "5"}
		i := slices.IndexFunc(c.Sessions(), func(s listener.Info) bool { return s.Database == "app" })
		s := c.Sessions()[i]
		want["total_received"], want["total_sent"] = strconv.FormatUint(s.BytesIn, 10), strconv.FormatUint(s.BytesOut, 10)
		for name, value := range want {
			if before[name] != value {
				c.t.Errorf("%s = %s, want %s", name, before[name], value)
			}
		}
		if n, _ := strconv.Atoi(before["total_xact_time"]); n < 50_000 {
			c.t.Errorf("total_xact_time %d is less than the 50 ms that a client has slept", n)
		}
		_ = client.Close(context.Background())
		conntest.Eventually(c.t, "the client has left", func() bool { return pool()["cl_active"] == "0" })
		after := c.row(conn, "show stats", "database", "app")
		for name := range want {
			if was, _ := strconv.Atoi(before[name]); after[name] < before[name] && len(after[name]) <= len(before[name]) || was == 0 {
				c.t.Errorf("%s: %s, and %s after the client has left", name, before[name], after[name])
			}
		}
		if total := c.row(conn, "show totals", "name", "total_query_count")["value"]; len(total) < 2 {
			c.t.Errorf("total_query_count %s", total)
		}
		if d := c.row(conn, "show databases", "name", "other"); d["pool_size"] != "3" || d["database"] != "postgres" || d["current_connections"] != "1" || d["paused"] != "0" {
			c.t.Errorf("%v", d)
		}
	})
}

// TestConsolePause: PAUSE returns when no connection is left, and no transaction fails until RESUME.
func TestConsolePause(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		conn := c.connect("alice", "pgbouncer")
		stop := make(chan struct{})
		var clients, begun sync.WaitGroup
		done := make([]int, 5) // more than the pool has connections
		for i := range done {
			begun.Add(1)
			clients.Go(func() { done[i] = transactAt(c.t, c.dsn("bob", "app"), i, sync.OnceFunc(begun.Done), stop) })
		}
		begun.Wait()
		for _, db := range []string{"", " app"} {
			c.want(conn, "PAUSE"+db)
			if _, quiet := waiting(c.Snapshot().Upstreams[0].Status); !quiet {
				c.t.Error("PAUSE has returned before all connections are closed")
			}
			conntest.Eventually(c.t, "clients wait", func() bool { return c.row(conn, "show pools", "database", "app")["cl_waiting"] == "5" })
			if d := c.row(conn, "show databases", "name", "app"); d["paused"] != "1" || d["current_connections"] != "0" {
				c.t.Errorf("%v", d)
			}
			if s := c.row(conn, "show state", "key", "paused"); s["value"] != "yes" {
				c.t.Errorf("%v", s)
			}
			c.want(conn, "resume"+db)
			before := c.Snapshot().Upstreams[0].Status.Endpoints[0].Pool.Acquired
			status(c.t, c.Gateway, "clients continue", func(s upstream.Status) bool { return s.Endpoints[0].Pool.Acquired > before+10 })
		}
		close(stop)
		clients.Wait()
		if slices.Contains(done, 0) {
			c.t.Error(done)
		}
	})
}

// TestConsolePauseEnds: a PAUSE that a transaction holds up is undone by a cancel request, by the end of its session, and by
// another's RESUME.
func TestConsolePauseEnds(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		holder := c.connect("bob", "app")
		c.want(holder, "begin")
		watcher := c.connect("alice", "pgbouncer")
		paused := func() bool { return c.row(watcher, "show databases", "name", "app")["paused"] == "1" }
		for name, end := range map[string]func(conn *pgconn.PgConn){
			"cancel": func(conn *pgconn.PgConn) { _ = conn.CancelRequest(context.Background()) },
			"leave":  func(conn *pgconn.PgConn) { _ = conn.Conn().Close() },
			"kill": func(conn *pgconn.PgConn) {
				c.want(watcher, "kill_client "+c.row(watcher, "show clients", "port", portOf(conn))["id"])
			},
			"resume": func(*pgconn.PgConn) { c.want(watcher, "resume app") },
		} {
			conn := c.connect("alice", "pgbouncer")
			result := make(chan error, 1)
			go func() { _, err := ask(conn, "pause app"); result <- err }()
			conntest.Eventually(c.t, name+": the pause begins", paused)
			select {
			case err := <-result:
				c.t.Fatalf("%s: PAUSE has not waited: %v", name, err)
			default:
			}
			end(conn)
			if err := <-result; err == nil {
				c.t.Errorf("%s: PAUSE has succeeded", name)
			}
			conntest.Eventually(c.t, name+": the pause has ended", func() bool { return !paused() })
			_ = conn.Close(context.Background())
		}
		c.want(holder, "commit")
		c.want(watcher, "pause app")
		c.want(watcher, "resume app")
	})
}

// portOf returns the client's port.
func portOf(conn *pgconn.PgConn) string {
	_, port, _ := net.SplitHostPort(conn.Conn().LocalAddr().String())
	return port
}

// TestConsoleKill ends one client, and all clients of a database.
func TestConsoleKill(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		conn := c.connect("alice", "pgbouncer")
		app, other := c.connect("bob", "app"), c.connect("bob", "other")
		c.want(app, "begin")
		c.want(conn, "KILL_CLIENT "+c.row(conn, "show clients", "database", "app")["id"])
		c.gone(app)
		c.want(other, "select 1")
		app = c.connect("bob", "app")
		c.want(app, "begin")
		c.want(conn, "kill app")
		c.gone(app)
		if d := c.row(conn, "show databases", "name", "app"); d["paused"] != "1" {
			c.t.Errorf("after KILL: %v", d)
		}
		c.want(conn, "resume")
		c.want(other, "select 1")
		c.want(conn, "kill")
		c.gone(other)
		c.want(conn, "resume app")
	})
}

// gone checks that a session was ended by an operator.
func (c *consoleTest) gone(conn *pgconn.PgConn) {
	c.t.Helper()
	_, err := ask(conn, "select 1")
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "57P01" {
		c.t.Errorf("%v, want 57P01", err)
	}
}

// TestConsoleExtended: drivers that prepare everything get the same rows, in binary form, also after the session was
// suspended.
func TestConsoleExtended(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		conn, err := pgx.Connect(context.Background(), c.dsn("alice", "pgbouncer"))
		if err != nil {
			c.t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		for _, name := range []string{
			"clients", "config", "databases", "dns_hosts", "dns_zones", "lists", "mem", "peer_pools", "peers", "pools", "servers", "sockets", "state", "stats",
			"stats_averages", "stats_totals", "totals", "users", "version",
		} {
			var simple, binary [][]string
			for mode, to := range map[pgx.QueryExecMode]*[][]string{pgx.QueryExecModeSimpleProtocol: &simple, pgx.QueryExecModeCacheStatement: &binary} {
				rows, err := conn.Query(context.Background(), "show "+name, mode)
				if err != nil {
					c.t.Fatal(err)
				}
				for rows.Next() {
					values, err := rows.Values()
					if err != nil {
						c.t.Fatalf("show %s, mode %v: %v", name, mode, err)
					}
					var texts []string
					for i, v := range values {
						text := fmt.Sprint(v)
						if volatile(name, rows.FieldDescriptions()[i].Name, values) {
							text = ""
						}
						texts = append(texts, text)
					}
					*to = append(*to, texts)
				}
				if err := rows.Err(); err != nil {
					c.t.Errorf("show %s, mode %v: %v", name, mode, err)
				}
			}
			if fmt.Sprint(simple) != fmt.Sprint(binary) {
				c.t.Errorf("show %s:\n%v\n%v", name, simple, binary)
			}
		}
		conntest.Eventually(c.t, "the session is suspended", func() bool { return c.idle() })
		if _, err := conn.Exec(context.Background(), "show pools"); err != nil {
			c.t.Errorf("a prepared statement after a suspension: %v", err)
		}
		if _, err := conn.Exec(context.Background(), "show nonsense"); err == nil {
			c.t.Error("show nonsense succeeds")
		}
		if _, err := conn.Exec(context.Background(), "pause app"); err != nil {
			c.t.Error(err)
		}
		if _, err := conn.Exec(context.Background(), "resume app"); err != nil {
			c.t.Error(err)
		}
		if err := conn.Ping(context.Background()); err != nil {
			c.t.Error(err)
		}
	})
}

// idle reports whether all sessions have been idle for longer than they keep their stack.
func (c *consoleTest) idle() bool {
	return !slices.ContainsFunc(c.Sessions(), func(s listener.Info) bool {
		return s.State != listener.StateIdle || time.Since(s.Since) < time.Second
	})
}

// volatile reports whether a value of a SHOW changes from one command to the next.
func volatile(show, column string, row []any) bool {
	if strings.HasPrefix(show, "stats") || show == "totals" {
		return column != "database" && column != "name"
	}
	return strings.HasSuffix(column, "_time") || column == "wait" || column == "wait_us"
}

// TestConsoleReload: sessions that the configuration no longer allows end with their next command, and others continue.
func TestConsoleReload(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		alice, stats := c.connect("alice", "pgbouncer"), c.connect("stats", "pgbouncer")
		reload := func(console string) {
			c.t.Helper()
			if err := c.Reload(parse(c.t, consoleText, append(slices.Clone(c.pairs), "{console}", console)...)); err != nil {
				c.t.Fatal(err)
			}
		}
		reload("console: {viewers: [alice, bob]}")
		c.refused(alice, "pause", "42501", "admin access needed")
		c.want(alice, "show pools")
		c.gone(stats)
		c.want(c.connect("bob", "pgbouncer"), "show pools")
		reload("mode: transaction")
		c.gone(alice)
		if conn, err := pgconn.Connect(context.Background(), c.dsn("alice", "pgbouncer")); err == nil {
			_ = conn.Close(context.Background())
			c.t.Error("there is still a console")
		}
	})
}

// TestConsoleDrain: a drain does not wait for a console.
func TestConsoleDrain(t *testing.T) {
	eachConsole(t, consoleKeys, func(c *consoleTest) {
		idle, pausing, holder := c.connect("alice", "pgbouncer"), c.connect("alice", "pgbouncer"), c.connect("bob", "app")
		c.want(holder, "begin")
		result := make(chan error, 1)
		go func() { _, err := ask(pausing, "pause"); result <- err }()
		conntest.Eventually(c.t, "the pause begins", func() bool { return c.row(idle, "show databases", "name", "app")["paused"] == "1" })
		c.Stop()
		if e, ok := errors.AsType[*pgconn.PgError](<-result); !ok || e.Code != "57P01" {
			c.t.Errorf("a PAUSE at a drain: %v", e)
		}
		c.gone(idle)
		c.want(holder, "commit")
		if err := <-c.Result; err != nil {
			c.t.Error(err)
		}
	})
}

// TestConsoleTrust: without passwords the console is for this machine only.
func TestConsoleTrust(t *testing.T) {
	text := `
listeners:
  - {name: db, protocol: postgres, listen: "{listen}", upstream: pg, postgres: {auth: trust, console: {database: admin, admins: alice}}}
upstreams:
  pg: {endpoints: ["127.0.0.1:1"], postgres: {user: app}}
`
	gw := run(t, parse(t, text, "{listen}", "127.0.0.1:0"))
	conn, err := pgconn.Connect(context.Background(), "postgres://alice@"+gw.Addr("db")+"/admin?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if rows, err := ask(conn, "show databases"); err != nil || len(rows) != 2 || rows[0]["name"] != "app" || rows[1]["name"] != "admin" {
		t.Errorf("%v %v", rows, err)
	}
	socket := filepath.Join(t.TempDir(), ".s.PGSQL.6432")
	gw = run(t, parse(t, text, "{listen}", "unix:"+socket))
	over, err := pgconn.Connect(context.Background(), "host="+filepath.Dir(socket)+" port=6432 user=alice dbname=admin sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = over.Close(context.Background()) }()
	if rows, err := ask(over, "show config"); err != nil || len(rows) < 10 {
		t.Errorf("%v %v", rows, err)
	}
}

// TestConsoleProblems: what the check of a configuration says about consoles.
func TestConsoleProblems(t *testing.T) {
	for keys, want := range map[string]string{
		"databases: {pgbouncer: pg}, console: {admins: a}": `console: database: "pgbouncer" is a name under "databases", too`,
		`console: {database: "*", admins: a}`:              `console: database: want the name of the database`,
		"console: {database: own, admins: a}":              `"own" is the database of upstream "pg", too`,
		"console: {}":                                      "nobody may use it",
		"console: {admins: a, admin: b}":                   `did you mean "admins"`,
	} {
		_, problems := config.Parse("c.yaml", []byte(`
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:1", upstream: pg, postgres: {`+keys+`}}
upstreams:
  pg: {endpoints: ["127.0.0.1:2"], postgres: {user: u, dbname: own}}
`))
		if got := problems.String(); !strings.Contains(got, want) {
			t.Errorf("%s:\n%swant %s", keys, got, want)
		}
	}
}

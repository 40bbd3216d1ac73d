package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// lookUp is the function that operators make for an auth_query.
const lookUp = `CREATE OR REPLACE FUNCTION public.headpond_user(INOUT name text, OUT secret text) RETURNS SETOF record
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$ SELECT rolname::text, rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1 AND rolcanlogin $$`

const lookUpSQL = "SELECT name, secret FROM public.headpond_user($1)"

// lookups is the backend of a test, and counts the queries for users.
type lookups struct {
	backend atomic.Pointer[pgproxy.Postgres]
	queries atomic.Int64
}

func (c *lookups) Secret(ctx context.Context, sql, user string) (string, error) {
	c.queries.Add(1)
	return c.backend.Load().Secret(ctx, sql, user)
}

// startLookingUp runs a proxy that has the cluster look up its users.
func startLookingUp(t *testing.T, db *pgtest.Cluster, sql string, change func(*pgproxy.Config, *pgproxy.PostgresConfig)) (*gateway, *lookups) {
	t.Helper()
	from := &lookups{}
	g := start(t, db, func(c *pgproxy.Config, p *pgproxy.PostgresConfig) {
		c.Auth, c.AuthQuery = pgproxy.AuthSCRAM, pgproxy.AuthQuery{SQL: sql, From: from}
		if change != nil {
			change(c, p)
		}
	})
	from.backend.Store(g.backend)
	return g, from
}

// logsIn tries to log in, and returns the SQLSTATE of the error, "" for none.
func (g *gateway) logsIn(t *testing.T, user, password string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(g.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Password = user, password
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err == nil {
		one[int](t, conn, "SELECT 1")
		_ = conn.Close(t.Context())
		return ""
	}
	if sqlstate(err) == "" {
		t.Fatalf("user %s: %v", user, err)
	}
	return sqlstate(err)
}

func TestAuthQuery(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, lookUp, "SET password_encryption = 'md5'", "CREATE ROLE lookup_md5 LOGIN PASSWORD 'old secret'", "RESET password_encryption",
		"CREATE ROLE lookup_scram LOGIN PASSWORD 'a secret'", `CREATE ROLE "lookup O'Brien ""$1""" LOGIN PASSWORD 'x'`,
		"CREATE ROLE lookup_none LOGIN", "CREATE ROLE lookup_nologin PASSWORD 'a secret'", "CREATE ROLE lookup_listed LOGIN PASSWORD 'of the server'")
	t.Cleanup(func() {
		db.Exec(t, `DROP ROLE lookup_md5, lookup_scram, "lookup O'Brien ""$1""", lookup_none, lookup_nologin, lookup_listed`)
	})
	for _, auth := range []pgproxy.Auth{pgproxy.AuthSCRAM, pgproxy.AuthMD5} {
		g, _ := startLookingUp(t, db, lookUpSQL, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
			c.Auth, c.Users = auth, pgproxy.Users{"lookup_listed": "of the list"}
		})
		md5 := ""
		if auth == pgproxy.AuthSCRAM {
			md5 = "28P01" // SCRAM cannot verify an md5 secret
		}
		for _, c := range []struct{ user, password, want string }{
			{"lookup_scram", "a secret", ""},
			{"lookup_scram", "another", "28P01"},
			{"lookup_md5", "old secret", md5},
			{"lookup_md5", "another", "28P01"},
			{`lookup O'Brien "$1"`, "x", ""},
			{"lookup_none", "x", "28P01"},
			{"lookup_nologin", "a secret", "28P01"},
			{"lookup_nobody", "x", "28P01"},
			{"lookup_listed", "of the list", ""},
			{"lookup_listed", "of the server", "28P01"},
		} {
			if got := g.logsIn(t, c.user, c.password); got != c.want {
				t.Errorf("%s: user %s, password %q: SQLSTATE %q, want %q", auth, c.user, c.password, got, c.want)
			}
		}
		if log := g.log.String(); strings.Contains(log, "SCRAM-SHA-256$") || strings.Contains(log, "a secret") {
			t.Error("the log shows a secret")
		}
		if unfit := g.log.Line("lookup_md5", "md5 secret"); (unfit != "") != (auth == pgproxy.AuthSCRAM) {
			t.Errorf("%s: the log about an md5 secret: %q", auth, unfit)
		}
	}
}

// TestAuthQueryOnce has many clients log in as one user at once.
func TestAuthQueryOnce(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, lookUp, "CREATE ROLE lookup_many LOGIN PASSWORD 'a secret'")
	t.Cleanup(func() { db.Exec(t, "DROP ROLE lookup_many") })
	g, from := startLookingUp(t, db, lookUpSQL, nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got := g.logsIn(t, "lookup_many", "a secret"); got != "" {
				t.Errorf("SQLSTATE %s", got)
			}
		})
	}
	all.Wait()
	if n := from.queries.Load(); n != 1 {
		t.Errorf("%d queries for one user, want 1", n)
	}
}

// TestAuthQueryNewPassword changes a password under a running gateway.
func TestAuthQueryNewPassword(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, lookUp, "CREATE ROLE lookup_changed LOGIN PASSWORD 'first'")
	t.Cleanup(func() { db.Exec(t, "DROP ROLE IF EXISTS lookup_changed") })
	g, from := startLookingUp(t, db, lookUpSQL, nil)
	if got := g.logsIn(t, "lookup_changed", "first"); got != "" {
		t.Fatalf("SQLSTATE %s", got)
	}
	db.Exec(t, "ALTER ROLE lookup_changed PASSWORD 'second'")
	g.AgeAnswers(time.Second)
	if got := g.logsIn(t, "lookup_changed", "second"); got != "28P01" { // by the answer of before
		t.Errorf("SQLSTATE %q", got)
	}
	if got := g.logsIn(t, "lookup_changed", "second"); got != "" {
		t.Errorf("the new password after one failure: SQLSTATE %s", got)
	}
	before := from.queries.Load()
	g.AgeAnswers(-time.Hour) // however slow the machine is
	for range 3 {
		if got := g.logsIn(t, "lookup_changed", "wrong"); got != "28P01" {
			t.Errorf("SQLSTATE %q", got)
		}
	}
	if n := from.queries.Load() - before; n != 0 {
		t.Errorf("%d queries within a second for a client that guesses", n)
	}
	db.Exec(t, "DROP ROLE lookup_changed")
	g.AgeAnswers(2 * time.Hour)
	if got := g.logsIn(t, "lookup_changed", "second"); got != "28P01" {
		t.Errorf("a dropped user: SQLSTATE %q", got)
	}
}

// documented returns the SQL of the manual's section on users of a server.
func documented(t *testing.T) string {
	t.Helper()
	manual, err := os.ReadFile("../docs/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(manual), "## Users of a server")
	_, sql, found := strings.Cut(section, "```sql\n")
	if sql, _, _ = strings.Cut(sql, "```"); !found || !strings.Contains(sql, "gateway_auth.find") {
		t.Fatal("no SQL in the manual")
	}
	return sql
}

// TestAuthQueryAsDocumented follows the manual, and has a client try to read secrets and to decide what the query finds.
func TestAuthQueryAsDocumented(t *testing.T) {
	db := pgtest.Start(t)
	db.CreateUser(t, "app", "of app")
	db.CreateDatabase(t, "app", "app")
	db.Exec(t, documented(t), "CREATE ROLE victim LOGIN PASSWORD 'a secret'", "ALTER ROLE gateway_auth PASSWORD 'of the query'",
		"CREATE ROLE expired LOGIN PASSWORD 'x' VALID UNTIL '2001-01-01'", "CREATE ROLE boss SUPERUSER LOGIN PASSWORD 'x'")
	users, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{
		Name: "users", Settings: upstream.Settings{Endpoints: upstream.Endpoints(db.Addr())}, User: "gateway_auth", Password: "of the query", DBName: "postgres", Dial: enginetest.Dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(users.Close)
	g := start(t, db, func(c *pgproxy.Config, p *pgproxy.PostgresConfig) {
		c.AuthQuery = pgproxy.AuthQuery{SQL: "SELECT name, secret FROM gateway_auth.find($1)", From: users}
		c.Auth, c.Users = pgproxy.AuthSCRAM, pgproxy.Users{"low": "of low"}
		p.User, p.Password, p.DBName = "app", "of app", "app"
	})
	for _, user := range []string{"expired", "boss"} {
		if got := g.logsIn(t, user, "x"); got != "28P01" {
			t.Errorf("user %s: SQLSTATE %q", user, got)
		}
	}
	if got := g.logsIn(t, "victim", "a secret"); got != "" {
		t.Fatalf("SQLSTATE %s", got)
	}
	low := g.connect(t, "user=low password='of low'")
	for _, sql := range []string{
		"CREATE SCHEMA gateway_auth",
		"CREATE FUNCTION gateway_auth.find(INOUT name text, OUT secret text) LANGUAGE sql AS $$ SELECT $1, 'of the attacker' $$",
		"ALTER DATABASE app SET search_path = app", "ALTER ROLE app SET search_path = app", "ALTER ROLE app SET statement_timeout = 1",
	} {
		do(t, low, sql) // allowed to the owner of the database, in the client's database only
	}
	if _, err := low.Exec(t.Context(), "ALTER ROLE gateway_auth SET search_path = app"); sqlstate(err) != "42501" {
		t.Errorf("a client changed the query's user: %v", err)
	}
	conn, err := pgx.Connect(t.Context(), db.DSN("app", "of app", "postgres")+"&statement_timeout=0") // not the role's 1 ms
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "SELECT gateway_auth.find('victim')"); sqlstate(err) != "42501" {
		t.Errorf("the clients' user called the function: %v", err)
	}
	g.AgeAnswers(10 * time.Second)
	if got := g.logsIn(t, "victim", "of the attacker"); got != "28P01" {
		t.Errorf("the attacker's password: SQLSTATE %q", got)
	}
	if got := g.logsIn(t, "victim", "a secret"); got != "" {
		t.Errorf("SQLSTATE %s", got)
	}
}

// TestAuthQueryNamesSchemas has a query that would find what the settings of its user say.
func TestAuthQueryNamesSchemas(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, lookUp)
	g, _ := startLookingUp(t, db, "SELECT name, secret FROM headpond_user($1)", func(_ *pgproxy.Config, p *pgproxy.PostgresConfig) {
		p.Params = []pgwire.Param{{Name: "Search_Path", Value: "public"}}
	})
	if got := g.logsIn(t, "somebody", "x"); got != "57P03" || g.log.Line("client refused", "headpond_user", "does not exist") == "" {
		t.Errorf("SQLSTATE %q", got)
	}
}

// TestAuthQueryHashes has queries that return passwords, and what users without rights see in their place.
func TestAuthQueryHashes(t *testing.T) {
	db := pgtest.Shared(t)
	for sql, password := range map[string]string{
		"SELECT usename, passwd FROM pg_user WHERE usename = $1": "********",
		"SELECT $1::text, 'a password'":                          "a password",
		"SELECT $1::text, 'SCRAM-SHA-256$broken'":                "x",
	} {
		g, _ := startLookingUp(t, db, sql, nil)
		if got := g.logsIn(t, db.Superuser(), password); got != "28P01" {
			t.Errorf("%s: SQLSTATE %q, want 28P01", sql, got)
		}
	}
}

// TestAuthQueryOddNames has names that no server has. It is not asked for them.
func TestAuthQueryOddNames(t *testing.T) {
	g, from := startLookingUp(t, pgtest.Shared(t), "SELECT $1::text, 'x'", nil)
	for _, user := range []string{strings.Repeat("x", 64), "bad\xff", "\xc3"} {
		if got := g.logsIn(t, user, "x"); got != "28P01" {
			t.Errorf("user %q: SQLSTATE %q", user, got)
		}
	}
	if n := from.queries.Load(); n != 0 {
		t.Errorf("%d queries", n)
	}
}

// TestAuthQueryFullPool looks a user up while clients have every connection, of several endpoints.
func TestAuthQueryFullPool(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, lookUp, "CREATE ROLE lookup_full LOGIN PASSWORD 'a secret'")
	t.Cleanup(func() { db.Exec(t, "DROP ROLE lookup_full") })
	g, from := startLookingUp(t, db, lookUpSQL, func(c *pgproxy.Config, p *pgproxy.PostgresConfig) {
		c.Users, p.Limits.MaxSize = pgproxy.Users{"app": "secret"}, 1
		p.Endpoints = upstream.Endpoints(db.Addr(), "localhost:"+itoa(db.Port()))
	})
	for range 2 {
		do(t, g.connect(t, "password=secret"), "BEGIN")
	}
	if _, err := from.Secret(t.Context(), lookUpSQL, "lookup_full"); err != nil {
		t.Error(err)
	}
}

// TestAuthQueryLeavesEndpoint changes the endpoint under a running gateway.
func TestAuthQueryLeavesEndpoint(t *testing.T) {
	db := pgtest.Shared(t)
	g, from := startLookingUp(t, db, lookUpSQL, nil)
	port := func() (found string) {
		found, err := from.Secret(t.Context(), "SELECT $1::text, pg_catalog.pg_backend_pid()::text", "x")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	first := port()
	if again := port(); again != first {
		t.Errorf("another connection for the next query: %s, %s", first, again)
	}
	other := "localhost:" + itoa(db.Port())
	if err := g.backend.Update(upstream.Settings{Endpoints: upstream.Endpoints(other)}); err != nil {
		t.Fatal(err)
	}
	if after := port(); after == first {
		t.Error("the connection to the removed endpoint is still used")
	}
	g.backend.Retire()
	if a, b := port(), port(); a == b {
		t.Error("a retired backend keeps a connection")
	}
}

// TestAuthQueryFails has queries that return no secret.
func TestAuthQueryFails(t *testing.T) {
	db := pgtest.Shared(t)
	for sql, want := range map[string]string{
		"SELECT $1::text": "1 columns, want the user's name and the secret",
		"SELECT $1::text, 'x' FROM generate_series(1, 2)":                "more than one row",
		"SELECT 'another'::text, 'x' WHERE $1::text <> ''":               "the first column is not the user's name",
		"SELECT name, secret FROM no_such_function($1)":                  "no_such_function",
		"SELECT $1::text, ('SCRAM-SHA-256$' || 'of nobody')::date::text": "SQLSTATE 22007",
	} {
		g, _ := startLookingUp(t, db, sql, nil)
		if got := g.logsIn(t, "somebody", "x"); got != "57P03" {
			t.Errorf("%s: SQLSTATE %q, want 57P03", sql, got)
		}
		if line := g.log.Line("client refused", want); line == "" {
			t.Errorf("%s: nothing about %q in the log", sql, want)
		}
		if _, err := g.backend.Secret(t.Context(), sql, "somebody"); !errors.Is(err, pgproxy.ErrAuthQuery) || strings.Contains(err.Error(), "of nobody") {
			t.Errorf("%s: %v, want ErrAuthQuery without a secret", sql, err)
		}
		if strings.Contains(g.log.String(), "of nobody") {
			t.Errorf("%s: the log shows a secret", sql)
		}
	}
}

// TestAuthQueryTakesLong has clients that wait less than a query takes. The server is asked once, and ends the query.
func TestAuthQueryTakesLong(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "CREATE TABLE secrets (name text, secret text)", "INSERT INTO secrets VALUES ('somebody', 'x')")
	g, _ := startLookingUp(t, db, lookUpSQL, nil)
	lock := db.Connect(t)
	do(t, lock, "BEGIN")
	do(t, lock, "LOCK TABLE secrets")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer stop()
			_, err := g.backend.Secret(ctx, "SELECT name, secret FROM public.secrets WHERE name = $1", "somebody")
			if !errors.Is(err, pgproxy.ErrAuthQuery) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want ErrAuthQuery and DeadlineExceeded", err)
			}
		})
	}
	all.Wait()
	if n := one[int](t, lock, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%public.secrets%' AND pid <> pg_backend_pid()"); n > 1 {
		t.Errorf("%d connections wait for the lock", n)
	}
	do(t, lock, "COMMIT")
	conntest.Eventually(t, "the next query", func() bool {
		secret, err := g.backend.Secret(t.Context(), "SELECT name, secret FROM public.secrets WHERE name = $1", "somebody")
		return secret == "x" && err == nil
	})
}

// TestLookUpsTakeTurns has somebody flood the gateway with invented names, and with that of ada, until no further look-up of theirs
// may wait. ada, from elsewhere, logs in before most of them, and waits for their look-up of ada for a moment only, even if two
// addresses have begun one.
func TestLookUpsTakeTurns(t *testing.T) {
	pgproxy.SetSecretTimeout(t, conntest.Patience) // the lock is held until all have come, however busy the machine is
	const most, names = 100, 130                   // most run or wait
	db := pgtest.Start(t)
	db.Exec(t, "CREATE ROLE ada LOGIN PASSWORD 'of ada'", "CREATE TABLE secrets AS SELECT rolname::text name, rolpassword secret FROM pg_authid WHERE rolname = 'ada'")
	g, _ := startLookingUp(t, db, "SELECT name, secret FROM public.secrets WHERE name = $1", func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Listener.AcceptProxy, c.Listener.TrustedProxies = true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		c.LoginTimeout = conntest.Patience
	})
	lock := db.Connect(t)
	do(t, lock, "BEGIN")
	do(t, lock, "LOCK TABLE secrets")
	var flood sync.WaitGroup
	var refused, unknown atomic.Int64
	for i := range names {
		name := fmt.Sprint("invented", i)
		if i == 1 { // behind one that waits for the lock, and before those that are refused
			name = "ada"
		}
		if i > 0 && i <= 2 {
			conntest.Eventually(t, "a look-up waits", func() bool { return g.backend.SecretWaiters() == i-1 })
		}
		flood.Go(func() {
			switch code := g.fromAs(t, "10.0.0.1", name, "guess"); code {
			case "57P03":
				refused.Add(1)
			case "28P01":
				unknown.Add(1)
			default:
				t.Error(code)
			}
		})
	}
	conntest.Eventually(t, "the queue is full", func() bool { return refused.Load() == names-most })
	flood.Go(func() { g.fromAs(t, "10.0.0.3", "ada", "guess") })
	conntest.Eventually(t, "the other address has somebody's place", func() bool { return refused.Load() == names-most+1 })
	done := make(chan string)
	go func() { done <- g.fromAs(t, "10.0.0.2", "ada", "of ada") }()
	conntest.Eventually(t, "ada has somebody's place", func() bool { return refused.Load() == names-most+2 })
	do(t, lock, "COMMIT")
	if code := <-done; code != "" {
		t.Errorf("ada got %s", code)
	}
	flood.Wait()
	if n := unknown.Load(); n != most-2 {
		t.Errorf("%d of the flood were looked up, want %d", n, most-2)
	}
}

// TestLookUpsOfThoseWhoLeft has a client leave while its look-up waits for another one, which waits for a lock.
func TestLookUpsOfThoseWhoLeft(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "CREATE TABLE secrets (name text, secret text)")
	g, _ := startLookingUp(t, db, "SELECT name, secret FROM public.secrets WHERE name = $1", nil)
	lock := db.Connect(t)
	do(t, lock, "BEGIN")
	do(t, lock, "LOCK TABLE secrets")
	clients := map[string]net.Conn{}
	for i, name := range []string{"first", "second"} {
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		newWire(t, conn).send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: name}}})
		conntest.Eventually(t, "a look-up waits", func() bool { return g.backend.SecretWaiters() == i })
		clients[name] = conn
	}
	_ = clients["second"].Close()
	conntest.Eventually(t, "the client's end", func() bool {
		return g.log.Line("client gone before its session began", "left during the look-up") != ""
	})
	if line := g.log.Line("left during the look-up", "first"); line != "" {
		t.Error(line)
	}
	conntest.Eventually(t, "its place is free", func() bool { return g.backend.SecretWaiters() <= 0 })
}

// TestAuthQueryServerRestarts has the server end the connection of the queries, and stop.
func TestAuthQueryServerRestarts(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, lookUp, "CREATE ROLE lookup_again LOGIN PASSWORD 'a secret'")
	g, _ := startLookingUp(t, db, lookUpSQL, nil)
	login := func() string { return g.logsIn(t, "lookup_again", "a secret") }
	if got := login(); got != "" {
		t.Fatalf("SQLSTATE %s", got)
	}
	db.Exec(t, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
	g.AgeAnswers(10 * time.Second)
	if got := login(); got != "" {
		t.Errorf("after its connection was ended: SQLSTATE %s", got)
	}
	db.Stop(t)
	g.AgeAnswers(10 * time.Second)
	if got := login(); got != "57P03" {
		t.Errorf("without a server: SQLSTATE %q, want 57P03", got)
	}
	db.Restart(t)
	conntest.Eventually(t, "logging in again", func() bool { return login() == "" })
}

func TestAuthQueryConfig(t *testing.T) {
	backend := &lookups{}
	for want, c := range map[string]pgproxy.Config{
		"has no effect with auth trust": {Auth: pgproxy.AuthTrust, AuthQuery: pgproxy.AuthQuery{SQL: "SELECT $1, 2", From: backend}},
		"From is nil":                   {AuthQuery: pgproxy.AuthQuery{SQL: "SELECT $1, 2"}},
		"does not use":                  {AuthQuery: pgproxy.AuthQuery{SQL: "SELECT 1, 2", From: backend}},
		"needs users":                   {},
	} {
		if err := c.Verify(); !errors.Is(err, pgproxy.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestApartFailsOver has the preferred endpoint refuse connections, for connections that are in no pool.
func TestApartFailsOver(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithSetting("wal_level", "logical"), pgtest.WithSetting("max_wal_senders", "10"))
	db.Exec(t, lookUp, "CREATE ROLE lookup_over LOGIN PASSWORD 'a secret'")
	g, _ := startLookingUp(t, db, lookUpSQL, func(c *pgproxy.Config, p *pgproxy.PostgresConfig) {
		c.Users, c.ReplicationUsers = pgproxy.Users{"app": "secret"}, []string{"app"}
		p.Endpoints, p.Balance = upstream.Endpoints(conntest.FreeAddress(t), db.Addr()), upstream.First
	})
	if got := g.logsIn(t, "lookup_over", "a secret"); got != "" {
		t.Errorf("a looked-up user: SQLSTATE %s", got)
	}
	conn, err := pgconn.Connect(t.Context(), g.dsn("password=secret replication=database"))
	if err != nil {
		t.Fatalf("replication: %v", err)
	}
	_ = conn.Close(t.Context())
}

package pgproxy_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// TestPairsOfLikeNames has users and databases whose names could be taken for one another.
func TestPairsOfLikeNames(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithSetting("max_connections", "200"))
	users := pgproxy.Users{}
	names := []string{"a", "A", "a@b", "a b", `a"b`, `a\`, "ä", "a\u0308", "a' or true --", "a@", "postgre", strings.Repeat("n", 63), "replication", "all"}
	for _, name := range names {
		db.CreateUser(t, name, "of "+name)
		users[name] = secretOf(t, db, name)
	}
	databases := []string{"b@a", "a", "A", "@a", `b"a`, "ä"}
	for _, name := range databases {
		db.CreateDatabase(t, name, db.Superuser())
	}
	g := startPairs(t, db, users, nil)
	var all []*pgx.Conn
	for _, user := range names {
		for _, database := range databases {
			all = append(all, g.login(t, user, "of "+user, database))
		}
	}
	for i, c := range all {
		isUser(t, c, names[i/len(databases)], databases[i%len(databases)])
	}
	if shown, _ := g.backend.Pairs(); len(shown) != len(all) {
		t.Errorf("%d pairs have %d different names", len(all), len(shown))
	}
	for _, user := range names { // the same name for the database
		_, err := g.as(t.Context(), t, user, "of "+user, "")
		if code := sqlstate(err); user != "a" && user != "A" && user != "ä" && code != "3D000" {
			t.Errorf("user %q without a database: %v", user, err)
		}
	}
}

// TestStartupCannotChangeTheUser tries to become somebody else by a startup packet.
func TestStartupCannotChangeTheUser(t *testing.T) {
	db := startRoles(t, pgtest.Trust)
	db.Exec(t, "grant bob to ada")
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := startPairs(t, db, nil, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Auth, c.Mode = pgproxy.AuthTrust, mode })
		param := func(name, value string) pgwire.Param { return pgwire.Param{Name: name, Value: value} }
		for _, c := range []struct {
			params []pgwire.Param
			want   string // of usename, datname and current_user; or a SQLSTATE
		}{
			{[]pgwire.Param{param("user", "bob"), param("database", "till"), param("user", "ada"), param("database", "shop")}, "ada shop ada"}, // the last one counts, as on a server
			{[]pgwire.Param{param("user", "ada"), param("database", "shop"), param("role", "bob")}, "ada shop bob"},
			{[]pgwire.Param{param("user", "ada"), param("database", "shop"), param("options", "-c role=bob")}, "ada shop bob"},
			{[]pgwire.Param{param("user", "bob"), param("database", "shop"), param("role", "ada")}, "42501"},
			{[]pgwire.Param{param("user", "bob"), param("database", "shop"), param("options", "-c role=postgres")}, "42501"},
			{[]pgwire.Param{param("user", "bob"), param("database", "shop"), param("options", "-c user=postgres")}, "42704"},
			{[]pgwire.Param{param("user", "bob"), param("database", "shop"), param("options", "-c database=till")}, "42704"},
			{[]pgwire.Param{param("user", "bob"), param("database", "shop"), param("options", "-c session_authorization=ada")}, map[pgproxy.Mode]string{pgproxy.Transaction: "42501", pgproxy.Session: "0A000"}[mode]},
			{[]pgwire.Param{param("user", "bob"), param("database", "shop"), param("USER", "postgres")}, "42704"},
			{[]pgwire.Param{param("user", "bob"), param("database", "shop")}, "bob shop bob"},
		} {
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			w := newWire(t, conn)
			w.send(&pgwire.StartupMessage{Params: c.params})
			types, bodies := "", ""
			for !strings.HasSuffix(types, "Z") && !strings.HasSuffix(types, "E") {
				typ, body := w.read()
				types, bodies = types+string(typ), bodies+body
			}
			if strings.HasSuffix(types, "Z") {
				_, bodies = w.ask(query(loggedIn))
			}
			if !strings.Contains(bodies, c.want) {
				t.Errorf("%v, %v: %q, want %q", mode, c.params, bodies, c.want)
			}
			_ = w.Close()
		}
	}
}

// TestTrustedClientsGetNoProvenConnections has two listeners share an upstream, of which one asks for no password.
func TestTrustedClientsGetNoProvenConnections(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, secretsOf(t, db), nil)
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	trusting := start(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Databases = map[string]pgproxy.Backend{"*": g.backend}
	})
	_, err := trusting.as(t.Context(), t, "ada", "", "shop")
	if sqlstate(err) != "28P01" {
		t.Errorf("a client that nobody has asked for a password: %v", err)
	}
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
}

// TestSuspendedPair has sessions of a pair that were idle for long come back to their pair, also if it was to end.
func TestSuspendedPair(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	w := &watched{suspended: make(chan struct{}, 64)}
	g := startPairs(t, db, secretsOf(t, db), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Databases = map[string]pgproxy.Backend{"*": w}
	})
	w.pg.Store(g.backend)
	if enginetest.Kind() == fiber.Goroutine {
		close(w.suspended)
	}
	g.backend.PairsStayFor(1)
	one, two := g.login(t, "ada", "ada's secret", "shop"), g.login(t, "bob", "bob's secret", "shop")
	for range 3 {
		<-w.suspended
		<-w.suspended
		isUser(t, one, "ada", "shop")
		isUser(t, two, "bob", "shop")
		all, _ := g.backend.Pairs()
		if got := fmt.Sprint(all); got != "map[ada@shop:1 bob@shop:1]" {
			t.Errorf("the pairs are %s", got)
		}
	}
}

// TestPairsShowNoSecret prints everything that has to do with pairs.
func TestPairsShowNoSecret(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	users := pgproxy.Users{"ada": secretOf(t, db, "ada"), "bob": "bob's secret"}
	g := startPairs(t, db, users, nil)
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	isUser(t, g.login(t, "bob", "bob's secret", "shop"), "bob", "shop")
	db.Exec(t, "alter role ada password 'x'", "alter role bob password 'x'", "select pg_terminate_backend(pid, 60000) from pg_stat_activity where usename in ('ada', 'bob')")
	_, _ = g.as(t.Context(), t, "ada", "ada's secret", "shop")
	_, _ = g.as(t.Context(), t, "bob", "bob's secret", "shop")
	v, err := pgwire.ParseScramVerifier(users["ada"])
	if err != nil {
		t.Fatal(err)
	}
	shown := g.log.String() + g.backend.Print() + fmt.Sprintf("%+v %+v", g.backend.Status(), g.Sessions())
	for _, secret := range []string{"bob's secret", hex.EncodeToString(v.ServerKey), base64.StdEncoding.EncodeToString(v.ServerKey), fmt.Sprint(v.ServerKey[:8])[1:20], pgwire.MD5Secret("bob", "bob's secret")} {
		if strings.Contains(shown, secret) {
			t.Errorf("%q is shown in\n%s", secret, shown)
		}
	}
}

// TestPairsReplicate has replication connections log in as the client's user.
func TestPairsReplicate(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithSetting("wal_level", "logical"), pgtest.WithSetting("max_wal_senders", "10"),
		pgtest.WithHBA("host replication all 127.0.0.1/32 scram-sha-256"))
	db.Exec(t, "create role rep login replication password 'secret'", "create role plain login password 'secret'")
	g := startPairs(t, db, pgproxy.Users{"rep": secretOf(t, db, "rep"), "plain": secretOf(t, db, "plain")}, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.ReplicationUsers = []string{"*"}
	})
	for _, c := range []struct{ user, value, code string }{{"rep", "database", ""}, {"rep", "true", ""}, {"plain", "database", "42501"}} {
		cfg, err := pgconn.ParseConfig(g.dsn(""))
		if err != nil {
			t.Fatal(err)
		}
		cfg.User, cfg.Password, cfg.Database = c.user, "secret", "postgres"
		cfg.RuntimeParams["replication"] = c.value
		conn, err := pgconn.ConnectConfig(t.Context(), cfg)
		if sqlstate(err) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil {
			continue
		}
		if got := one[string](t, db.Connect(t), "select usename::text from pg_stat_activity where backend_type = 'walsender'"); got != "rep" {
			t.Errorf("the server replicates for %q", got)
		}
		_ = conn.Close(t.Context())
		conntest.Eventually(t, "the server's side ends", func() bool { return db.Backends(t) == 0 && walsenders(t, db) == 0 })
	}
	if all, _ := g.backend.Pairs(); len(all) != 0 {
		t.Errorf("replication has made the pairs %v", all)
	}
}

func walsenders(t *testing.T, db *pgtest.Cluster) int {
	return one[int](t, db.Connect(t), "select count(*) from pg_stat_activity where backend_type = 'walsender'")
}

// TestPairsListen sends a notification from one pair to a client of another.
func TestPairsListen(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, secretsOf(t, db), nil)
	listens, notifies := g.login(t, "ada", "ada's secret", "shop"), g.login(t, "bob", "bob's secret", "shop")
	simple(t, listens, "listen news")
	simple(t, notifies, "notify news, 'hello'")
	n, err := listens.WaitForNotification(bounded(t))
	if err != nil || n.Payload != "hello" {
		t.Errorf("%v, %v", n, err)
	}
	shown := 0
	for _, s := range g.Sessions() {
		shown += s.Channels
	}
	if shown != 1 {
		t.Errorf("the register shows %d channels, want 1", shown)
	}
}

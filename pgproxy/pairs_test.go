package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// startPairs runs a proxy that logs in as its clients. The gateway's own user is the superuser.
func startPairs(t testing.TB, db *pgtest.Cluster, users pgproxy.Users, change func(*pgproxy.Config, *pgproxy.PostgresConfig)) *gateway {
	t.Helper()
	return start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Auth, c.Users = pgproxy.AuthSCRAM, users
		pc.LoginAs, pc.DBName = pgproxy.AsClient, ""
		pc.Ejection.Failures = 1 // the first failure that is not a pair's own
		if change != nil {
			change(c, pc)
		}
	})
}

// as tries to connect as a user.
func (g *gateway) as(ctx context.Context, t testing.TB, user, password, database string) (*pgx.Conn, error) {
	t.Helper()
	cfg, err := pgx.ParseConfig(g.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Password, cfg.Database = user, password, database
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

// login connects as a user.
func (g *gateway) login(t testing.TB, user, password, database string) *pgx.Conn {
	t.Helper()
	conn, err := g.as(t.Context(), t, user, password, database)
	if err != nil {
		t.Fatalf("user %s, database %s: %v", user, database, err)
	}
	return conn
}

const whoAmI = "select session_user || ' ' || current_user || ' ' || current_database()"

// isUser checks whom the server takes a client for.
func isUser(t testing.TB, c *pgx.Conn, user, database string) {
	t.Helper()
	if got, want := one[string](t, c, whoAmI), user+" "+user+" "+database; got != want {
		t.Errorf("the server says %q, want %q", got, want)
	}
}

// secretOf returns what the server stores for a role.
func secretOf(t testing.TB, db *pgtest.Cluster, role string) string {
	t.Helper()
	return one[string](t, db.Connect(t), "select rolpassword from pg_authid where rolname = $1", role)
}

// startRoles runs a server that asks for passwords, with roles and databases.
func startRoles(t testing.TB, auth pgtest.Auth, more ...pgtest.Option) *pgtest.Cluster {
	t.Helper()
	db := pgtest.Start(t, append([]pgtest.Option{pgtest.WithAuth(auth)}, more...)...)
	for _, role := range []string{"ada", "bob"} {
		db.CreateUser(t, role, role+"'s secret")
	}
	db.Exec(t, "create database shop", "create database till")
	return db
}

func TestClientsUser(t *testing.T) {
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session, pgproxy.Statement} {
		for _, c := range []struct {
			name   string
			server pgtest.Auth
			auth   pgproxy.Auth
			users  func(t *testing.T, db *pgtest.Cluster) pgproxy.Users
			asks   bool // by auth_query
		}{
			{"passwords", pgtest.SCRAM, pgproxy.AuthSCRAM, passwordsOf, false},
			{"passwords, md5 server", pgtest.MD5, pgproxy.AuthSCRAM, passwordsOf, false},
			{"secrets of SCRAM", pgtest.SCRAM, pgproxy.AuthSCRAM, secretsOf, false},
			{"secrets of SCRAM, auth md5", pgtest.SCRAM, pgproxy.AuthMD5, secretsOf, false},
			{"secrets of md5", pgtest.MD5, pgproxy.AuthMD5, secretsOf, false},
			{"auth_query", pgtest.SCRAM, pgproxy.AuthSCRAM, nil, true},
			{"auth_query, md5", pgtest.MD5, pgproxy.AuthMD5, nil, true},
			{"trust", pgtest.Trust, pgproxy.AuthTrust, nil, false},
		} {
			if mode != pgproxy.Transaction && !strings.HasPrefix(c.name, "secrets of SCRAM") {
				continue
			}
			t.Run(mode.String()+", "+c.name, func(t *testing.T) {
				db := startRoles(t, c.server)
				change := func(cfg *pgproxy.Config, _ *pgproxy.PostgresConfig) { cfg.Auth, cfg.Mode = c.auth, mode }
				var g *gateway
				if c.asks {
					db.Exec(t, lookUp)
					g, _ = startLookingUp(t, db, lookUpSQL, func(cfg *pgproxy.Config, pc *pgproxy.PostgresConfig) {
						change(cfg, pc)
						pc.LoginAs, pc.DBName = pgproxy.AsClient, ""
					})
				} else {
					var users pgproxy.Users
					if c.users != nil {
						users = c.users(t, db)
					}
					g = startPairs(t, db, users, change)
				}
				for _, user := range []string{"ada", "bob"} {
					for _, database := range []string{"shop", "till"} {
						for range 2 { // the second time, the startup packet is known
							isUser(t, g.login(t, user, user+"'s secret", database), user, database)
						}
					}
				}
				if c.auth == pgproxy.AuthTrust {
					return
				}
				if got := g.logsIn(t, "ada", "bob's secret"); got != "28P01" {
					t.Errorf("a wrong password: %q", got)
				}
			})
		}
	}
}

func passwordsOf(*testing.T, *pgtest.Cluster) pgproxy.Users {
	return pgproxy.Users{"ada": "ada's secret", "bob": "bob's secret"}
}

func secretsOf(t *testing.T, db *pgtest.Cluster) pgproxy.Users {
	return pgproxy.Users{"ada": secretOf(t, db, "ada"), "bob": secretOf(t, db, "bob")}
}

// verifier returns another secret for a password than the server's.
func verifier(t testing.TB, password string) string {
	t.Helper()
	v, err := pgwire.NewScramVerifier(password, nil, pgwire.ScramIterations)
	if err != nil {
		t.Fatal(err)
	}
	return v.String()
}

// wantRefused wants the login of a user to fail, and that of others to work.
func (g *gateway) wantRefused(t *testing.T, user, password, database, code, message, hint string) {
	t.Helper()
	_, err := g.as(t.Context(), t, user, password, database)
	m, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || m.Severity != "FATAL" || m.Code != code || !has(m.Message, message) || !has(m.Hint, hint) {
		t.Errorf("user %s, database %s: %#v, want %s %q (%q)", user, database, err, code, message, hint)
	}
	if g.backend.Status().Endpoints[0].Ejected {
		t.Fatalf("user %s, database %s: the endpoint is ejected", user, database)
	}
}

// TestPairsOwnErrors makes servers refuse one pair. Its clients get the server's words, and the endpoint stays in.
func TestPairsOwnErrors(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM, pgtest.WithHBA("host all barred 127.0.0.1/32 reject", "host all plain 127.0.0.1/32 password",
		"host all all 127.0.0.1/32 scram-sha-256"))
	for _, role := range []string{"barred", "plain", "limited", "locked", "dropped", "renewed", "moved"} {
		db.CreateUser(t, role, "secret")
	}
	secrets := pgproxy.Users{
		"ada": "ada's secret", "bob": secretOf(t, db, "bob"), "barred": "secret", "plain": secretOf(t, db, "plain"), "limited": "secret", "locked": secretOf(t, db, "locked"),
		"dropped": "secret", "renewed": "secret", "moved": verifier(t, "secret"), "old": pgwire.MD5Secret("old", "secret"), strings.Repeat("a", 64): "secret",
	}
	db.CreateUser(t, "old", "secret")
	db.Exec(t, "alter role limited connection limit 0", "alter role locked nologin", "drop role dropped", "alter role renewed password 'another'",
		"create database closed", "revoke connect on database closed from public", "create database tiny connection limit 0")
	g := startPairs(t, db, secrets, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Auth = pgproxy.AuthMD5 })
	for _, c := range []struct{ user, password, database, code, message, hint string }{
		{"ada", "ada's secret", "nowhere", "3D000", `database "nowhere" does not exist`, ""},
		{"ada", "ada's secret", "closed", "42501", `permission denied for database "closed"`, ""},
		{"ada", "ada's secret", "tiny", "53300", `too many connections for database "tiny"`, ""},
		{"limited", "secret", "shop", "53300", `too many connections for role "limited"`, ""},
		{"locked", "secret", "shop", "28000", `role "locked" is not permitted to log in`, ""},
		{"dropped", "secret", "shop", "28P01", `password authentication failed for user "dropped"`, ""},
		{"renewed", "secret", "shop", "28P01", `password authentication failed for user "renewed"`, ""},
		{"barred", "secret", "shop", "28000", "the server does not let this user log in to this database from the gateway", "pg_hba.conf"},
		{"plain", "secret", "shop", "28P01", `upstream "pg": the gateway cannot log in as user "plain": the server asks for the password in clear text, and the gateway has the user's SCRAM-SHA-256 secret only`, "users_file"},
		{"moved", "secret", "shop", "28P01", `the gateway cannot log in as user "moved": the SCRAM-SHA-256 secret that the gateway has is not the server's`, "pg_authid.rolpassword"},
		{"old", "secret", "shop", "28P01", `the gateway cannot log in as user "old": the server asks for SCRAM-SHA-256, and the gateway has the user's md5 secret only`, "pg_authid.rolpassword"},
		{strings.Repeat("a", 64), "secret", "shop", "28000", "longer than 63 bytes", ""},
		{"ada", "ada's secret", strings.Repeat("a", 64), "28000", "longer than 63 bytes", ""},
	} {
		g.wantRefused(t, c.user, c.password, c.database, c.code, c.message, c.hint)
		isUser(t, g.login(t, "bob", "bob's secret", "till"), "bob", "till")
	}
	conntest.Eventually(t, "a database that is not there or not allowed is no trouble of the server", func() bool {
		errs := g.Stats().Errors
		return errs[listener.ReasonUnknownDatabase] == 1 && errs[listener.ReasonAuthFailed] == 1 && failuresOf(g) >= 9
	})
	if n := failuresOf(g); n != 9 { // the others, without names that no server has: what the gateway knows of users does not fit the server
		t.Errorf("%v failures; want 9", n)
	}
	if all, _ := g.backend.Pairs(); len(all) != 1 {
		t.Errorf("the pairs are %v, want that of bob only", all)
	}
	trusting := startPairs(t, db, nil, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Auth = pgproxy.AuthTrust })
	trusting.wantRefused(t, "ada", "", "shop", "28P01", `the server asks for a password, and the gateway's listener has asked the client for none (trust, cert or peer)`, "users_file")
	if log := g.log.String(); has(log, "SCRAM-SHA-256$") || has(log, "ada's secret") {
		t.Error("the log shows a secret")
	}
}

// TestServerDownEjects checks that failures which are not a pair's own still take the endpoint out.
func TestServerDownEjects(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, passwordsOf(t, db), nil)
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	db.Stop(t)
	if _, err := g.as(t.Context(), t, "bob", "bob's secret", "shop"); sqlstate(err) != "08006" {
		t.Errorf("%v, want 08006", err)
	}
	if !g.backend.Status().Endpoints[0].Ejected {
		t.Error("the endpoint is not ejected")
	}
}

// TestChangedPassword changes a password while clients of the old one are connected, and the gateway still has the old
// secret. New logins do not fail because the old ones do.
func TestChangedPassword(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	db.Exec(t, lookUp)
	g, _ := startLookingUp(t, db, lookUpSQL, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.LoginAs, pc.DBName, pc.Ejection.Failures = pgproxy.AsClient, "", 1
	})
	old := g.login(t, "ada", "ada's secret", "shop")
	isUser(t, old, "ada", "shop")
	db.Exec(t, "alter role ada password 'new'")
	g.AgeAnswers(-time.Hour)
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop") // there is an idle connection
	db.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'ada'")
	look := db.Connect(t)
	conntest.Eventually(t, "the server connections are gone", func() bool {
		return one[int](t, look, "select count(*) from pg_stat_activity where usename = 'ada'") == 0
	})
	for range 8 { // the pool begins to wait between attempts
		if _, err := old.Exec(t.Context(), "select 1"); sqlstate(err) != "28P01" {
			t.Errorf("a new connection with the old password: %v", err)
		}
	}
	g.AgeAnswers(2 * time.Hour)
	fresh := g.login(t, "ada", "new", "shop")
	isUser(t, fresh, "ada", "shop")
	isUser(t, old, "ada", "shop") // as on a direct connection, which a changed password does not end
	if got := g.logsIn(t, "ada", "ada's secret"); got != "28P01" {
		t.Errorf("the old password: %q", got)
	}
	if g.backend.Status().Endpoints[0].Ejected {
		t.Error("the endpoint is ejected")
	}
}

// TestMaxPairs fills the places of pairs.
func TestMaxPairs(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, passwordsOf(t, db), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.MaxPairs = 2 })
	first, second := g.login(t, "ada", "ada's secret", "shop"), g.login(t, "bob", "bob's secret", "shop")
	g.wantRefused(t, "ada", "ada's secret", "till", "53300", "too many pairs of user and database: 2", "max_pairs")
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop") // a pair that exists
	isUser(t, second, "bob", "shop")
	_ = second.Close(t.Context())
	g.waitSessions(t, "bob@shop", 0)
	isUser(t, g.login(t, "ada", "ada's secret", "till"), "ada", "till")
	isUser(t, first, "ada", "shop")
	g.wantRefused(t, "bob", "bob's secret", "shop", "53300", "too many pairs", "max_pairs")
}

// waitSessions waits until a pair has a number of sessions.
func (g *gateway) waitSessions(t testing.TB, pair string, want int) {
	t.Helper()
	conntest.Eventually(t, fmt.Sprintf("%s has %d sessions", pair, want), func() bool { all, _ := g.backend.Pairs(); return all[pair] == want })
}

// TestPairEnds has a pair end and come again.
func TestPairEnds(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	g := startPairs(t, db, passwordsOf(t, db), nil)
	stays := g.login(t, "bob", "bob's secret", "shop")
	c := g.login(t, "ada", "ada's secret", "shop")
	isUser(t, c, "ada", "shop")
	_ = c.Close(t.Context())
	g.waitSessions(t, "ada@shop", 0)
	if n := db.Backends(t); n != 2 {
		t.Errorf("the server has %d clients, want one of each pair", n)
	}
	g = startPairs(t, db, passwordsOf(t, db), nil)
	g.backend.PairsStayFor(time.Millisecond)
	for range 3 {
		c := g.login(t, "ada", "ada's secret", "shop")
		isUser(t, c, "ada", "shop")
		if _, n := g.backend.Pairs(); n != 1 {
			t.Errorf("%d databases are known, want 1", n)
		}
		_ = c.Close(t.Context())
		conntest.Eventually(t, "the pair ends", func() bool { all, n := g.backend.Pairs(); return len(all) == 0 && n == 0 })
		conntest.Eventually(t, "its connections are closed", func() bool { return db.Backends(t) == 2 })
	}
	isUser(t, stays, "bob", "shop")
}

package pgproxy_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/hba"
)

const memberRoles = `
create role m_group login; create role m_mid in role m_group; create role m_db; create role m_quoted;
create role m_in login in role m_group; create role m_deep login in role m_mid; create role m_noinherit login noinherit in role m_mid;
create role m_super login superuser; create role m_out login in role m_quoted; create role m_other login in role m_db;
create role m_listed login; create role "m Listed" login; create role m_nologin in role m_group`

const memberRules = `
host all        +m_group           all reject
host all        "+m_quoted"        all reject
host all        +m_nosuch          all reject
host samerole   m_out,m_other      all reject
host samegroup  +m_db,m_super      all reject
host "samerole" m_out              all reject
host @databases @users             all reject
`

// rejected reports whether a client is rejected by a rule.
func rejected(t *testing.T, dsn, user, database string) bool {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Database = user, database
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err == nil {
		_ = conn.Close(t.Context())
		return false
	}
	if sqlstate(err) == "" {
		t.Fatal(err)
	}
	return has(err.Error(), "pg_hba.conf rejects")
}

// TestMembersOfPostgreSQL compares decisions about members of roles, and lists in files, with those of a server that has the
// same pg_hba.conf.
func TestMembersOfPostgreSQL(t *testing.T) {
	db := pgtest.Start(t)
	do(t, db.Connect(t), memberRoles)
	file := filepath.Join(db.SocketDir(), "pg_hba.conf")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"pg_hba.conf": memberRules + string(old), "databases": "a, b\n", "users": "m_listed\n@more\n", "more": `"m Listed"`} {
		if err := os.WriteFile(filepath.Join(db.SocketDir(), name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	db.Restart(t)
	rules, err := hba.Parse(file, memberRules+"host all all all trust\n", os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	from := &lookups{}
	g := start(t, db, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Rules, c.Members = rules, from })
	from.backend.Store(g.backend)
	count := 0
	for _, user := range strings.Split("m_group m_in m_deep m_noinherit m_super m_out m_other m_listed m_nologin m_nosuch M_IN", " ") {
		for _, database := range []string{"m_db", "m_quoted", "m_group", "samerole", "a", user} {
			want := rejected(t, db.DSN("x", "x", "x"), user, database)
			if got := rejected(t, g.dsn(""), user, database); got != want {
				t.Errorf("user %s, database %s: PostgreSQL rejects: %v, we: %v", user, database, want, got)
			}
			if want {
				count++
			}
		}
	}
	if count < 20 {
		t.Errorf("%d clients were rejected, which compares little", count)
	}
	if n := from.queries.Load(); n > 11 {
		t.Errorf("%d queries for 11 users", n)
	}
	if !rejected(t, g.dsn(""), "m Listed", "b") {
		t.Error("a user of the second file is let in")
	}
	do(t, db.Connect(t), "grant m_group to m_out")
	settings := listener.Config{Name: "db", Logger: slog.New(slog.NewTextHandler(g.log, nil))}
	if err := g.Update(pgproxy.Config{Listener: settings, Auth: pgproxy.AuthTrust, Rules: rules, Members: from, Databases: map[string]pgproxy.Backend{"*": g.backend}}); err != nil {
		t.Fatal(err) // it forgets the answers
	}
	if !rejected(t, g.dsn(""), "m_out", "a") {
		t.Error("a new member is let in")
	}
	db.Stop(t)
	for user, want := range map[string]string{"m_other": "57P03", "m_in": "57P03"} {
		if got := g.logsIn(t, user, ""); got != want {
			t.Errorf("user %s, while nobody knows the members of roles: %q, want %s", user, got, want)
		}
	}
}

// A rule for members needs somebody to ask.
func TestMembersOfNobody(t *testing.T) {
	_, err := pgproxy.New(pgproxy.Config{Rules: rulesOf(t, "host all +ops all trust"), Databases: map[string]pgproxy.Backend{"*": &pgproxy.Postgres{}}})
	if err == nil || !has(err.Error(), "pg_hba.conf:1: it asks who is a member of a role, and there is no server to ask") {
		t.Error(err)
	}
}

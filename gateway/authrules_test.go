package gateway_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
)

const authRulesText = `
drain_timeout: 10s
listeners:
  - name: db
    protocol: postgres
    listen: 127.0.0.1:0
    tls: {cert: cert.pem, key: key.pem, client_ca: ca.pem, client_auth: request}
    postgres:
      databases: {app: pg}
      users_file: users.txt
      auth_hba_file: pg_hba.conf
      auth_ident_file: pg_ident.conf
      console: {admins: [alice]}
upstreams:
  pg:
    endpoints: ["{server}"]
    postgres: {user: "{user}", dbname: postgres, read_catalogs: false}
`

// authFiles is a gateway with files that say who its clients are.
type authFiles struct {
	*gatewaytest.Gateway
	t         *testing.T
	dir       string
	authority *certs.Authority
}

func newAuthFiles(t *testing.T) *authFiles {
	t.Helper()
	db := pgtest.Start(t)
	f := &authFiles{t: t, dir: t.TempDir(), authority: certs.New()}
	cert, key := certs.PEM(f.authority.Issue("localhost", "localhost"))
	ca, _ := certs.PEM(f.authority.Certificate)
	f.write("cert.pem", string(cert))
	f.write("key.pem", string(key))
	f.write("ca.pem", string(ca))
	f.write("users.txt", "\"alice\" \"pw\"\n")
	f.write("pg_hba.conf", "host all alice samehost scram-sha-256\nhostssl app all all cert map=people\nhost all all 127.0.0.1/32 trust\n")
	f.write("pg_ident.conf", "people /^(.*)@example$ \\1\n")
	f.write("headpond.yaml", strings.NewReplacer("{server}", db.Addr(), "{user}", db.Superuser()).Replace(authRulesText))
	cfg, problems := config.Load(filepath.Join(f.dir, "headpond.yaml"))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	f.Gateway = run(t, cfg)
	return f
}

func (f *authFiles) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// want tries to log in, without TLS unless there is a certificate for certOf. code and text are those of the error, "" for
// none.
func (f *authFiles) want(what, user, password, database, certOf, code, text string) {
	f.t.Helper()
	var client []tls.Certificate
	if certOf != "" {
		client = append(client, f.authority.Issue(certOf))
	}
	conn, err := login(f.t, f.Addr("db"), user, password, database, f.authority, client...)
	if err == nil {
		err = conn.Close(context.Background())
	}
	if said, ok := errors.AsType[*pgconn.PgError](err); (err != nil) != (code != "") || ok && (said.Code != code || !strings.Contains(said.Message, text)) {
		f.t.Errorf("%s: %v, want %s %q", what, err, code, text)
	}
}

// login logs in, with TLS if there is a certificate of the client's.
func login(t *testing.T, addr, user, password, database string, authority *certs.Authority, client ...tls.Certificate) (*pgconn.PgConn, error) {
	t.Helper()
	c, err := pgx.ParseConfig("postgres://" + user + ":" + password + "@" + addr + "/" + database + "?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	if len(client) > 0 {
		_, c.TLSConfig = authority.Configs()
		c.TLSConfig.Certificates = client
	}
	return pgconn.ConnectConfig(t.Context(), &c.Config)
}

// TestAuthFiles runs a gateway with a pg_hba.conf and a pg_ident.conf, which reloads read again.
func TestAuthFiles(t *testing.T) {
	f := newAuthFiles(t)
	f.want("by password", "alice", "pw", "app", "", "", "")
	f.want("by a wrong password", "alice", "no", "app", "", "28P01", "")
	f.want("by certificate", "bob", "", "app", "bob@example", "", "")
	f.want("by another certificate", "bob", "", "app", "eve@example", "28000", `certificate authentication failed for user "bob"`)
	f.want("by trust", "bob", "", "app", "", "", "")
	f.want("the console", "alice", "pw", "pgbouncer", "", "", "")

	f.write("pg_hba.conf", "host all all all trust\nhost all all all nothing\n")
	if err := f.ReloadFile(); err == nil || !strings.Contains(err.Error(), `pg_hba.conf:2: unknown method "nothing"`) {
		t.Errorf("a reload with a bad line: %v", err)
	}
	f.want("after a refused reload", "alice", "no", "app", "", "28P01", "")

	f.write("pg_hba.conf", "host all all all trust\n")
	if err := f.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	f.want("after a reload", "alice", "", "app", "", "", "")
	f.want("the console by a rule for all", "alice", "", "pgbouncer", "", "28000", "does not trust clients without a rule for it")

	f.write("pg_hba.conf", "host all @trusted all trust\n")
	f.write("trusted", "bob\n")
	if err := f.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	f.want("a list in a file", "bob", "", "app", "", "", "")
	f.want("one who is not in it", "carol", "", "app", "", "28000", "no pg_hba.conf entry")
	f.write("trusted", "carol\n")
	if err := f.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	f.want("a changed list in a file", "carol", "", "app", "", "", "")
	f.want("one who is not in it any more", "bob", "", "app", "", "28000", "no pg_hba.conf entry")

	f.write("pg_hba.conf", "host all +pg_monitor all trust\n")
	if err := f.ReloadFile(); err == nil || !strings.Contains(err.Error(), `pg_hba.conf:1: it asks who is a member of a role; name the upstream whose servers know that in "auth_upstream"`) {
		t.Errorf("members of a role, and nobody to ask: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(f.dir, "headpond.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	f.write("headpond.yaml", strings.Replace(string(text), "users_file:", "auth_upstream: pg\n      users_file:", 1))
	if err := f.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	f.want("a member of a role", "pg_monitor", "", "app", "", "", "")
	f.want("one who is none", "bob", "", "app", "", "28000", "no pg_hba.conf entry")

	f.write("pg_hba.conf", "host pgbouncer alice all trust\nhost all all all reject\n")
	if err := f.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	f.want("the console by its own rule", "alice", "", "pgbouncer", "", "", "")
	f.want("all others", "alice", "pw", "app", "", "28000", `pg_hba.conf rejects connection for host "127.0.0.1", user "alice", database "app", no encryption`)
	f.wantShown(map[string]string{"auth_type": "hba", "auth_hba_file": filepath.Join(f.dir, "pg_hba.conf"), "auth_ident_file": filepath.Join(f.dir, "pg_ident.conf")})
}

// wantShown looks for settings in SHOW CONFIG of the console.
func (f *authFiles) wantShown(settings map[string]string) {
	f.t.Helper()
	conn, err := pgconn.Connect(f.t.Context(), "postgres://alice@"+f.Addr("db")+"/pgbouncer?sslmode=disable")
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := ask(conn, "show config")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range rows {
		if want, ok := settings[r["key"]]; ok && r["value"] != want {
			f.t.Errorf("%s is shown as %q, want %q", r["key"], r["value"], want)
		}
		delete(settings, r["key"])
	}
	if len(settings) > 0 {
		f.t.Errorf("not shown: %v", settings)
	}
}

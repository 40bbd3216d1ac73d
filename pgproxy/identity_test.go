package pgproxy_test

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

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/hba"
)

// asking returns TLS settings of a listener that asks clients for certificates of an authority.
func asking(authority *certs.Authority) *tls.Config {
	server, _ := authority.Configs()
	server.ClientAuth, server.ClientCAs = tls.VerifyClientCertIfGiven, authority.Pool
	return server
}

// TestCertificates has libpq log in with client certificates.
func TestCertificates(t *testing.T) {
	authority := certs.New()
	maps, err := hba.ParseMaps("pg_ident.conf", "m \"Ada Lovelace\" ada\ndn \"CN=Ada Lovelace\" ada")
	if err != nil {
		t.Fatal(err)
	}
	g := ruled(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.TLS, c.Maps = asking(authority), maps },
		"hostssl mapped all all cert map=m",
		"hostssl dn all all cert map=dn clientname=DN",
		"hostssl full all all scram-sha-256 clientcert=verify-full",
		"hostssl ca all all scram-sha-256 clientcert=verify-ca",
		"hostssl open all all trust clientcert=verify-full",
		"hostssl all all all cert",
		"host all all all scram-sha-256",
	)
	dir := t.TempDir()
	for name, cert := range map[string]tls.Certificate{
		"ada": authority.Issue("ada"), "plain": authority.Issue("plain"), "lovelace": authority.Issue("Ada Lovelace"), "stranger": certs.New().Issue("ada"),
	} {
		crt, key := certs.PEM(cert)
		for file, text := range map[string][]byte{name + ".crt": crt, name + ".key": key} {
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const needed = "connection requires a valid client certificate"
	for _, c := range []struct{ user, database, cert, want string }{
		{"ada", "x", "ada", ""}, {"bob", "x", "ada", `certificate authentication failed for user "bob"`}, {"ada", "x", "", needed},
		{"ada", "x", "stranger", "alert"}, {"ada", "mapped", "lovelace", ""}, {"ada", "mapped", "ada", `certificate authentication failed for user "ada"`},
		{"ada", "dn", "lovelace", ""}, {"ada", "dn", "ada", "certificate authentication failed"}, {"plain", "full", "plain", ""},
		{"plain", "full", "ada", `certificate authentication failed for user "plain"`}, {"plain", "full", "", needed},
		{"plain", "ca", "ada", ""}, {"plain", "ca", "", needed}, {"ada", "open", "ada", ""}, {"plain", "open", "ada", "certificate authentication failed"},
	} {
		more := "sslmode=require sslcert= sslkey= dbname=" + c.database + " user=" + c.user
		if c.cert != "" {
			more = strings.NewReplacer("sslcert=", "sslcert="+filepath.Join(dir, c.cert+".crt"), "sslkey=", "sslkey="+filepath.Join(dir, c.cert+".key")).Replace(more)
		}
		out, err := g.psql(t, more) // with the password "secret"
		if (err == nil) != (c.want == "") || !has(out, c.want) {
			t.Errorf("user %s, database %s, certificate %q: %v: %s, want %q", c.user, c.database, c.cert, err, out, c.want)
		}
	}
	wantIn(t, g.dsn("user=plain password=secret"), "") // without TLS
	if !has(g.log.String(), `the client is \"ada\"`) {
		t.Error("the log does not say who the client is")
	}
}

// withCert logs in with a certificate.
func (g *gateway) withCert(t *testing.T, client *tls.Config, cert tls.Certificate, user, database string) (*pgx.Conn, error) {
	t.Helper()
	cfg, err := pgx.ParseConfig(strings.Replace(g.dsn(""), "sslmode=disable", "sslmode=require", 1))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Database, cfg.TLSConfig = user, database, client.Clone()
	cfg.TLSConfig.Certificates = []tls.Certificate{cert}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

// TestIdentitiesLogInAsClients has clients that prove no secret use server connections of their own user.
func TestIdentitiesLogInAsClients(t *testing.T) {
	db := startRoles(t, pgtest.SCRAM)
	authority := certs.New()
	_, client := authority.Configs()
	g := startPairs(t, db, pgproxy.Users{"ada": "ada's secret", "bob": secretOf(t, db, "bob")}, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.TLS, c.Rules = asking(authority), rulesOf(t, "hostssl shop all all cert", "hostnossl till all all trust", "host all all all scram-sha-256")
	})
	ada, err := g.withCert(t, client, authority.Issue("ada"), "ada", "shop")
	if err != nil {
		t.Fatal(err)
	}
	isUser(t, ada, "ada", "shop")
	known := g.login(t, "ada", "ada's secret", "shop") // without TLS
	isUser(t, known, "ada", "shop")
	same, err := g.withCert(t, client, authority.Issue("ada"), "ada", "shop")
	if err != nil {
		t.Fatal(err)
	}
	isUser(t, same, "ada", "shop")
	isUser(t, g.login(t, "ada", "ada's secret", "shop"), "ada", "shop")
	pidOf := func(c *pgx.Conn) int { return one[int](t, c, "select pg_backend_pid()") }
	if a, b := pidOf(ada), pidOf(known); a == b {
		t.Error("a client that has proven no secret has a server connection of one that has")
	}
	if n := len(g.backend.PairList()); n != 2 {
		t.Errorf("%d pairs, want one of those with a password and one of those with a certificate", n)
	}
	for what, c := range map[string]struct {
		connect func() (*pgx.Conn, error)
		want    string
	}{
		"a SCRAM secret does not log in":  {func() (*pgx.Conn, error) { return g.withCert(t, client, authority.Issue("bob"), "bob", "shop") }, "has asked the client for none (trust, cert or peer)"},
		"a claim does not use a password": {func() (*pgx.Conn, error) { return g.as(t.Context(), t, "ada", "", "till") }, "has asked the client for none (trust, cert or peer)"},
	} {
		conn, err := c.connect()
		if err == nil {
			_, err = conn.Exec(t.Context(), "select 1")
		}
		if said, ok := errors.AsType[*pgconn.PgError](err); !ok || said.Code != "28P01" || !has(said.Message, c.want) || !has(said.Hint, "cert and peer users_file may have") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

//go:build suites

package integration

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/pgtest"
)

// pgxSuite is run as pgx's own .github/workflows/ci.yml does, with a login of each kind. Those that need PostgreSQL 18
// (OAuth), CrateDB or libpq's test programs are left out.
var pgxSuite = suite{
	unpack:  func(t *testing.T) string { return unpackModule(t, "github.com/jackc/pgx/v5@v5.12.0") },
	options: []pgtest.Option{pgtest.WithTLS(), pgtest.WithHBA(pgxHBA...)},
	prepare: preparePgx,
	gateway: startPgxGateway,
	run: func(t *testing.T, dir string, at place) map[string]string {
		return runGoTests(t, dir, at, pgxEnvironment(dir, at), "TestFatalRxError")
	},
}

// pgxHBA says how the users of pgx's testsetup/postgresql_setup.sql log in.
var pgxHBA = []string{
	"host all pgx_md5 127.0.0.1/32 md5",
	"host all pgx_scram 127.0.0.1/32 scram-sha-256",
	"host all pgx_pw 127.0.0.1/32 password",
	"hostssl all pgx_ssl 127.0.0.1/32 scram-sha-256",
	"hostssl all pgx_sslcert 127.0.0.1/32 cert",
}

// logins are the ways to log in that a suite tries.
type logins struct {
	socketDir, socketPort string
	tlsPort               string
	ca                    string // file with the authority for localhost's certificate at tlsPort
}

// serverLogins returns those of a server, which has all at one port.
func serverLogins(server *pgtest.Cluster) logins {
	port := fmt.Sprint(server.Port())
	return logins{socketDir: server.SocketDir(), socketPort: port, tlsPort: port, ca: server.CAFile()}
}

// preparePgx does what pgx's ci/setup_test.bash does. For the second database the roles exist already.
func preparePgx(t *testing.T, dir string, server *pgtest.Cluster, db string) {
	t.Helper()
	for _, name := range []string{"ca.pem", "pgx_sslcert.crt", "pgx_sslcert.key"} {
		path := filepath.Join(dir, "testsetup", "certs", name)
		decoded, err := base64.StdEncoding.DecodeString(readFile(t, path+".b64"))
		if err != nil {
			t.Fatal(path, err)
		}
		if err := os.WriteFile(path, decoded, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	server.Exec(t, "alter system set ssl_ca_file = '"+filepath.Join(dir, "testsetup", "certs", "ca.pem")+"'", "select pg_reload_conf()")
	out, code := run(t, time.Minute, program(t, "psql"), "-X", "-q", "-f", filepath.Join(dir, "testsetup", "postgresql_setup.sql"),
		server.DSN(server.Superuser(), server.Password(), db))
	if code != 0 {
		t.Fatal(out)
	}
}

// startPgxGateway starts a gateway that asks for the same as the server. It logs in as the user with whom most tests do.
func startPgxGateway(t *testing.T, server *pgtest.Cluster, at *place) {
	t.Helper()
	dir := sharedDir(t)
	files := map[string]string{}
	write := func(name string, content []byte) {
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	authority := certs.New()
	cert, key := certs.PEM(authority.Issue("localhost", "localhost"))
	root, _ := certs.PEM(authority.Certificate)
	write("cert.pem", cert)
	write("key.pem", key)
	write("ca.pem", root)
	write("users.txt", []byte(`"pgx_md5" "secret"
"pgx_scram" "secret"
"pgx_pw" "secret"
"pgx_ssl" "secret"
`))
	write("pg_hba.conf", []byte(strings.Join(pgxHBA, "\n")+"\n"))
	var clients string // the authority of clients' certificates
	if err := server.Connect(t).QueryRow(t.Context(), "show ssl_ca_file").Scan(&clients); err != nil {
		t.Fatal(err)
	}
	plainly, secure := address(t), address(t)
	listener := func(name, listen, more, postgres string) string {
		return fmt.Sprintf("  - {name: %s, protocol: postgres, listen: %q%s, postgres: {mode: %s, users_file: %s, %s}}\n",
			name, listen, more, at.mode, files["users.txt"], postgres)
	}
	socket := filepath.Join(dir, ".s.PGSQL.5432")
	startGateway(t, "listeners:\n"+
		listener("plain", plainly, "", fmt.Sprintf(`auth_hba_file: %s, databases: {"*": pg}`, files["pg_hba.conf"]))+
		listener("tls", secure, fmt.Sprintf(", tls: {cert: %s, key: %s, client_ca: %s, client_auth: request}", files["cert.pem"], files["key.pem"], clients),
			fmt.Sprintf(`auth_hba_file: %s, databases: {"*": pg-tls}`, files["pg_hba.conf"]))+
		listener("socket", "unix:"+socket, "", `auth: trust, databases: {"*": pg}`)+
		fmt.Sprintf(`upstreams:
  pg: {endpoints: [%s], pool: {max_size: 60}, postgres: &login {user: pgx_md5, password: secret, dbname: %s}}
  pg-tls: {endpoints: [%[1]s], pool: {max_size: 60}, tls: {ca: %[3]s, server_name: localhost}, postgres: *login}
`, server.Addr(), at.db, server.CAFile()), plain)
	at.listenAt(t, plainly)
	var tls place
	tls.listenAt(t, secure)
	at.logins = logins{socketDir: dir, socketPort: "5432", tlsPort: tls.port, ca: files["ca.pem"]}
}

// pgxEnvironment returns the connection strings.
func pgxEnvironment(dir string, at place) []string {
	l := at.logins
	certificates := filepath.Join(dir, "testsetup", "certs")
	connect := func(host, port, user, more string) string {
		return fmt.Sprintf("host=%s port=%s user=%s password=secret dbname=%s %s", host, port, user, at.db, more)
	}
	main := connect(at.host, at.port, "pgx_md5", "sslmode=disable")
	verify := "sslmode=verify-full sslrootcert=" + l.ca
	return []string{
		"PGX_TEST_DATABASE=" + main,
		"PGX_TEST_TCP_CONN_STRING=" + main,
		"PGX_TEST_MD5_PASSWORD_CONN_STRING=" + main,
		"PGX_TEST_PGBOUNCER_CONN_STRING=" + main,
		"PGX_TEST_UNIX_SOCKET_CONN_STRING=" + connect(l.socketDir, l.socketPort, "pgx_md5", ""),
		"PGX_TEST_PLAIN_PASSWORD_CONN_STRING=" + connect(at.host, at.port, "pgx_pw", "sslmode=disable"),
		"PGX_TEST_SCRAM_PASSWORD_CONN_STRING=" + connect(at.host, at.port, "pgx_scram", "sslmode=disable channel_binding=disable"),
		"PGX_TEST_SCRAM_PLUS_CONN_STRING=" + connect("localhost", l.tlsPort, "pgx_ssl", verify+" channel_binding=require"),
		"PGX_TEST_TLS_CONN_STRING=" + connect("localhost", l.tlsPort, "pgx_ssl", verify+" channel_binding=disable"),
		"PGX_TEST_TLS_CLIENT_CONN_STRING=" + connect("localhost", l.tlsPort, "pgx_sslcert", verify+
			" sslcert="+filepath.Join(certificates, "pgx_sslcert.crt")+" sslkey="+filepath.Join(certificates, "pgx_sslcert.key")),
		"PGX_SSL_PASSWORD=certpw",
	}
}

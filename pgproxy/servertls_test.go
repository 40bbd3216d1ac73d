package pgproxy_test

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/internal/tlsclient"
	"github.com/headpond/headpond/pgproxy"
)

// TestNamesInServerCertificates asks libpq and the gateway for each other's opinion of certificates.
func TestNamesInServerCertificates(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithTLS())
	authority := certs.New()
	ca, _ := certs.PEM(authority.Certificate)
	root := filepath.Join(t.TempDir(), "root.crt")
	if err := os.WriteFile(root, ca, 0o644); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(db.Addr())
	for what, cert := range map[string]tls.Certificate{
		"common name":                   authority.Issue("localhost"),
		"common name in capitals":       authority.Issue("LocalHost"),
		"common name of an address":     authority.Issue("127.0.0.1"),
		"another common name":           authority.Issue("elsewhere.example"),
		"wildcard":                      authority.Issue("*.localhost"),
		"everything":                    authority.Issue("*"),
		"no name":                       authority.Issue(""),
		"alternative name":              authority.Issue("", "localhost"),
		"another alternative name":      authority.Issue("localhost", "elsewhere.example"),
		"alternative, common: address":  authority.Issue("127.0.0.1", "elsewhere.example"),
		"alternative and common name":   authority.Issue("elsewhere.example", "localhost"),
		"of itself":                     authority.Certificate,
		"of another authority":          certs.New().Issue("localhost"),
		"of another authority, as such": certs.New().Certificate,
	} {
		crt, key := certs.PEM(cert)
		for file, content := range map[string][]byte{db.CAFile(): crt, filepath.Join(filepath.Dir(db.CAFile()), "server.key"): key} {
			if err := os.WriteFile(file, content, 0o600); err != nil { // its owner stays
				t.Fatal(err)
			}
		}
		db.Restart(t)
		for _, host := range []string{"localhost", "127.0.0.1"} {
			for _, mode := range []string{"verify-full", "verify-ca"} {
				dsn := "host=" + host + " port=" + port + " user=postgres dbname=postgres sslmode=" + mode + " sslrootcert=" + root
				out, libpq := exec.CommandContext(t.Context(), db.Bin("psql"), "-X", "-c", "select 1", dsn).CombinedOutput()
				cfg := &tls.Config{RootCAs: authority.Pool}
				if mode == "verify-ca" {
					tlsclient.VerifyCA(cfg)
				}
				ours := pgproxy.Probe(pgproxy.PostgresConfig{User: "postgres", Password: db.Password(), DBName: "postgres", TLS: cfg})(context.Background(), net.JoinHostPort(host, port))
				if (libpq == nil) != (ours == nil) {
					t.Errorf("%s, host %s, %s: libpq says %v (%s), the gateway %v", what, host, mode, libpq, out, ours)
				}
			}
		}
	}
}

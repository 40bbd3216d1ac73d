package gateway_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/gatewaytest"
)

const revokedText = `
drain_timeout: 10s
listeners:
  - name: web
    protocol: http
    listen: 127.0.0.1:0
    upstream: web
    tls: {cert: cert.pem, key: key.pem, client_ca: ca.pem, client_crl: revoked.crl, client_auth: request}
  - name: db
    protocol: postgres
    listen: 127.0.0.1:0
    upstream: pg
    tls: {cert: cert.pem, key: key.pem, client_ca: ca.pem, client_crl: revoked.crl}
    postgres: {databases: {shop: pg}, auth_rules: [{type: hostssl, database: all, user: all, address: all, method: cert}]}
upstreams:
  web: {endpoints: ["{web}"]}
  pg: {endpoints: ["127.0.0.1:1"], postgres: {user: app}}
`

// revokedLists is a gateway whose clients have certificates.
type revokedLists struct {
	*gatewaytest.Gateway
	t         *testing.T
	dir       string
	authority *certs.Authority
	sessions  map[string]tls.ClientSessionCache // clients resume their TLS sessions
}

func (r *revokedLists) write(name string, data []byte) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), data, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// revoke replaces the list and reloads.
func (r *revokedLists) revoke(until time.Duration, revoked ...tls.Certificate) {
	r.t.Helper()
	r.write("revoked.crl", r.authority.Revoke(time.Now().Add(until), revoked...))
	if err := r.ReloadFile(); err != nil {
		r.t.Fatal(err)
	}
}

// get sends a request of a client with certificates, on a connection of its own, and reports whether it was answered, and
// whether the TLS session was resumed.
func (r *revokedLists) get(client ...tls.Certificate) (answered, resumed bool) {
	r.t.Helper()
	_, settings := r.authority.Configs()
	settings.Certificates = client
	if len(client) > 0 {
		settings.ClientSessionCache = r.sessions[client[0].Leaf.Subject.CommonName]
	}
	transport := &http.Transport{TLSClientConfig: settings}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("https://" + r.Addr("web"))
	if err != nil {
		return false, false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK, answer.TLS.DidResume
}

// admitted reports whether a client of PostgreSQL with a certificate gets beyond TLS: to an error of a server that does not answer.
func (r *revokedLists) admitted(client tls.Certificate) bool {
	r.t.Helper()
	_, err := login(r.t, r.Addr("db"), client.Leaf.Subject.CommonName, "", "shop", r.authority, client)
	if err == nil {
		r.t.Fatal("there is a server")
	}
	_, said := errors.AsType[*pgconn.PgError](err)
	return said
}

// TestRevoked revokes the certificates of clients in a running gateway.
func TestRevoked(t *testing.T) {
	r := &revokedLists{t: t, dir: t.TempDir(), authority: certs.New(), sessions: map[string]tls.ClientSessionCache{"ada": tls.NewLRUClientSessionCache(8), "bob": tls.NewLRUClientSessionCache(8)}}
	cert, key := certs.PEM(r.authority.Issue("localhost", "localhost"))
	ca, _ := certs.PEM(r.authority.Certificate)
	ada, bob := r.authority.Issue("ada"), r.authority.Issue("bob")
	r.write("cert.pem", cert)
	r.write("key.pem", key)
	r.write("ca.pem", ca)
	r.write("revoked.crl", r.authority.Revoke(time.Now().Add(time.Hour), bob))
	r.write("headpond.yaml", []byte(strings.ReplaceAll(revokedText, "{web}", webServer(t, "hello"))))
	cfg, problems := config.Load(filepath.Join(r.dir, "headpond.yaml"))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	r.Gateway = run(t, cfg)
	want := func(what string, adaIn, bobIn bool) {
		t.Helper()
		if ok, _ := r.get(ada); ok != adaIn {
			t.Errorf("%s: ada is served by http: %v", what, ok)
		}
		if ok, _ := r.get(bob); ok != bobIn {
			t.Errorf("%s: bob is served by http: %v", what, ok)
		}
		if ok := r.admitted(ada); ok != adaIn {
			t.Errorf("%s: ada is served by postgres: %v", what, ok)
		}
		if ok, _ := r.get(); !ok {
			t.Errorf("%s: a client without a certificate is refused", what)
		}
	}
	want("at the start", true, false)
	if ok, resumed := r.get(ada); !ok || !resumed {
		t.Fatalf("answered %v, a TLS session resumed: %v; the next step needs one", ok, resumed)
	}
	r.revoke(time.Hour, ada)
	want("after a reload", false, true)
	r.revoke(-time.Minute, bob)
	want("by an expired list", false, false)
	if s := r.Snapshot(); s.RevocationLists["web"].After(time.Now()) || s.RevocationLists["web"].IsZero() {
		t.Errorf("the list expires at %v", s.RevocationLists["web"])
	}
	r.revoke(time.Hour)
	want("by a new list", true, true)

	r.write("revoked.crl", certs.New().Revoke(time.Now().Add(time.Hour)))
	if err := r.ReloadFile(); err == nil || !strings.Contains(err.Error(), `client_crl: "`+filepath.Join(r.dir, "revoked.crl")+`": the signature of the list of "CN=headpond test" is not valid`) {
		t.Errorf("a list of somebody else: %v", err)
	}
	want("after a refused reload", true, true)
}

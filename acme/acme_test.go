package acme_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/acme"
	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
)

// running is a gateway under test, with its log.
type running struct {
	*gateway.Gateway
	t      *testing.T
	log    *conntest.Log
	folder string
}

// section is the section "acme" for an authority.
func (p *pebble) section(folder string) string {
	return fmt.Sprintf("admin: 127.0.0.1:0\nacme: {agree: true, email: ops@example.com, storage: %q, directory: %q, ca: %q}\n", folder, p.directory(), p.ca)
}

// run runs a gateway until the end of the test.
func run(t *testing.T, folder, text string) *running {
	t.Helper()
	g := &running{t: t, log: &conntest.Log{}, folder: folder}
	ready := make(chan struct{})
	gw, err := gateway.New(gatewaytest.Parse(t, text), gateway.Options{Logger: g.log.Logger(), Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- gw.Run(ctx) }()
	t.Cleanup(func() {
		gw.Close()
		stop()
		<-result
		if t.Failed() {
			t.Logf("gateway:\n%s", g.log)
		}
		if s := g.log.String(); strings.Contains(s, "PRIVATE KEY") || strings.Contains(s, "keyAuthorization") {
			t.Errorf("a secret is in the log:\n%s", s)
		}
	})
	<-ready
	g.Gateway = gw
	return g
}

// rows are what the admin page shows of certificates.
func (g *running) rows() map[string]acme.CertificateStatus {
	resp, err := http.Get("http://" + g.Addr("admin") + "/api/v1/status")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var all struct {
		ACME []acme.CertificateStatus `json:"acme"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		g.t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	rows := map[string]acme.CertificateStatus{}
	for _, r := range all.ACME {
		rows[r.Name] = r
	}
	return rows
}

// certified waits until there is a certificate.
func (g *running) certified(name string) acme.CertificateStatus {
	g.t.Helper()
	conntest.Eventually(g.t, "there is a certificate for "+name, func() bool { return g.rows()[name].Expires != nil })
	return g.rows()[name]
}

// shake connects to a listener by TLS and returns the certificate that it shows.
func shake(address, name string, roots *x509.CertPool) (*x509.Certificate, error) {
	c, err := tls.Dial("tcp", address, &tls.Config{ServerName: name, RootCAs: roots, InsecureSkipVerify: roots == nil})
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	return c.ConnectionState().PeerCertificates[0], nil
}

// clientOf returns an HTTP client that trusts roots.
func clientOf(roots *x509.CertPool, name string) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}}}
}

// TestHTTPChallenge: an http listener answers the authority, before its routes. The certificate is a postgres listener's.
func TestHTTPChallenge(t *testing.T) {
	p, folder := startPebble(t, pebbleConfig{}), filepath.Join(t.TempDir(), "acme")
	g := run(t, folder, p.section(folder)+`
listeners:
  - {name: plain, protocol: http, listen: "127.0.0.1:0", access_log: true, http: {routes: [{redirect: "https://{host}{uri}"}]}}
  - {name: sql, protocol: postgres, listen: "127.0.0.1:0", upstream: db, tls: {acme: db.test}}
upstreams:
  db: {endpoints: ["127.0.0.1:1"], postgres: {user: u}}
`)
	p.http.to(g.Addr("plain"))
	g.certified("db.test")
	c := conntest.Dial(t, g.Addr("sql"))
	if _, err := c.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f")); err != nil { // SSLRequest
		t.Fatal(err)
	}
	conntest.Want(t, c, "S")
	s := tls.Client(c, &tls.Config{ServerName: "db.test", RootCAs: p.roots(t)})
	if err := s.Handshake(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"unknown", "a/b", "x..y", "%00", strings.Repeat("a", 300), ""} {
		if r := fetch(t, "GET", "http://"+g.Addr("plain")+"/.well-known/acme-challenge/"+path); r.StatusCode != http.StatusPermanentRedirect {
			t.Errorf("%q: %s; it is not an authority's", path, r.Status)
		}
	}
	if line := g.log.Line("/.well-known/acme-challenge/", "status=200"); !strings.Contains(line, "db.test") {
		t.Errorf("access log: %s", line)
	}
	if line := g.log.Line("acme: account made"); !strings.Contains(line, p.directory()) {
		t.Errorf("log: %s", line)
	}
	private(t, folder)
}

// fetch asks without following redirects.
func fetch(t *testing.T, method, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp
}

// private checks that nobody else may read what is in a folder.
func private(t *testing.T, folder string) {
	t.Helper()
	keys := 0
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) { // a lock that was released
				return nil
			}
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode().Perm()&0o077 != 0 && (d.IsDir() || strings.HasSuffix(path, ".key")) {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if strings.HasSuffix(path, ".key") {
			keys++
		}
		return nil
	})
	if err != nil || keys != 2 {
		t.Errorf("%d keys, %v; want those of the account and of the certificate", keys, err)
	}
}

// twoListeners have the same name, and no http listener without TLS is there.
const twoListeners = `
listeners:
  - {name: t, protocol: tcp, listen: "127.0.0.1:0", upstream: echo, tls: {acme: {names}}}
  - {name: h, protocol: http, listen: "127.0.0.1:0", upstream: web, tls: {acme: {names}}}
upstreams:
  echo: {endpoints: ["{echo}"]}
  web: {endpoints: ["{echo}"]}
`

func twoListenersFor(names, echo string) string {
	return strings.NewReplacer("{names}", names, "{echo}", echo).Replace(twoListeners)
}

// TestTLSChallenge: the listeners themselves answer the authority. Both show one certificate, which survives a restart without the authority.
func TestTLSChallenge(t *testing.T) {
	p, folder, echo := startPebble(t, pebbleConfig{}), t.TempDir(), conntest.Serve(t, conntest.Echo)
	serials := map[string]bool{}
	t.Run("obtained", func(t *testing.T) {
		g := run(t, folder, p.section(folder)+twoListenersFor("[a.test, b.test]", echo))
		p.tls.to(g.Addr("t"))
		roots := p.roots(t)
		for _, name := range []string{"a.test", "b.test"} {
			g.certified(name)
			for _, l := range []string{"t", "h"} {
				cert, err := shake(g.Addr(l), name, roots)
				if err != nil {
					t.Fatal(err)
				}
				serials[cert.SerialNumber.String()] = true
			}
		}
		if cert, err := shake(g.Addr("t"), "", nil); err != nil || cert.VerifyHostname("a.test") != nil {
			t.Errorf("a client that names no server: %v", err)
		}
		if _, err := shake(g.Addr("t"), "c.test", roots); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("another name: %v", err)
		}
		if _, err := tls.Dial("tcp", g.Addr("h"), &tls.Config{ServerName: "a.test", InsecureSkipVerify: true, NextProtos: []string{"acme-tls/1"}}); err == nil {
			t.Error("a handshake for a challenge that there is not")
		}
		if !strings.Contains(get(t, g.Addr("admin"), "/metrics"), `headpond_acme_obtained_total{name="a.test"} 1`) {
			t.Error("no metric")
		}
	})
	_ = p.process.Cmd.Process.Kill()
	_ = p.process.Wait()
	g := run(t, folder, p.section(folder)+twoListenersFor("[a.test, b.test]", echo))
	for _, name := range []string{"a.test", "b.test"} { // from the first client on
		if cert, err := shake(g.Addr("t"), name, nil); err != nil || !serials[cert.SerialNumber.String()] {
			t.Errorf("%s after a restart: %v", name, err)
		}
	}
	if len(serials) != 2 {
		t.Errorf("%d certificates for two names", len(serials))
	}
}

func get(t *testing.T, address, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return string(text)
}

// TestRenewal: a certificate is replaced before it expires, while sessions go on.
func TestRenewal(t *testing.T) {
	// certmagic remembers for a minute that a renewal has failed, by name, also one that the end of an earlier test has interrupted.
	name := fmt.Sprintf("r%x.test", rand.Uint64())
	p, folder, echo := startPebble(t, pebbleConfig{Validity: 8}), t.TempDir(), conntest.Serve(t, conntest.Echo)
	g := run(t, folder, p.section(folder)+twoListenersFor(name, echo))
	p.tls.to(g.Addr("t"))
	g.certified(name)
	first, err := tls.Dial("tcp", g.Addr("t"), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	serial := first.ConnectionState().PeerCertificates[0].SerialNumber
	conntest.Eventually(t, "another certificate is shown", func() bool {
		cert, err := shake(g.Addr("t"), name, nil)
		return err == nil && cert.SerialNumber.Cmp(serial) != 0
	})
	if n := g.rows()[name].Obtained; n < 2 {
		t.Errorf("%d certificates were obtained", n)
	}
	conntest.Exchange(t, first, "the session goes on")
}

// TestRefusal: where there is no certificate, clients get that of files, or an alert, and operators the reason.
func TestRefusal(t *testing.T) {
	p, folder, echo := startPebble(t, pebbleConfig{Blocked: []string{"bad.test"}}), t.TempDir(), conntest.Serve(t, conntest.Echo)
	own := certs.New()
	cert, key := writePair(t, own)
	storage := filepath.Join(folder, "acme")
	g := run(t, storage, p.section(storage)+strings.NewReplacer("{echo}", echo, "{cert}", cert, "{key}", key).Replace(`
listeners:
  - {name: without, protocol: tcp, listen: "127.0.0.1:0", upstream: echo, tls: {acme: bad.test}}
  - {name: with, protocol: tcp, listen: "127.0.0.1:0", upstream: echo, tls: {cert: "{cert}", key: "{key}", acme: bad.test}}
upstreams:
  echo: {endpoints: ["{echo}"]}
`))
	conntest.Eventually(t, "the order has failed", func() bool { return g.rows()["bad.test"].Failed > 0 })
	row := g.rows()["bad.test"]
	if row.State != acme.StateMissing || row.Expires != nil || !strings.Contains(row.LastError, "rejectedIdentifier") || !strings.Contains(row.LastError, p.directory()) {
		t.Errorf("%+v", row)
	}
	if line := g.log.Line("no certificate was obtained", "bad.test"); !strings.Contains(line, "is it misspelt") {
		t.Errorf("log: %s", line)
	}
	if _, err := shake(g.Addr("without"), "bad.test", nil); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("no certificate: %v", err)
	}
	if _, err := shake(g.Addr("with"), "localhost", own.Pool); err != nil {
		t.Errorf("the file's name: %v", err)
	}
	if shown, err := shake(g.Addr("with"), "bad.test", nil); err != nil || !shown.Equal(own.Certificate.Leaf) {
		t.Errorf("the name without a certificate: %v", err)
	}
}

// TestReload: names come and go without a change of the others' certificates. The section itself stays.
func TestReload(t *testing.T) {
	p, folder, echo := startPebble(t, pebbleConfig{}), t.TempDir(), conntest.Serve(t, conntest.Echo)
	g := run(t, folder, p.section(folder)+twoListenersFor("[a.test]", echo))
	p.tls.to(g.Addr("t"))
	g.certified("a.test")
	before, err := shake(g.Addr("t"), "a.test", nil)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(text string) error { return g.Reload(gatewaytest.Parse(t, text)) }
	if err := reload(p.section(folder) + twoListenersFor("[a.test, b.test]", echo)); err != nil {
		t.Fatal(err)
	}
	g.certified("b.test")
	if after, err := shake(g.Addr("t"), "a.test", nil); err != nil || !after.Equal(before) {
		t.Errorf("a.test after a reload: %v", err)
	}
	if err := reload(p.section(folder) + twoListenersFor("[b.test]", echo)); err != nil {
		t.Fatal(err)
	}
	if _, ok := g.rows()["a.test"]; ok {
		t.Error("a.test is still shown")
	}
	if _, err := shake(g.Addr("t"), "a.test", nil); err == nil {
		t.Error("a.test is still served")
	}
	if err := reload(p.section(t.TempDir()) + twoListenersFor("[b.test]", echo)); err == nil || !strings.Contains(err.Error(), "restart it") {
		t.Errorf("another storage: %v", err)
	}
	if err := reload(`listeners: [{name: t, protocol: tcp, listen: "127.0.0.1:0", upstream: u}]` + "\nupstreams: {u: {endpoints: [\"" + echo + "\"]}}\n"); err != nil {
		t.Fatal(err)
	}
	if err := reload(p.section(folder) + twoListenersFor("[b.test]", echo)); err != nil {
		t.Fatal(err)
	}
	if row := g.certified("b.test"); row.Obtained != 0 {
		t.Errorf("it is in the storage: %+v", row)
	}
}

// TestSharedStorage: the authority may reach another gateway than the one that asks for a certificate.
func TestSharedStorage(t *testing.T) {
	p, folder := startPebble(t, pebbleConfig{}), t.TempDir()
	const plain = `
listeners:
  - {name: plain, protocol: http, listen: "127.0.0.1:0", http: {routes: [{respond: {status: 404}}]}}
`
	const upstreams = `
upstreams:
  db: {endpoints: ["127.0.0.1:1"], postgres: {user: u}}
`
	other := run(t, folder, p.section(folder)+plain+`
  - {name: unused, protocol: postgres, listen: "127.0.0.1:0", upstream: db}
`+upstreams)
	p.http.to(other.Addr("plain"))
	g := run(t, folder, p.section(folder)+plain+`
  - {name: sql, protocol: postgres, listen: "127.0.0.1:0", upstream: db, tls: {acme: db.test}}
`+upstreams)
	if row := g.certified("db.test"); row.LastError != "" {
		t.Errorf("%+v", row)
	}
	left, err := filepath.Glob(filepath.Join(folder, "challenges", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("challenges that are over: %v %v", left, err)
	}
}

// TestForgottenAccount: an authority that does not know the account gets another one.
func TestForgottenAccount(t *testing.T) {
	folder, echo := t.TempDir(), conntest.Serve(t, conntest.Echo)
	p := startPebble(t, pebbleConfig{})
	g := run(t, folder, p.section(folder)+twoListenersFor("[a.test]", echo))
	p.tls.to(g.Addr("t"))
	g.certified("a.test")
	other := startPebble(t, pebbleConfig{Cert: p.ca, Key: p.key})
	other.tls.to(g.Addr("t"))
	p.replace(t, other)
	if err := g.Reload(gatewaytest.Parse(t, p.section(folder)+twoListenersFor("[a.test, b.test]", echo))); err != nil {
		t.Fatal(err)
	}
	g.certified("b.test")
	if g.log.Line("the authority does not know the account") == "" {
		t.Error("nothing is logged")
	}
}

// TestWrongDirectory: a gateway runs without its authority, and says why it has none.
func TestWrongDirectory(t *testing.T) {
	p, folder, echo := startPebble(t, pebbleConfig{}), t.TempDir(), conntest.Serve(t, conntest.Echo)
	for what, c := range map[string]struct{ directory, ca, want, hint string }{
		"of an unknown authority": {p.directory(), "", "unknown authority", `set \"ca\" under \"acme\"`},
		"that is none":            {"https://" + p.front.address + "/elsewhere", p.ca, "404", "see docs/acme.md"},
		"at a closed port":        {"https://" + conntest.FreeAddress(t) + "/dir", p.ca, "connection refused", `is \"directory\" under \"acme\" right`},
	} {
		t.Run(what, func(t *testing.T) {
			section := fmt.Sprintf("admin: 127.0.0.1:0\nacme: {agree: true, storage: %q, directory: %q, ca: %q}\n", filepath.Join(folder, what), c.directory, c.ca)
			if c.ca == "" {
				section = strings.ReplaceAll(section, `, ca: ""`, "")
			}
			g := run(t, folder, section+twoListenersFor("[a.test]", echo))
			conntest.Eventually(t, "the order has failed", func() bool { return g.rows()["a.test"].Failed > 0 })
			if row := g.rows()["a.test"]; !strings.Contains(row.LastError, c.want) {
				t.Errorf("%+v", row)
			}
			if line := g.log.Line("no certificate was obtained"); !strings.Contains(line, c.hint) {
				t.Errorf("log: %s", line)
			}
		})
	}
}

// TestStagingAfterFailure: after a failure the authority is not asked before its staging directory has given a certificate.
func TestStagingAfterFailure(t *testing.T) {
	valid := "PEBBLE_VA_ALWAYS_VALID=1"
	p, staging := startPebble(t, pebbleConfig{}, valid), startPebble(t, pebbleConfig{Blocked: []string{"bad.test"}}, valid)
	both := filepath.Join(t.TempDir(), "ca.pem")
	var text []byte
	for _, file := range []string{p.ca, staging.ca} {
		one, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, one...)
	}
	if err := os.WriteFile(both, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s := acme.Settings{Agree: true, Storage: t.TempDir(), Directory: p.directory(), Staging: staging.directory(), CA: config.Path(both), KeyType: "p256"}
	if err := acme.OrderAfterFailure(t.Context(), s, requestFor(t, "bad.test")); err == nil || !strings.Contains(err.Error(), staging.directory()) {
		t.Errorf("refused by the staging directory: %v", err)
	}
	if err := acme.OrderAfterFailure(t.Context(), s, requestFor(t, "good.test")); err != nil {
		t.Error(err)
	}
	s.Staging = "https://" + conntest.FreeAddress(t) + "/dir"
	if err := acme.OrderAfterFailure(t.Context(), s, requestFor(t, "good.test")); err != nil {
		t.Errorf("the staging directory is not there: %v", err)
	}
	for _, q := range []*pebble{p, staging} {
		host := strings.ReplaceAll(q.front.address, ":", "")
		if found, _ := filepath.Glob(filepath.Join(s.Storage, "accounts", "*"+host[len(host)-5:]+"*", "account.json")); len(found) != 1 {
			t.Errorf("account at %s: %v", q.directory(), found)
		}
	}
}

func requestFor(t *testing.T, name string) *x509.CertificateRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{DNSNames: []string{name}}, certs.New().Certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

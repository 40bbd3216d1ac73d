package gateway_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
)

const routesText = `
admin: 127.0.0.1:0
drain_timeout: 10s
listeners:
  - name: tls
    protocol: tcp
    listen: "127.0.0.1:0"
    {tls}
    tcp: {routes: [{sni: a.test, upstream: "{toA}"}, {sni: "*.b.test", alpn: [x], upstream: b}]}
upstreams:
  a: {endpoints: ["{a}"]}
  b: {endpoints: ["{b}"]}
`

// TestTCPRoutesOfAFile: clients reach the upstreams of the routes, others until a reload says so.
func TestTCPRoutesOfAFile(t *testing.T) {
	ca := certs.New()
	serve := func(name string) string {
		config := &tls.Config{Certificates: []tls.Certificate{ca.Issue(name, "a.test", "x.b.test")}, NextProtos: []string{"x"}}
		return conntest.Serve(t, func(c *net.TCPConn) {
			s := tls.Server(c, config)
			defer s.Close()
			io.Copy(s, s)
		})
	}
	values := []string{"{a}", serve("a"), "{b}", serve("b"), "{tls}", ""}
	g := run(t, parse(t, routesText, append(values, "{toA}", "a")...))
	server := func(name string, protocols ...string) string {
		t.Helper()
		c := tls.Client(dial(t, g.Addr("tls")), &tls.Config{RootCAs: ca.Pool, ServerName: name, NextProtos: protocols})
		if err := c.Handshake(); err != nil {
			return err.Error()
		}
		echo(t, c, "hello")
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	for i, want := range []string{server("a.test"), server("x.b.test", "x"), server("x.b.test")} {
		if got := []string{"a", "b", "remote error: tls: unrecognized name"}[i]; got != want {
			t.Errorf("client %d: %q, want %q", i, got, want)
		}
	}
	if err := g.Reload(parse(t, routesText, append(values, "{toA}", "b")...)); err != nil {
		t.Fatal(err)
	}
	if got := server("a.test"); got != "b" {
		t.Errorf("after the reload: %q, want b", got)
	}
}

// TestCertificatesByName: the client's server name decides which certificate it is shown, a reload reads all again, and the metric
// tells when the first of them expires.
func TestCertificatesByName(t *testing.T) {
	dir := t.TempDir()
	write := func(ca *certs.Authority, file string, hosts ...string) {
		cert, key := certs.PEM(ca.Issue(file+" of "+hosts[0], hosts...))
		for ending, text := range map[string][]byte{".pem": cert, ".key": key} {
			if err := os.WriteFile(filepath.Join(dir, file+ending), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	ca := certs.New()
	write(ca, "first", "a.test")
	write(ca, "second", "*.b.test", "c.test")
	write(ca, "third", "*.b.test", "d.test")
	section := `tls: {cert: "{dir}/first.pem", key: "{dir}/first.key", certificates: [{cert: "{dir}/second.pem", key: "{dir}/second.key"}, {cert: "{dir}/third.pem", key: "{dir}/third.key"}]}`
	cfg := parse(t, strings.Replace(routesText, "tcp: {routes", "upstream: a\n    tcp: {routes", 1), "{tls}", strings.ReplaceAll(section, "{dir}", dir), "{a}", echoServer(t), "{b}", echoServer(t), "{toA}", "a")
	g := run(t, cfg)
	shown := func(name string) string {
		c := tls.Client(dial(t, g.Addr("tls")), &tls.Config{InsecureSkipVerify: true, ServerName: name})
		if err := c.Handshake(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	for name, want := range map[string]string{
		"a.test": "first of a.test", "x.b.test": "second of *.b.test", "c.test": "second of *.b.test", "D.test": "third of *.b.test",
		"other.test": "first of a.test", "": "first of a.test", strings.Repeat("x.", 200) + "d.test": "first of a.test", // no name of DNS
	} {
		if got := shown(name); got != want {
			t.Errorf("%q is shown %q, want %q", name, got, want)
		}
	}
	write(ca, "third", "e.test")
	if err := g.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	if got := shown("e.test"); got != "third of e.test" {
		t.Errorf("after the reload e.test is shown %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "third.key"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(cfg); err == nil || !strings.Contains(err.Error(), "tls: ") {
		t.Errorf("reload with a broken key: %v", err)
	}
	if got := shown("e.test"); got != "third of e.test" {
		t.Errorf("after a reload that failed e.test is shown %q", got)
	}
	expires := g.Snapshot().Certificates["tls"]
	if left := time.Until(expires); left < 22*time.Hour || left > 25*time.Hour {
		t.Errorf("the first certificate expires on %v", expires)
	}
}

// TestGatewayWithoutUpstreams only answers by itself, as one that leads clients to https.
func TestGatewayWithoutUpstreams(t *testing.T) {
	g := run(t, parse(t, `
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", http: {routes: [{path: /, redirect: "https://www.example{uri}"}]}}
`))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr("web")+"/a?b", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if to := answer.Header.Get("Location"); answer.StatusCode != http.StatusPermanentRedirect || to != "https://www.example/a?b" {
		t.Errorf("status %d, location %q", answer.StatusCode, to)
	}
}

package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/certs"
)

// startTLS runs a web server with HTTP/2 that returns its name, the protocol, and the server name of the client's
// handshake.
func startTLS(t *testing.T, name string, certificate tls.Certificate) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s %s\n", name, r.Proto, r.TLS.ServerName)
	}))
	s.EnableHTTP2, s.TLS = true, &tls.Config{Certificates: []tls.Certificate{certificate}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// writePEM writes name.pem and name.key to a directory.
func writePEM(t *testing.T, dir, name string, c tls.Certificate) {
	t.Helper()
	cert, key := certs.PEM(c)
	for file, text := range map[string][]byte{name + ".pem": cert, name + ".key": key} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTLSRoutes: openssl and curl choose servers by SNI and ALPN. TLS is between them and the server.
func TestTLSRoutes(t *testing.T) {
	ca, dir := certs.New(), t.TempDir()
	writePEM(t, dir, "ca", ca.Certificate)
	a := startTLS(t, "a", ca.Issue("a", "a.test"))
	b := startTLS(t, "b", ca.Issue("b", "*.b.test"))
	h2 := startTLS(t, "h2", ca.Issue("h2", "a.test", "c.test"))
	plain := startHTTP(t)
	listen := address(t)
	config := fmt.Sprintf(`
listeners:
  - name: web
    protocol: tcp
    listen: %q
    upstream: plain
    tcp:
      routes:
        - {sni: a.test, upstream: a}
        - {sni: "*.b.test", upstream: b}
        - {sni: c.test, alpn: h2, upstream: h2}
upstreams:
  a: {endpoints: [%q], pool: {min_idle: 1}}
  b: {endpoints: [%q]}
  h2: {endpoints: [%q]}
  plain: {endpoints: [%q]}
`, listen, a, b, h2, plain.addr())
	g := startGateway(t, config)
	before := g.footprint()
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	curl := func(options, name string) string {
		return fmt.Sprintf("curl -sS %s --cacert %s/ca.pem --connect-to ::%s https://%s:%s/ 2>&1", options, dir, listen, name, port)
	}
	s_client := func(options, name string) string { //nolint:revive // its name
		return fmt.Sprintf(`printf 'GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' | openssl s_client -quiet -verify_return_error -verify_hostname %[1]s -CAfile %s/ca.pem -connect %s %s 2>&1`,
			name, dir, listen, options)
	}
	for _, c := range []struct{ line, want string }{
		{curl("--http1.1", "a.test"), "a HTTP/1.1 a.test"},
		{curl("--http2", "a.test"), "a HTTP/2.0 a.test"},
		{curl("--http1.1 --tls-max 1.2", "X.b.test"), "b HTTP/1.1 x.b.test"},
		{curl("--http2", "c.test"), "h2 HTTP/2.0 c.test"},
		{s_client("-servername a.test", "a.test"), "a HTTP/1.1 a.test"},
		{s_client("-tls1_2 -servername y.b.test", "y.b.test"), "b HTTP/1.1 y.b.test"},
		{s_client("-servername A.TEST -groups P-521:P-256", "a.test"), "a HTTP/1.1 A.TEST"},
		{fmt.Sprintf("curl -sS http://%s/", listen), "ok"},
	} {
		if out, code := shell(t, c.line); code != 0 || !strings.Contains(out, c.want+"\n") {
			t.Errorf("%s: exit code %d, want %q:\n%s", c.line, code, c.want, out)
		}
	}
	// Connections that match no route go to the plain server, which answers a ClientHello in plain
	// text.
	if out, code := shell(t, curl("--http1.1", "c.test")); code == 0 || strings.Contains(out, "ok\n") {
		t.Errorf("without a route: exit code %d:\n%s", code, out)
	}
	g.reload(strings.Replace(config, "    upstream: plain\n", "", 1), "applied")
	if out, code := shell(t, s_client("-servername d.test", "d.test")); code == 0 || !strings.Contains(out, "unrecognized name") {
		t.Errorf("no route: exit code %d, want the alert unrecognized_name:\n%s", code, out)
	}
	if out, code := shell(t, fmt.Sprintf("curl -sS http://%s/ 2>&1", listen)); code == 0 || !strings.Contains(out, "reset by peer") {
		t.Errorf("plain text without an upstream for it: exit code %d, want a reset:\n%s", code, out)
	}
	g.awaitFootprint(before)
}

// TestTLSTermination: the gateway terminates TLS with several certificates, chooses by SNI and ALPN, and resumes
// sessions.
func TestTLSTermination(t *testing.T) {
	ca, dir := certs.New(), sharedDir(t)
	writePEM(t, dir, "ca", ca.Certificate)
	writePEM(t, dir, "a", ca.Issue("a", "a.test"))
	writePEM(t, dir, "b", ca.Issue("b", "*.b.test"))
	h1, h2 := httptest.NewServer(proto("h1")), httptest.NewUnstartedServer(proto("h2"))
	h2.Config.Protocols = new(http.Protocols)
	h2.Config.Protocols.SetUnencryptedHTTP2(true)
	h2.Start()
	t.Cleanup(h1.Close)
	t.Cleanup(h2.Close)
	listen := address(t)
	g := startGateway(t, fmt.Sprintf(`
listeners:
  - name: web
    protocol: tcp
    listen: %q
    upstream: h1
    tls: {cert: %[2]s/a.pem, key: %[2]s/a.key, certificates: [{cert: %[2]s/b.pem, key: %[2]s/b.key}]}
    tcp: {routes: [{alpn: h2, upstream: h2}]}
upstreams:
  h1: {endpoints: [%[3]q]}
  h2: {endpoints: [%[4]q]}
`, listen, dir, h1.Listener.Addr().String(), h2.Listener.Addr().String()))
	before := g.footprint()
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ options, name, want string }{
		{"--http1.1", "a.test", "h1 HTTP/1.1\n"},
		{"--http2", "a.test", "h2 HTTP/2.0\n"},
		{"--http2", "x.b.test", "h2 HTTP/2.0\n"},
		{"--http1.1 --tls-max 1.2", "y.b.test", "h1 HTTP/1.1\n"},
	} {
		line := fmt.Sprintf("curl -sS %s --cacert %s/ca.pem --connect-to ::%s https://%s:%s/ 2>&1", c.options, dir, listen, c.name, port)
		if out, code := shell(t, line); code != 0 || out != c.want {
			t.Errorf("%s: exit code %d, want %q:\n%s", line, code, c.want, out)
		}
	}
	const reconnect = "openssl s_client -reconnect -tls1_2 -servername x.b.test -CAfile %s/ca.pem -verify_return_error -verify_hostname x.b.test -connect %s </dev/null 2>&1"
	if out, code := shell(t, fmt.Sprintf(reconnect, dir, listen)); code != 0 || strings.Count(out, "\nReused, ") != 5 {
		t.Errorf("exit code %d, want five sessions resumed:\n%s", code, out)
	}
	g.awaitFootprint(before)
}

// proto returns its name and the protocol.
func proto(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, name+" "+r.Proto+"\n") })
}

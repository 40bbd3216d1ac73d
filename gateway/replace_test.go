package gateway_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/certs"
)

// certificate writes a new self-signed certificate for 127.0.0.1 to dir and returns it.
func certificate(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	c := certs.New().Certificate
	cert, key := certs.PEM(c)
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c.Leaf
}

// TestTLSComesAndGoesOnOneSocket: http becomes https and back on the same port, and a new certificate is shown after a reload.
func TestTLSComesAndGoesOnOneSocket(t *testing.T) {
	dir, web, address := t.TempDir(), webServer(t, "a"), freeAddresses(t, 1)[0]
	plain := parse(t, webText, "{listen}", address, "{web}", web, "{more}", "")
	withTLS := strings.Replace(webText, "upstream: web}", `upstream: web, tls: {cert: "{dir}/cert.pem", key: "{dir}/key.pem"}}`, 1)
	g := run(t, plain)
	want := certificate(t, dir)
	shown := func() *x509.Certificate {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the test looks at the certificate
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		return c.ConnectionState().PeerCertificates[0]
	}
	tlsConfig := parse(t, withTLS, "{listen}", address, "{web}", web, "{more}", "", "{dir}", dir)
	if err := g.Reload(tlsConfig); err != nil {
		t.Fatal(err)
	}
	if !shown().Equal(want) {
		t.Error("another certificate is shown")
	}
	want = certificate(t, dir)
	if err := g.Reload(tlsConfig); err != nil {
		t.Fatal(err)
	}
	if !shown().Equal(want) {
		t.Error("the old certificate is shown after a reload")
	}
	if err := g.Reload(plain); err != nil {
		t.Fatal(err)
	}
	if code, body, err := get(client(t), "http://"+address+"/"); err != nil || code != 200 || body != "a" {
		t.Errorf("plain again: %d %q %v", code, body, err)
	}
}

// TestReloadChangesProtocolOnOneSocket: a unix socket's path survives when another listener takes it over.
func TestReloadChangesProtocolOnOneSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	server := echoServer(t)
	g := run(t, parse(t, webText, "{listen}", "unix:"+path, "{web}", webServer(t, "a"), "{more}", ""))
	text := strings.Replace(tcpText, "name: raw", "name: web", 1)
	if err := g.Reload(parse(t, text, "{listen}", "unix:"+path, "{echo}", server)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	echo(t, c, "raw now")
	_ = c.Close()
	g.Close()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left behind")
	}
}

// TestReloadChangesTheLog: the gateway's own log follows the configuration, also for loggers made before.
func TestReloadChangesTheLog(t *testing.T) {
	var out bytes.Buffer
	logger, apply, flush := gateway.NewLog(&out, "text", "info")
	derived := logger.With("listener", "db")
	derived.Info("one")
	derived.Debug("hidden")
	apply("json", "debug")
	derived.Debug("two")
	flush()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "msg=one listener=db") {
		t.Fatalf("log:\n%s", out.String())
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(lines[1]), &line); err != nil || line["msg"] != "two" || line["listener"] != "db" {
		t.Errorf("second line: %s, %v", lines[1], err)
	}
}

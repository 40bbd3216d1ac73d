package gateway_test

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
)

// TestHealthCheckFilesAreReadAgain: a check keeps working when its certificates are replaced, and while its files are
// being replaced, and no line of the log has the token.
func TestHealthCheckFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var authority atomic.Pointer[certs.Authority]
	var token atomic.Value
	renew := func(bearer string) {
		a := certs.New()
		authority.Store(a)
		token.Store("Bearer " + bearer)
		cert, key := certs.PEM(a.Issue("headpond"))
		ca, _ := certs.PEM(a.Certificate)
		write("ca.crt", ca)
		write("client.crt", cert)
		write("client.key", key)
		write("token", []byte(bearer+"\n"))
	}
	renew("hunter2-first")
	s := picky(t, &authority, &token)
	cfg := parse(t, `
listeners: [{name: l, protocol: tcp, listen: "127.0.0.1:0", upstream: u}]
upstreams:
  u:
    endpoints: ["`+s.Listener.Addr().String()+`"]
    health: {https: /readyz, ca: DIR/ca.crt, cert: DIR/client.crt, key: DIR/client.key, token_file: DIR/token, expect: [200]}
`, "DIR", dir)
	var log conntest.Log
	probe, err := gateway.ProbeOf(cfg.Upstream("u"), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ask := func() error { return probe(t.Context(), s.Listener.Addr().String()) }
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	renew("hunter2-second")
	if err := ask(); err != nil {
		t.Errorf("after a renewal: %v", err)
	}
	write("client.crt", []byte("half of it"))
	for range 3 {
		if err := ask(); err != nil {
			t.Errorf("in the middle of a renewal: %v", err)
		}
	}
	if n := strings.Count(log.String(), "cannot be used"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
	write("token", []byte("hunter2 is\nno token"))
	if err := ask(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("with a bad token: %v", err)
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log has the token:\n%s", log.String())
	}
}

// picky is a server that accepts clients with a certificate of the authority and the token.
func picky(t *testing.T, authority *atomic.Pointer[certs.Authority], token *atomic.Value) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != token.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		a := authority.Load()
		return &tls.Config{
			Certificates: []tls.Certificate{a.Certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.Pool,
			SessionTicketsDisabled: true,
		}, nil
	}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// TestHealthCheckNamesItsHost: a server with several hosts gets the one of the check.
func TestHealthCheckNamesItsHost(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host, _, _ := net.SplitHostPort(r.Host); host != "app.example" {
			w.WriteHeader(http.StatusMisdirectedRequest)
		}
	}))
	defer s.Close()
	for host, healthy := range map[string]bool{"": false, ", host: app.example": true, ", host: other.example": false} {
		cfg := parse(t, `
listeners: [{name: l, protocol: http, listen: "127.0.0.1:0", http: {routes: [{path: /, upstream: u}]}}]
upstreams:
  u:
    endpoints: ["`+s.Listener.Addr().String()+`"]
    health: {http: /`+host+`}
`)
		probe, err := gateway.ProbeOf(cfg.Upstream("u"), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := probe(t.Context(), s.Listener.Addr().String()); (err == nil) != healthy {
			t.Errorf("%q: %v", host, err)
		}
	}
}

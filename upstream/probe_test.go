package upstream_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/upstream"
)

func TestTCPProbe(t *testing.T) {
	l := conntest.Listen(t)
	probe := upstream.TCPProbe()
	if err := probe(t.Context(), l.Addr().String()); err != nil {
		t.Error(err)
	}
	l.Close()
	if err := probe(t.Context(), l.Addr().String()); err == nil {
		t.Error("a closed port passed")
	}
}

func statusHandler(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/ok":
	case "/moved":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	case "/hang":
		<-r.Context().Done()
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func TestHTTPProbe(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(statusHandler))
	defer s.Close()
	addr := s.Listener.Addr().String()
	for _, path := range []string{"/ok", "ok", "/moved"} {
		if err := upstream.HTTPProbe(path)(t.Context(), addr); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := upstream.HTTPProbe("/bad")(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("/bad: %v, want the status", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	hanging := make(chan error, 1)
	go func() { hanging <- upstream.HTTPProbe("/hang")(ctx, addr) }()
	cancel()
	if err := <-hanging; err == nil {
		t.Error("/hang passed")
	}
}

func TestHTTPSProbe(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(statusHandler))
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	addr := s.Listener.Addr().String()
	if err := upstream.HTTPSProbe("/ok", &tls.Config{RootCAs: roots})(t.Context(), addr); err != nil {
		t.Error(err)
	}
	var unknown x509.UnknownAuthorityError
	if err := upstream.HTTPSProbe("/ok", &tls.Config{RootCAs: x509.NewCertPool()})(t.Context(), addr); !errors.As(err, &unknown) {
		t.Errorf("with a foreign certificate: %v", err)
	}
}

func TestHTTPProbeUnixAndGarbage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(statusHandler)}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	if err := upstream.HTTPProbe("/ok")(t.Context(), "unix:"+path); err != nil {
		t.Error(err)
	}
	s.Close()
	<-done
	tcp := conntest.Listen(t)
	defer tcp.Close()
	go func() {
		if c, err := tcp.Accept(); err == nil {
			c.Write([]byte("SSH-2.0-nonsense\r\n"))
			c.Close()
		}
	}()
	if err := upstream.HTTPProbe("/ok")(t.Context(), tcp.Addr().String()); err == nil {
		t.Error("an SSH server passed")
	}
	if err := upstream.HTTPProbe("/ok")(t.Context(), "nonsense"); err == nil {
		t.Error("an address that is none passed")
	}
}

// TestHTTPProbeWithAZone: the zone of an address is this machine's affair.
func TestHTTPProbeWithAZone(t *testing.T) {
	const zoned = "[fe80::1%lo]:80"
	hosts := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
	defer s.Close()
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		if endpoint != zoned {
			t.Errorf("dialled %q", endpoint)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", s.Listener.Addr().String())
	}
	if err := (upstream.HTTPCheck{Path: "/", Dial: dial}).Probe()(t.Context(), zoned); err != nil {
		t.Fatal(err)
	}
	if host := <-hosts; host != "[fe80::1]:80" {
		t.Errorf("host %q", host)
	}
}

// TestHTTPSProbeTimeout: the handshake hangs, and the deadline ends it.
func TestHTTPSProbeTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // its backlog answers the connect
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := upstream.HTTPSProbe("/", nil)(ctx, l.Addr().String()); err == nil {
		t.Error("a server that says nothing passed")
	}
}

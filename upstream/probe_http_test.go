package upstream_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/upstream"
)

// clientOf returns settings that trust the server.
func clientOf(s *httptest.Server) func() (*tls.Config, error) {
	cfg := s.Client().Transport.(*http.Transport).TLSClientConfig
	return func() (*tls.Config, error) { return cfg, nil }
}

func TestHTTPCheckExpects(t *testing.T) {
	var status atomic.Int64
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
	defer s.Close()
	probe := upstream.HTTPCheck{Path: "/readyz", TLS: clientOf(s), Expect: []int{200, 401}}.Probe()
	for code, want := range map[int]bool{200: true, 401: true, 204: false, 302: false, 500: false} {
		status.Store(int64(code))
		err := probe(t.Context(), s.Listener.Addr().String())
		if (err == nil) != want {
			t.Errorf("status %d: %v", code, err)
		}
		if err != nil && !strings.Contains(err.Error(), strconv.Itoa(code)) {
			t.Errorf("%q does not tell the status %d", err, code)
		}
	}
}

// TestHTTPCheckHost names the server where its endpoint is an address only, with the endpoint's port, to TLS as well.
func TestHTTPCheckHost(t *testing.T) {
	names := make(chan string, 2)
	serve := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		names <- r.Host
		if r.TLS != nil {
			names <- r.TLS.ServerName
		}
	})
	plain, secure := httptest.NewServer(serve), httptest.NewTLSServer(serve)
	defer plain.Close()
	defer secure.Close()
	for _, s := range []*httptest.Server{plain, secure} {
		check := upstream.HTTPCheck{Path: "/", Host: "example.com"} // which is in the certificate
		if s.TLS != nil {
			check.TLS = clientOf(s)
		}
		addr := s.Listener.Addr().String()
		if err := check.Probe()(t.Context(), addr); err != nil {
			t.Fatal(err)
		}
		if got, want := <-names, "example.com"+addr[strings.LastIndex(addr, ":"):]; got != want {
			t.Errorf("the host is %s, want %s", got, want)
		}
		if s.TLS != nil {
			if got := <-names; got != "example.com" {
				t.Errorf("TLS was asked for %q", got)
			}
		}
	}
}

// TestHTTPCheckToken is asked for again at each probe, and is in no error.
func TestHTTPCheckToken(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret-2" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer s.Close()
	token, failure := "secret-1", error(nil)
	probe := upstream.HTTPCheck{
		Path: "/readyz", TLS: clientOf(s), Token: func() (string, error) { return token, failure },
	}.Probe()
	addr := s.Listener.Addr().String()
	if err := probe(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), token) {
		t.Errorf("with a wrong token: %v", err)
	}
	token = "secret-2"
	if err := probe(t.Context(), addr); err != nil {
		t.Error(err)
	}
	failure = errors.New("unreadable")
	if err := probe(t.Context(), addr); !errors.Is(err, failure) {
		t.Errorf("without a token: %v", err)
	}
}

// TestHTTPCheckOfTheWrongKind the error says what to write instead.
func TestHTTPCheckOfTheWrongKind(t *testing.T) {
	tlsServer := httptest.NewTLSServer(http.HandlerFunc(statusHandler))
	defer tlsServer.Close()
	plain := httptest.NewServer(http.HandlerFunc(statusHandler))
	defer plain.Close()
	alerts := conntest.Listen(t) // as servers of OpenSSL
	defer alerts.Close()
	go func() {
		if c, err := alerts.Accept(); err == nil {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = c.Write([]byte{21, 3, 1, 0, 2, 2, 70})
			_ = c.Close()
		}
	}()
	for _, c := range []struct {
		check upstream.HTTPCheck
		addr  string
		want  string
	}{
		{upstream.HTTPCheck{Path: "/ok"}, tlsServer.Listener.Addr().String(), "use https"},
		{upstream.HTTPCheck{Path: "/ok"}, alerts.Addr().String(), "use https"},
		{upstream.HTTPCheck{Path: "/ok", TLS: clientOf(tlsServer)}, plain.Listener.Addr().String(), "use http"},
	} {
		if err := c.check.Probe()(t.Context(), c.addr); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func TestProbePort(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(statusHandler))
	defer s.Close()
	_, port, _ := strings.Cut(s.Listener.Addr().String(), ":")
	n, _ := strconv.Atoi(port)
	probe := upstream.ProbePort(upstream.HTTPProbe("/ok"), n)
	if err := probe(t.Context(), "127.0.0.1:1"); err != nil {
		t.Error(err)
	}
	for _, addr := range []string{"unix:/x", "nonsense"} {
		if probe(t.Context(), addr) == nil {
			t.Errorf("%s passed", addr)
		}
	}
}

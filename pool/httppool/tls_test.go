//go:build unix

package httppool_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool/httppool"
)

// serveTLS gives each connection to f, with its writes gathered until flush, and returns a configuration that trusts
// it.
func serveTLS(t *testing.T, f func(n int64, tc *tls.Conn, br *bufio.Reader, flush func())) (url string, client *tls.Config) {
	t.Helper()
	server, client := certs.New().Configs()
	s := serveRaw(t, func(n int64, c net.Conn, _ *bufio.Reader) {
		out := &gatherer{Conn: c}
		tc := tls.Server(out, server)
		if tc.Handshake() != nil {
			return
		}
		out.gather = true
		f(n, tc, bufio.NewReader(tc), out.flush)
	})
	return "https" + s.url[len("http"):], client
}

// gatherer sends several TLS records as one piece.
type gatherer struct {
	net.Conn
	gather bool
	buf    []byte
}

func (g *gatherer) Write(p []byte) (int, error) {
	if !g.gather {
		return g.Conn.Write(p)
	}
	g.buf = append(g.buf, p...)
	return len(p), nil
}

func (g *gatherer) flush() {
	_, _ = g.Conn.Write(g.buf)
	g.buf = nil
}

// TestTLSRecordsReadAhead: crypto/tls reads all received bytes, and returns a record at a time. An unexpected answer
// that arrived with the one before must not wait there for the next request.
func TestTLSRecordsReadAhead(t *testing.T) {
	for name, dial := range map[string]func(context.Context, string) (net.Conn, error){"socket": nil, "engine": enginetest.Dial} {
		t.Run(name, func(t *testing.T) {
			url, client := serveTLS(t, func(n int64, tc *tls.Conn, br *bufio.Reader, flush func()) {
				for {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					for _, body := range []string{"mine", "poison"} {
						_, _ = io.WriteString(tc, "HTTP/1.1 200 OK\r\nContent-Length: "+string('0'+rune(len(body)))+"\r\n\r\n"+body)
					}
					flush()
				}
			})
			tr := newTransport(t, httppool.Config{TLS: client, Dial: dial})
			for range 3 {
				wantBody(t, tr, newRequest(t, "GET", url, nil), "mine")
			}
		})
	}
}

func TestTLSSessionsAreResumed(t *testing.T) {
	var mu sync.Mutex
	var resumed []bool
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		resumed = append(resumed, r.TLS.DidResume)
		w.Header().Set("Connection", "close")
	}))
	defer s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	want := func(what string, cfg *tls.Config, after bool) {
		t.Helper()
		tr := newTransport(t, httppool.Config{TLS: cfg})
		resumed = nil
		for range 3 {
			wantBody(t, tr, newRequest(t, "GET", s.URL, nil), "")
		}
		if len(resumed) != 3 || resumed[0] || resumed[1] != after || resumed[2] != after {
			t.Errorf("%s: resumed %v", what, resumed)
		}
	}
	want("by default", &tls.Config{RootCAs: roots}, true)
	want("a Transport's own", &tls.Config{RootCAs: roots}, true)
	want("without tickets", &tls.Config{RootCAs: roots, SessionTicketsDisabled: true}, false)
	checks := 0
	want("with VerifyPeerCertificate", &tls.Config{RootCAs: roots, VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error {
		checks++
		return nil
	}}, false)
	if checks != 3 {
		t.Errorf("VerifyPeerCertificate was called %d times", checks)
	}
}

package httpproxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/certs"
)

// TestKeyAuthorization: a certificate authority gets its answer whatever the routes are. All other requests are routed.
func TestKeyAuthorization(t *testing.T) {
	secure, trusts := certs.New().Configs()
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "routed") }))
	cfg := httpproxy.Config{
		Routes: []httpproxy.Route{{Upstream: u}, {Host: "moved.test", Redirect: httpproxy.Redirect{To: "https://{host}{uri}"}}},
		KeyAuthorization: func(token string) string {
			if token == "known" {
				return "known.print"
			}
			return ""
		},
	}
	plain := startProxy(t, cfg)
	cfg.TLS = secure
	overTLS := startProxy(t, cfg)
	over2 := &http.Transport{TLSClientConfig: trusts, ForceAttemptHTTP2: true}
	t.Cleanup(over2.CloseIdleConnections)
	over1 := &http.Transport{}
	t.Cleanup(over1.CloseIdleConnections)
	for _, c := range []struct {
		transport *http.Transport
		url       string
		proto     string
	}{{over1, "http://" + plain.addr, "HTTP/1.1"}, {over2, "https://" + overTLS.addr, "HTTP/2.0"}} {
		for _, tc := range []struct{ method, path, host, body, want, kind string }{
			{"GET", "known", "", "", "known.print", "application/octet-stream"},
			{"GET", "known?x", "moved.test", "", "known.print", "application/octet-stream"},
			{"HEAD", "known", "", "", "", "application/octet-stream"},
			{"GET", "other", "", "", "routed", "text/plain; charset=utf-8"},
			{"GET", "", "", "", "routed", "text/plain; charset=utf-8"},
			{"POST", "known", "", "body", "routed", "text/plain; charset=utf-8"},
		} {
			r, err := http.NewRequestWithContext(t.Context(), tc.method, c.url+"/.well-known/acme-challenge/"+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Host = tc.host
			resp, err := c.transport.RoundTrip(r)
			if err != nil {
				t.Fatalf("%s %+v: %v", c.proto, tc, err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || resp.Proto != c.proto || string(body) != tc.want || resp.Header.Get("Content-Type") != tc.kind {
				t.Errorf("%+v: %s %s %q %q %v", tc, resp.Proto, resp.Status, body, resp.Header.Get("Content-Type"), err)
			}
		}
	}
}

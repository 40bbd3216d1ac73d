package httpproxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// TestTrailersAreAnnounced: who reads a message learns before its body which trailers are to come (RFC 9110, section 6.6.2), as
// their sender has said.
func TestTrailersAreAnnounced(t *testing.T) {
	announced := make(chan bool, 1)
	serve := func(w http.ResponseWriter, r *http.Request) {
		_, ok := r.Trailer["X-Sum"]
		announced <- ok
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-End")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-End", r.Trailer.Get("X-Sum"))
	}
	for name, u := range map[string]*httpproxy.Upstream{
		"HTTP/1.1": newUpstream(t, serveHTTP(t, serve)),
		"HTTP/2":   newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, serveHTTP2(t, serve).addr),
	} {
		p := startProxy(t, routeTo(u))
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(proto+" to "+name, func(t *testing.T) {
				req, err := http.NewRequest(http.MethodPost, p.url, io.MultiReader(strings.NewReader("body")))
				if err != nil {
					t.Fatal(err)
				}
				req.Trailer = http.Header{"X-Sum": {"7"}}
				resp, err := clientFor(t, proto).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if _, ok := resp.Trailer["X-End"]; !ok || !<-announced {
					t.Errorf("announced to the client: %t", ok)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Trailer.Get("X-End") != "7" {
					t.Errorf("trailers %v, %v", resp.Trailer, err)
				}
			})
		}
	}
}

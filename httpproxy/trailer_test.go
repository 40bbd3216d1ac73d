package httpproxy_test

import (
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
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

// TestHeaderRulesHoldForTrailers: a receiver may merge trailers into the header (RFC 9110, section 6.5.1), so a field that the
// route sets or removes must not come as a trailer, from neither side.
func TestHeaderRulesHoldForTrailers(t *testing.T) {
	rules := httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "X-Role", Value: "guest"}}, Remove: []string{"X-Debug"}}
	serve := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, name := range []string{"X-Role", "X-Debug", "X-Sum"} {
			w.Header().Add("Trailer", name)
		}
		_, _ = io.WriteString(w, strings.Join(slices.Sorted(maps.Keys(r.Trailer)), " ")+" "+r.Header.Get("X-Role"))
		if r.URL.Path == "/streamed" {
			_ = http.NewResponseController(w).Flush()
		}
		for _, name := range []string{"X-Role", "X-Debug", "X-Sum"} {
			w.Header().Set(name, "by "+name)
		}
	}
	for name, u := range map[string]*httpproxy.Upstream{
		"HTTP/1.1": newUpstream(t, serveHTTP(t, serve)),
		"HTTP/2":   newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, serveHTTP2(t, serve).addr),
	} {
		cfg := routeTo(u)
		cfg.Routes[0].RequestHeaders, cfg.Routes[0].ResponseHeaders = rules, rules
		p := startProxy(t, cfg)
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, path := range []string{"/", "/streamed", "/bodiless"} {
				t.Run(proto+" to "+name+path, func(t *testing.T) {
					req, err := http.NewRequest(http.MethodPost, p.url+path, io.MultiReader(strings.NewReader("body")))
					if err != nil {
						t.Fatal(err)
					}
					if req.Trailer = (http.Header{"X-Role": {"admin"}, "X-Debug": {"1"}, "X-Sum": {"7"}}); path == "/bodiless" {
						req.Body, req.Trailer = nil, nil // a request that needs no fiber between two sides of HTTP/2
					}
					resp, body := doWith(t, clientFor(t, proto), req)
					if want := map[bool]string{true: " guest", false: "X-Sum guest"}[path == "/bodiless"]; body != want {
						t.Errorf("the server saw %q, want %q", body, want)
					}
					if want := (http.Header{"X-Sum": {"by X-Sum"}}); !reflect.DeepEqual(resp.Trailer, want) || resp.Header.Get("X-Role") != "guest" {
						t.Errorf("the client got the trailers %v and the header %v", resp.Trailer, resp.Header)
					}
				})
			}
		}
	}
}

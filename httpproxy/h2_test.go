package httpproxy_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// trailing answers with its request's body and trailer, and adds a trailer.
func trailing(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Sum")
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
		w.Header().Set("Sum", r.Trailer.Get("Check"))
		w.Header().Set(http.TrailerPrefix+"Late", "1")
	}
}

// TestTrailersBothWays over every protocol a client may speak.
func TestTrailersBothWays(t *testing.T) {
	certs := httptest.NewTLSServer(nil)
	defer certs.Close()
	backend := serveHTTP(t, trailing(t))
	for name, tc := range map[string]struct {
		proto string
		tls   *tls.Config
	}{
		"HTTP/1.1":          {"HTTP/1.1", nil},
		"HTTP/2":            {"HTTP/2.0", nil},
		"HTTP/1.1 over TLS": {"HTTP/1.1", &tls.Config{Certificates: certs.TLS.Certificates}},
		"HTTP/2 over TLS":   {"HTTP/2.0", &tls.Config{Certificates: certs.TLS.Certificates}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := routeTo(newUpstream(t, backend))
			cfg.TLS = tc.tls
			p := startProxy(t, cfg)
			client := clientFor(t, tc.proto)
			if tc.tls != nil {
				tr := client.Transport.(*http.Transport)
				tr.Protocols.SetHTTP2(tc.proto == "HTTP/2.0")
				tr.TLSClientConfig = &tls.Config{RootCAs: certs.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"}
			}
			req, err := http.NewRequest("POST", p.url, io.MultiReader(strings.NewReader("body")))
			if err != nil {
				t.Fatal(err)
			}
			req.Trailer = http.Header{"Check": {"7"}}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || string(body) != "body" || resp.Proto != tc.proto {
				t.Fatalf("got %s %q, %v", resp.Proto, body, err)
			}
			if resp.Trailer.Get("Sum") != "7" || resp.Trailer.Get("Late") != "1" {
				t.Errorf("trailers are %v", resp.Trailer)
			}
		})
	}
}

// TestManyStreams of HTTP/2 at once, each with the answer that belongs to it.
func TestManyStreams(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	client := clientFor(t, "HTTP/2.0")
	results := make(chan string)
	for i := range 50 {
		go func() {
			resp, err := client.Post(p.url, "text/plain", strings.NewReader(fmt.Sprint(i)))
			if err != nil {
				results <- err.Error()
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			results <- fmt.Sprintf("%t", string(body) == fmt.Sprint(i))
		}()
	}
	for range 50 {
		if got := <-results; got != "true" {
			t.Errorf("a stream's own answer: %s", got)
		}
	}
}

// TestExpectContinueIsTheServersChoice: the client sends its body only after the server wants it.
func TestExpectContinueIsTheServersChoice(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}}})
	const head = " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
	if got := sendRaw(t, p.addr, "POST /no"+head); len(got) != 1 || got[0] != 417 {
		t.Errorf("statuses are %v, want 417", got)
	}
	if got := sendRaw(t, p.addr, "POST /yes"+head+"hi"); len(got) != 2 || got[0] != 100 || got[1] != 200 {
		t.Errorf("statuses are %v, want 100, 200", got)
	}
}

// TestEarlyHintsPass from the server to the client.
func TestEarlyHintsPass(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	if got := sendRaw(t, p.addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); len(got) != 2 || got[0] != 103 || got[1] != 204 {
		t.Errorf("statuses are %v, want 103, 204", got)
	}
}

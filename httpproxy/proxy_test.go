package httpproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

func TestForwards(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Seen", fmt.Sprintf("%s %s %s %s", r.Method, r.Host, r.RequestURI, r.Header.Get("X-Forwarded-For")))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "got %s", body)
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}}})
	for range 3 {
		req, err := http.NewRequest("POST", p.url+"/a%2fb?q=1;2", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "app.example"
		req.Header.Set("X-Forwarded-For", "6.6.6.6")
		resp, body := do(t, req)
		if resp.StatusCode != http.StatusCreated || body != "got hello" {
			t.Fatalf("got %s %q", resp.Status, body)
		}
		if got, want := resp.Header.Get("X-Seen"), "POST app.example /a%2fb?q=1;2 127.0.0.1"; got != want {
			t.Errorf("the server saw %q, want %q", got, want)
		}
	}
}

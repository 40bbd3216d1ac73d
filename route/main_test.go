package route_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/route"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// answer is a client's response.
type answer struct {
	status int
	header http.Header
	body   string
}

// serve starts a server with one handler and returns a function that sends a request to it.
func serve[Req, Resp any](t *testing.T, pattern string, fn func(*route.Ctx, Req) (Resp, error), opts ...route.Option) func(method, target, contentType, body string, header ...string) answer {
	t.Helper()
	mux := http.NewServeMux()
	route.Handle(mux, pattern, fn, opts...)
	server := httptest.NewServer(mux)
	client := server.Client()
	t.Cleanup(func() {
		client.CloseIdleConnections()
		server.Close()
	})
	return func(method, target, contentType, body string, header ...string) answer {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+target, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Add(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer{resp.StatusCode, resp.Header, string(b)}
	}
}

// want compares an answer with a status and parts of its body.
func (a answer) want(t *testing.T, status int, parts ...string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d; body %s", a.status, status, a.body)
	}
	for _, p := range parts {
		if !strings.Contains(a.body, p) {
			t.Errorf("the body has no %s: %s", p, a.body)
		}
	}
}

const (
	jsonType = "application/json"
	formType = "application/x-www-form-urlencoded"
)

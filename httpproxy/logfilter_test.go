package httpproxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// TestLogFilters: a log has lines for the requests that a condition takes, and a route's conditions replace the log's.
func TestLogFilters(t *testing.T) {
	lines := &logLines{t: t}
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/bad", "/quiet/bad":
			w.WriteHeader(500)
		case "/broken":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	p := startProxy(t, httpproxy.Config{
		AccessLog: &httpproxy.AccessLog{To: lines, Format: "{path} {status}", Filter: httpproxy.LogFilter{MinStatus: 404}},
		Routes: []httpproxy.Route{
			{Path: "/slow", Upstream: u, LogFilter: &httpproxy.LogFilter{SlowerThan: time.Nanosecond}},
			{Path: "/quick", Upstream: u, LogFilter: &httpproxy.LogFilter{SlowerThan: time.Hour}},
			{Path: "/each", Upstream: u, LogFilter: &httpproxy.LogFilter{Sample: 1}},
			{Path: "/half", Upstream: u, LogFilter: &httpproxy.LogFilter{Sample: 2}},
			{Path: "/quiet", Upstream: u, LogFilter: &httpproxy.LogFilter{MinStatus: 501}},
			{Path: "/", Upstream: u},
			{Path: "/refused", Respond: httpproxy.Respond{Status: 403}},
		},
	})
	client := clientFor(t, "HTTP/1.1")
	send := func(path string) {
		t.Helper()
		resp, err := client.Get(p.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // of "/broken" an error
		_ = resp.Body.Close()
	}
	for _, path := range []string{"/", "/quick", "/quiet/bad", "/refused", "/slow", "/each", "/bad", "/broken"} {
		send(path)
	}
	want := "/slow 200, /each 200, /bad 500, /broken 200"
	if got := strings.Join(lines.take(4), ", "); got != want {
		t.Errorf("lines %q, want %q", got, want)
	}
	const requests = 200
	for range requests {
		send("/half")
	}
	send("/each") // its line is the last
	eventually(t, "the last line", func() bool {
		lines.mu.Lock()
		defer lines.mu.Unlock()
		return lines.all != nil && lines.all[len(lines.all)-1] == "/each 200"
	})
	if n := len(lines.all) - 1; n == 0 || n == requests { // by chance once in 2^199 runs
		t.Errorf("%d of %d requests have a line", n, requests)
	}
}

package httpproxy_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/upstream"
)

// namedUpstream is an upstream of that name whose server answers with it.
func namedUpstream(t *testing.T, name string, h http.HandlerFunc) *httpproxy.Upstream {
	t.Helper()
	if h == nil {
		h = func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = io.WriteString(w, name+" "+r.URL.Path+" "+string(body))
		}
	}
	u, err := httpproxy.NewUpstream(name, patiently(httpproxy.UpstreamOptions{
		Settings: upstream.Settings{Endpoints: upstream.Endpoints(serveHTTP(t, h))}, Dial: enginetest.Dial,
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// TestGroups: requests go to the upstream whose groups fit best, within what a header allows, also under the paths of
// OpenTela.
func TestGroups(t *testing.T) {
	serves := func(name string, groups ...string) httpproxy.Route {
		return httpproxy.Route{Path: "/v1/service/llm", StripPrefix: true, Upstream: namedUpstream(t, name, nil), Groups: groups}
	}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		serves("a", "model=a", "model=shared"), serves("b", "model=*"), serves("c", "all"), serves("tiered", "metadata.tier=gold"),
		{Path: "/plain", Upstream: namedUpstream(t, "plain", nil)},
		{Path: "/plain", Upstream: namedUpstream(t, "special", nil), Groups: []string{"model=a"}},
	}})
	const chat = "/v1/service/llm/v1/chat"
	for _, tc := range []struct {
		path, body, fallback string
		status               int
		by, got              string
	}{
		{chat, `{"model":"a"}`, "", 200, "a", `a /v1/chat {"model":"a"}`},
		{chat, `{"x":[{"model":"b"}],"model":"a"}`, "1", 200, "a", "a /v1/chat"},
		{chat, `{"model":"a"}`, "2", 200, "a", "a /v1/chat"},
		{chat, `{"model":"z"}`, "", 503, "", "X-Headpond-Fallback"},
		{chat, `{"model":"z"}`, "9", 503, "", "X-Headpond-Fallback"},
		{chat, `{"model":"z"}`, "1", 200, "b", "b /v1/chat"},
		{chat, `{"model":"z"}`, "2", 200, "b", "b /v1/chat"},
		{chat, `{"model":{}}`, "1", 200, "b", "b /v1/chat"},
		{chat, `{"prompt":"z"}`, "1", 503, "", "groups"},
		{chat, `{"prompt":"z"}`, "2", 200, "c", "c /v1/chat"},
		{chat, `no JSON`, "2", 200, "c", "c /v1/chat no JSON"},
		{chat, `{"metadata":{"tier":"gold"}}`, "", 200, "tiered", "tiered /v1/chat"},
		{chat, `{"model":"a","model":"b"}`, "2", 400, "", "twice"},
		{"/plain", `{"model":"a"}`, "", 200, "special", "special /plain"},
		{"/plain", `{"model":"z"}`, "2", 200, "", "plain /plain"}, // what has no groups takes the rest
		{"/v1/service/other", `{"model":"a"}`, "", 404, "", "no route"},
	} {
		for _, header := range []string{"X-Headpond-Fallback", "X-Otela-Fallback"} {
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				req, err := http.NewRequest("POST", p.url+tc.path, strings.NewReader(tc.body))
				if err != nil {
					t.Fatal(err)
				}
				if tc.fallback != "" {
					req.Header.Set(header, tc.fallback)
				}
				resp, got := doWith(t, clientFor(t, proto), req)
				if by := resp.Header.Get("X-Computing-Node"); resp.StatusCode != tc.status || by != tc.by || !strings.Contains(got, tc.got) {
					t.Errorf("%s: %s %s, %s %q: %d by %q, %.80q; want %d by %q, %.80q", proto, tc.path, tc.body, header, tc.fallback,
						resp.StatusCode, by, got, tc.status, tc.by, tc.got)
				}
			}
		}
	}
	seen := map[string]bool{}
	eventually(t, "a request without a body goes to any", func() bool {
		resp, _ := get(t, p.url+chat)
		seen[resp.Header.Get("X-Computing-Node")] = resp.StatusCode == 200
		return seen["a"] && seen["b"] && seen["c"] && seen["tiered"]
	})
}

// TestGroupsByLoad: of equally fitting upstreams the one with fewer requests is used, and a server may name itself.
func TestGroupsByLoad(t *testing.T) {
	arrived, leave := make(chan string), make(chan struct{})
	t.Cleanup(func() { close(leave) })
	holding := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			arrived <- name
			w.Header().Set("X-Computing-Node", "node of "+name)
			<-leave
		}
	}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: namedUpstream(t, "a", holding("a")), Groups: []string{"all"}},
		{Upstream: namedUpstream(t, "b", holding("b")), Groups: []string{"all"}},
		{Upstream: namedUpstream(t, "c", holding("c")), Groups: []string{"all"}},
	}})
	answers := make(chan string)
	for round := range 2 {
		seen := map[string]bool{}
		for range 3 {
			go func() {
				resp, err := http.Get(p.url)
				if err != nil {
					answers <- err.Error()
					return
				}
				resp.Body.Close()
				answers <- resp.Header.Get("X-Computing-Node")
			}()
			seen[<-arrived] = true
		}
		if len(seen) != 3 {
			t.Errorf("round %d: three requests went to %v", round, seen)
		}
	}
	for range 6 {
		leave <- struct{}{}
	}
	for range 6 {
		if got := <-answers; !strings.HasPrefix(got, "node of ") {
			t.Errorf("answered by %q", got)
		}
	}
}

func TestGroupErrors(t *testing.T) {
	u := echoBackend(t, "x")
	for want, groups := range map[string][]string{
		"want key=value": {"model"}, `"=a"`: {"=a"}, "a group has at most": {strings.Repeat("a", 300)}, "want a name": {"a..b=c"},
	} {
		if _, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Groups: groups}}}); !errors.Is(err, httpproxy.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	same := httpproxy.Route{Upstream: u, Groups: []string{"all"}}
	if err := (httpproxy.Config{Routes: []httpproxy.Route{same, same}}).Verify(); err == nil || !strings.Contains(err.Error(), "repeats") {
		t.Errorf("the same upstream twice: %v", err)
	}
}

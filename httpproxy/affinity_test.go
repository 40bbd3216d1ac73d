package httpproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// startAffine starts a proxy with an upstream of n endpoints, each of which answers with its number and the body it got.
func startAffine(t *testing.T, n int, a httpproxy.Affinity, handle func(endpoint int)) (running, *httpproxy.Upstream, []string) {
	t.Helper()
	var endpoints []string
	for i := range n {
		endpoints = append(endpoints, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if handle != nil {
				handle(i)
			}
			_, _ = fmt.Fprintf(w, "%d %s", i, body)
		}))
	}
	o := httpproxy.UpstreamOptions{}
	o.Balance = upstream.RingHash
	u := newUpstreamWith(t, o, endpoints...)
	return startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Affinity: a}}}), u, endpoints
}

// asker sends a request with a key, "" for none, and returns the number of the endpoint that has answered.
type asker func(t *testing.T, p running, key string) string

func askAffine(t *testing.T, p running, method, body string, fields ...string) (endpoint string, header http.Header) {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, p.url+"/v1/completions", r)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	resp, text := do(t, req)
	endpoint, got, _ := strings.Cut(text, " ")
	if resp.StatusCode != http.StatusOK || got != body {
		t.Fatalf("%d %.100q, sent %.100q", resp.StatusCode, text, body)
	}
	return endpoint, resp.Header
}

var affinities = []struct {
	name string
	httpproxy.Affinity
	ask asker
}{
	{"header", httpproxy.Affinity{Header: "X-Session"}, func(t *testing.T, p running, key string) string {
		t.Helper()
		endpoint, _ := askAffine(t, p, http.MethodGet, "", "x-session", key)
		return endpoint
	}},
	{"cookie", httpproxy.Affinity{Cookie: "pond"}, func(t *testing.T, p running, key string) string {
		t.Helper()
		endpoint, header := askAffine(t, p, http.MethodGet, "", "Cookie", "a=1; xpond=2;", "Cookie", "b; pond="+key+" ; c=3")
		if header.Get("Set-Cookie") != "" {
			t.Error("a cookie is set although no route asks for it")
		}
		return endpoint
	}},
	{"prompt", httpproxy.Affinity{Prompt: 20}, func(t *testing.T, p running, key string) string {
		t.Helper()
		if key == "" {
			endpoint, _ := askAffine(t, p, http.MethodPost, `{"model": "m", "messages": []}`, "Content-Type", "application/json")
			return endpoint
		}
		prompt := key + strings.Repeat(".", 20-len(key)) // what follows differs, and where the model stands
		short, _ := askAffine(t, p, http.MethodPost, `{"prompt": "`+prompt+`and more", "model": "m"}`, "Content-Type", "application/json")
		long, _ := askAffine(t, p, http.MethodPost, `{"model": "m", "prompt": "`+prompt+strings.Repeat("x", 300_000)+`"}`, "Content-Type", "application/json")
		if short != long {
			t.Fatalf("two requests with the prefix %q go to %s and %s", prompt, short, long)
		}
		return short
	}},
}

// TestAffinity: equal keys go to the same endpoint, also when others come and go, and requests without a key to any.
func TestAffinity(t *testing.T) {
	for _, a := range affinities {
		t.Run(a.name, func(t *testing.T) {
			const keys = 40
			p, u, endpoints := startAffine(t, 4, a.Affinity, nil)
			home, used := map[string]string{}, map[string]bool{}
			for i := range keys {
				key := fmt.Sprintf("key-%d", i)
				home[key] = a.ask(t, p, key)
				used[home[key]] = true
			}
			same := func(when string, moved func(from string) bool) {
				t.Helper()
				for key, endpoint := range home {
					if got := a.ask(t, p, key); got != endpoint && !moved(endpoint) {
						t.Errorf("%s %s has moved from %s to %s", when, key, endpoint, got)
					}
				}
			}
			same("later", func(string) bool { return false })
			if len(used) < 2 {
				t.Errorf("all keys go to %v", used)
			}
			settings := upstream.Settings{Balance: upstream.RingHash, Endpoints: upstream.Endpoints(endpoints[1:]...), Limits: httpproxy.Limits(pool.Limits{})}
			if err := u.Update(settings); err != nil {
				t.Fatal(err)
			}
			same("with 0 gone", func(from string) bool { return from == "0" })
			settings.Endpoints = upstream.Endpoints(endpoints...)
			if err := u.Update(settings); err != nil {
				t.Fatal(err)
			}
			same("with 0 back", func(string) bool { return false })
			clear(used)
			for range 64 { // all at one of four endpoints by chance does not happen
				used[a.ask(t, p, "")] = true
			}
			if len(used) < 2 {
				t.Errorf("without a key all go to %v", used)
			}
		})
	}
}

// TestAffinitySetsCookie: a client without the cookie gets one, which leads it to the same endpoint again.
func TestAffinitySetsCookie(t *testing.T) {
	p, _, _ := startAffine(t, 4, httpproxy.Affinity{Cookie: "pond", SetCookie: true, MaxAge: time.Hour}, nil)
	form := regexp.MustCompile(`^pond=([0-9a-f]{16}); Path=/; HttpOnly; SameSite=Lax; Max-Age=3600$`)
	seen := map[string]bool{}
	for range 20 {
		endpoint, header := askAffine(t, p, http.MethodPost, "some body")
		parts := form.FindStringSubmatch(header.Get("Set-Cookie"))
		if parts == nil || seen[parts[1]] {
			t.Fatalf("Set-Cookie: %q", header["Set-Cookie"])
		}
		seen[parts[1]] = true
		for range 3 {
			again, header := askAffine(t, p, http.MethodGet, "", "Cookie", "pond="+parts[1])
			if again != endpoint || header.Get("Set-Cookie") != "" {
				t.Errorf("with the cookie of %s it went to %s, and Set-Cookie is %q", endpoint, again, header.Get("Set-Cookie"))
			}
		}
	}
	got := counted(p.Stats().Traffic[0])
	for name, want := range map[string]float64{"found": 60, "set": 20, "missing": 0} {
		if n := got["/ http_affinity_total "+name]; n != want {
			t.Errorf("%s: counted %v, want %v", name, n, want)
		}
	}
}

// TestAffinityOfHotKey: a key of all requests does not give its endpoint more than max_load allows.
func TestAffinityOfHotKey(t *testing.T) {
	const n, all = 3, 12
	at, release := make(chan int), make(chan struct{})
	p, _, _ := startAffine(t, n, httpproxy.Affinity{Header: "X-Session"}, func(endpoint int) {
		at <- endpoint
		<-release
	})
	held, answers := [n]int{}, make(chan error, all)
	for i := 1; i <= all; i++ {
		req, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Session", "hot")
		go func() {
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				err = resp.Body.Close()
			}
			answers <- err
		}()
		endpoint := <-at
		held[endpoint]++
		if most := (i*httpproxy.DefaultMaxLoad + n*100 - 1) / (n * 100); held[endpoint] > most {
			t.Errorf("%d of %d requests at one of %d endpoints, which may have %d", held[endpoint], i, n, most)
		}
	}
	close(release)
	for range all {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

func TestAffinityErrors(t *testing.T) {
	u := newUpstream(t, "127.0.0.1:1")
	for _, a := range []httpproxy.Affinity{
		{Header: "a", Cookie: "b"}, {Header: "a b"}, {Cookie: "a=b"}, {Cookie: "a", Prompt: 1}, {Prompt: -1}, {Prompt: 1 << 20}, {MaxLoad: 150},
		{Header: "a", SetCookie: true}, {Cookie: "a", MaxAge: 1}, {Cookie: "a", SetCookie: true, MaxAge: -1}, {Header: "a", MaxLoad: 99},
		{Cookie: "a", MaxLoad: 150}, {Header: strings.Repeat("x", 257)},
	} {
		if err := (httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Affinity: a}}}).Verify(); err == nil || !strings.Contains(err.Error(), "affinity: ") {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// TestMirrorFromTheConfiguration: a reload gives a route a mirror, and takes it away.
func TestMirrorFromTheConfiguration(t *testing.T) {
	copies := make(chan string, 10)
	mirror := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		copies <- r.URL.Path + " " + r.Header.Get(httpproxy.MirrorField)
	}))
	t.Cleanup(mirror.Close)
	const text = `
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    http: {routes: [{path: /, upstream: web, {mirror}}, {path: /last, upstream: web, mirror: next}]}
upstreams:
  web: {endpoints: ["{web}"]}
  next: {endpoints: ["{next}"]}
`
	web := webServer(t, "here")
	with := func(mirror string) []string { return []string{"{web}", web, "{next}", mirror, "{mirror}"} }
	addr := mirror.Listener.Addr().String()
	gw := run(t, parse(t, text, append(with(addr), "timeout: 9s")...))
	fetch := func(path string) {
		t.Helper()
		if _, body, err := get(client(t), "http://"+gw.Addr("web")+path); body != "here" || err != nil {
			t.Fatalf("%q %v", body, err)
		}
	}
	wants := func(want string) {
		t.Helper()
		if got := <-copies; got != want {
			t.Errorf("a copy of %q, want %q", got, want)
		}
	}
	for _, key := range []string{"mirror: next", "mirror: {upstream: next, percent: 0}"} {
		if err := gw.Reload(parse(t, text, append(with(addr), key)...)); err != nil {
			t.Fatal(err)
		}
		fetch("/a")
		if key == "mirror: next" {
			wants("/a 1")
		}
		fetch("/last")
		wants("/last 1")
	}
}

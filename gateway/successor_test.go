package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// resetting is a server that resets the connection of the first request for /reset when release is closed, and answers all other requests.
type resetting struct {
	release        chan struct{}
	resets, closed atomic.Int64 // requests for /reset, idle connections that the client has closed
}

func (s *resetting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/reset" && s.resets.Add(1) == 1 {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		<-s.release
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = fmt.Fprint(w, "answered")
}

// start serves until the end of the test.
func (s *resetting) start(t *testing.T) (addr string) {
	server := httptest.NewUnstartedServer(s)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			s.closed.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestRequestsContinueWithAReplacedUpstream: a reload replaces the upstream of requests under way, which need another connection when the
// old upstream is closed already: one is sent again, as its server has reset the connection, and the body of one was awaited for its route.
func TestRequestsContinueWithAReplacedUpstream(t *testing.T) {
	const text = `
drain_timeout: 1m
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    http: {routes: [{path: /body, body: {model: small}, upstream: web}, {path: /, upstream: web}]}
upstreams:
  web: {endpoints: ["{web}"]{more}}
`
	s := &resetting{release: make(chan struct{})}
	pairs := []string{"{web}", s.start(t)}
	g := run(t, parse(t, text, append(pairs, "{more}", "")...))
	reset := make(chan string, 1)
	go func() {
		code, body, err := get(client(t), "http://"+g.Addr("web")+"/reset")
		reset <- fmt.Sprint(code, body, err)
	}()
	conntest.Eventually(t, "a request is under way", func() bool { return s.resets.Load() == 1 })
	if code, body, err := get(client(t), "http://"+g.Addr("web")+"/"); err != nil || code != 200 { // its connection stays idle
		t.Fatal(code, body, err)
	}
	slow := dial(t, g.Addr("web"))
	if _, err := fmt.Fprint(slow, "POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(slow)
	if line, err := answers.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatal(line, err)
	}
	_, _ = answers.ReadString('\n')
	if err := g.Reload(parse(t, text, append(pairs, "{more}", ", connect_timeout: 4s")...)); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the old upstream has closed its idle connection", func() bool { return s.closed.Load() == 1 })
	close(s.release)
	if got := <-reset; !strings.HasPrefix(got, "200") {
		t.Errorf("the request whose connection was reset: %s", got)
	}
	if _, err := fmt.Fprint(slow, `{"model":"small"}`); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
		t.Errorf("the request with a slow body: %d %s %v", resp.StatusCode, body, err)
	}
}

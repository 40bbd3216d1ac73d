package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// expectUpload begins a request with two bytes of body, for which the client waits for 100 Continue.
const expectUpload = " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"

const leave = "HTTP/1.1 100 Continue\r\n\r\n"

// okWith is an answer that repeats the request.
func okWith(body io.Reader) string {
	b, err := io.ReadAll(body)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
}

// serveExpecting starts a backend; answer returns the answer before the body is read, and whether it is read then.
func serveExpecting(t *testing.T, conns *atomic.Int64, answer func(r *http.Request) (first string, read bool)) string {
	return serveRaw(t, func(c net.Conn) {
		conns.Add(1)
		br := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			first, read := answer(req)
			if _, err := io.WriteString(c, first); err != nil {
				return
			}
			if read {
				_, _ = io.WriteString(c, okWith(req.Body))
			}
		}
	})
}

// wantStatus reads an answer, without a body if it is an interim one.
func wantStatus(t *testing.T, br *bufio.Reader, status int) *http.Response {
	t.Helper()
	resp, body := readAnswer(t, br)
	if resp.StatusCode != status {
		t.Fatalf("%s %q, want %d", resp.Status, body, status)
	}
	return resp
}

// TestExpectKeepsTheConnection: of client and server, over several uploads. No byte of a body is sent before the server's
// 100.
func TestExpectKeepsTheConnection(t *testing.T) {
	const chunked = " HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nTransfer-Encoding: chunked\r\n\r\n"
	var conns atomic.Int64
	backend := serveExpecting(t, &conns, func(r *http.Request) (string, bool) {
		if r.Header.Get("Expect") != "100-continue" {
			t.Errorf("the server got %v", r.Header)
		}
		return "HTTP/1.1 100 Continue\r\nX-Leave: 1\r\n\r\n", true
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	c, br := dialRaw(t, p.addr)
	given := 0 // by the server, which is asked for it for a second
	for _, upload := range []struct{ head, body string }{{expectUpload, "hi"}, {expectUpload, "ho"}, {chunked, "2\r\nhi\r\n0\r\n\r\n"}, {expectUpload, "hi"}} {
		if _, err := io.WriteString(c, "POST /"+upload.head); err != nil {
			t.Fatal(err)
		}
		if wantStatus(t, br, 100).Header.Get("X-Leave") != "" {
			given++
		}
		resp, body := roundTrip(t, c, br, upload.body)
		if resp.StatusCode != 200 || resp.Close || !strings.Contains(upload.body, body) || len(body) != 2 {
			t.Errorf("%s, close %t, %q", resp.Status, resp.Close, body)
		}
	}
	if resp, _ := roundTrip(t, c, br, "POST /"+expectUpload+"hi"); resp.StatusCode != 100 { // which was not waited for
		t.Errorf("got %s", resp.Status)
	}
	wantStatus(t, br, 200)
	if given == 0 {
		t.Error("the server's leave does not pass")
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections to the server", n)
	}
}

// TestExpectRefused: a refused client is not asked for the body, and bytes in its place are no request.
func TestExpectRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		head   string
		status int
	}{
		"no route":          {"POST /unknown" + expectUpload, 404},
		"dot segments":      {"POST /no/../x" + expectUpload, 400},
		"no server":         {"POST /down" + expectUpload, 502},
		"no connection":     {"POST /full" + expectUpload, 503},
		"by the server":     {"POST /no" + expectUpload, 417},
		"something else":    {"POST /no" + strings.Replace(expectUpload, "100-continue", "100-continue, rain", 1), 417},
		"without the value": {"POST /no" + strings.Replace(expectUpload, "100-continue", "rain", 1), 417},
	} {
		t.Run(name, func(t *testing.T) {
			var conns atomic.Int64
			up := newUpstream(t, serveExpecting(t, &conns, func(r *http.Request) (string, bool) {
				if r.Method == "POST" {
					return "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n", false
				}
				return "", true
			}))
			asked := make(chan struct{})
			full := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, MaxWaiters: -1, AcquireTimeout: patience}}},
				serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
					close(asked)
					<-r.Context().Done()
				}))
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
				{Path: "/no", Upstream: up}, {Path: "/down", Upstream: newUpstream(t, conntest.FreeAddress(t))}, {Path: "/full", Upstream: full},
			}})
			if tc.status == 503 {
				holder, _ := dialRaw(t, p.addr)
				_, _ = io.WriteString(holder, "GET /full HTTP/1.1\r\nHost: a\r\n\r\n")
				<-asked
			}
			c, br := dialRaw(t, p.addr)
			if resp, body := roundTrip(t, c, br, tc.head); resp.StatusCode != tc.status || !resp.Close {
				t.Errorf("%s, close %t: %q", resp.Status, resp.Close, body)
			}
			_, _ = io.WriteString(c, "GET /no/evil HTTP/1.1\r\nHost: a\r\n\r\n")
			if rest, err := io.ReadAll(br); len(rest) > 0 {
				t.Errorf("then %q, %v", rest, err)
			}
			used := conns.Load()
			c, br = dialRaw(t, p.addr)
			if resp, _ := roundTrip(t, c, br, "GET /no HTTP/1.1\r\nHost: a\r\n\r\n"); resp.StatusCode != 200 || conns.Load() != used+1 {
				t.Errorf("the next client: %s, on connection %d", resp.Status, conns.Load())
			}
		})
	}
}

// TestExpectAnswerWithoutLeave: the server has read the body, or taken it for another request. Its connection is not
// reused, but the client's is.
func TestExpectAnswerWithoutLeave(t *testing.T) {
	var conns atomic.Int64
	backend := serveExpecting(t, &conns, func(*http.Request) (string, bool) { return "", true })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	c, br := dialRaw(t, p.addr)
	for i := range int64(3) {
		if resp, body := roundTrip(t, c, br, "POST /"+expectUpload+"hi"); resp.StatusCode != 200 || body != "hi" || conns.Load() != i+1 {
			t.Errorf("%s %q on connection %d, want %d", resp.Status, body, conns.Load(), i+1)
		}
	}
}

// TestExpectedBodyIsNoRequest: a body is never taken for a request.
func TestExpectedBodyIsNoRequest(t *testing.T) {
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, tc := range map[string]struct{ raw, want string }{
		"a body":         {strings.Replace("POST /"+expectUpload, ": 2\r", fmt.Sprintf(": %d\r", len(smuggled)), 1) + smuggled, "POST / " + smuggled},
		"no body":        {"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n", "GET / "},
		"something else": {strings.Replace("POST /"+expectUpload, "100-continue", "rain", 1) + smuggled, ""},
	} {
		rec := &recorder{}
		p := startProxy(t, routeTo(newUpstream(t, serveRaw(t, rec.serve))))
		statuses := sendRaw(t, p.addr, tc.raw)
		if got := strings.Join(rec.seen(), "|"); got != tc.want || len(rec.garbage) > 0 {
			t.Errorf("%s: the server saw %q and %q, the client %v", name, got, rec.garbage, statuses)
		}
	}
}

// TestExpectOfASilentServer: a waiting client gets 100 Continue nevertheless, and not a second time when the server
// sends it.
func TestExpectOfASilentServer(t *testing.T) {
	late := serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, strings.Repeat(leave, 2*(len(req.URL.Path)-1))) // "/x" gives it twice, before
			answer := okWith(req.Body)
			_, _ = io.WriteString(c, leave+answer)
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, late)))
	c, br := dialRaw(t, p.addr)
	for _, path := range []string{"/", "/x", "/"} {
		if resp, _ := roundTrip(t, c, br, "POST "+path+expectUpload); resp.StatusCode != 100 {
			t.Fatalf("%s: %s", path, resp.Status)
		}
		if resp, body := roundTrip(t, c, br, "hi"); resp.StatusCode != 200 || body != "hi" || resp.Close {
			t.Errorf("%s: %s %q", path, resp.Status, body)
		}
	}
}

// TestExpectAndSendNothing: a client that gets 100 Continue and sends nothing is answered after the route's time-out, in
// HTTP/2 too.
func TestExpectAndSendNothing(t *testing.T) {
	var conns atomic.Int64
	backend := serveExpecting(t, &conns, func(*http.Request) (string, bool) { return leave, true })
	cfg := routeTo(newUpstream(t, backend))
	cfg.Routes[0].IdleTimeout = 50 * time.Millisecond
	p := startProxy(t, cfg)
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "POST /"+expectUpload)
	resp, _ := readAnswer(t, br)
	if resp.StatusCode == 100 { // else its time was over before
		resp, _ = readAnswer(t, br)
	}
	if resp.StatusCode != 408 || !resp.Close {
		t.Errorf("%s, close %t", resp.Status, resp.Close)
	}
	if rest, err := io.ReadAll(br); len(rest) > 0 || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}
	h := dialH2(t, p.addr)
	h.ask(1, false, append(plainPost, "expect", "100-continue")...)
	if got := strings.TrimPrefix(h.outcome(1), "100"); !strings.HasPrefix(got, "408 ") {
		t.Errorf("got %q", got)
	}
}

// TestExpectAfterTheServerHungUp: while nothing of the body has arrived, an idempotent request may be sent again.
func TestExpectAfterTheServerHungUp(t *testing.T) {
	for method, want := range map[string]int{"PUT": 100, "POST": 502} {
		t.Run(method, func(t *testing.T) {
			var conns atomic.Int64
			backend := serveRaw(t, func(c net.Conn) {
				br := bufio.NewReader(c)
				first := conns.Add(1) == 1
				for {
					req, err := http.ReadRequest(br)
					if err != nil || first && req.ContentLength > 0 {
						return
					}
					if req.ContentLength > 0 {
						_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\nX-Leave: 1\r\n\r\n")
					}
					_, _ = io.WriteString(c, okWith(req.Body))
				}
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			c, br := dialRaw(t, p.addr)
			if resp, _ := roundTrip(t, c, br, getRoot); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
			_, _ = io.WriteString(c, method+" /"+expectUpload)
			switch resp, _ := readAnswer(t, br); {
			case resp.StatusCode == 100 && resp.Header.Get("X-Leave") == "":
				return // the server has not hung up for a second
			case resp.StatusCode != want || want != 100 && !resp.Close:
				t.Fatalf("%s, close %t", resp.Status, resp.Close)
			case want != 100:
				return
			}
			if resp, body := roundTrip(t, c, br, "hi"); resp.StatusCode != 200 || body != "hi" || resp.Close {
				t.Errorf("%s %q", resp.Status, body)
			}
		})
	}
}

// TestExpectOfHTTP10: HTTP/1.0 has no interim answers.
func TestExpectOfHTTP10(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	got := sendRaw(t, p.addr, "POST /"+strings.Replace(expectUpload, "HTTP/1.1", "HTTP/1.0", 1)+"hi")
	if len(got) != 1 || got[0] != 200 {
		t.Errorf("statuses are %v", got)
	}
}

// TestHTTP2Expect: as in HTTP/1.1.
func TestHTTP2Expect(t *testing.T) {
	var conns atomic.Int64
	backend := serveExpecting(t, &conns, func(r *http.Request) (string, bool) { return strings.Repeat(leave, len(r.URL.Path)), true })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	for _, id := range []uint32{1, 3} {
		h.ask(id, false, append(plainPost, "expect", "100-continue", "content-length", "2")...)
		h.next(func(f http2.Frame) bool {
			head, ok := f.(*http2.MetaHeadersFrame)
			return ok && head.StreamID == id && head.PseudoValue("status") == "100" && !head.StreamEnded()
		})
		h.do(0, h.WriteData(id, true, []byte("hi")))
		if got := h.outcome(id); got != "200 hi" {
			t.Errorf("%d: %q", id, got)
		}
	}
	h.ask(5, false, append(plainPost, "expect", "rain")...)
	if got := h.outcome(5); !strings.HasPrefix(got, "417 ") {
		t.Errorf("another expectation: %q", got)
	}
	if got := h.outcome(5); got != "reset NO_ERROR" {
		t.Errorf("and then %q", got)
	}
	h.ask(7, true, append(plainPost, "expect", "100-continue")...)
	if got := h.outcome(7); got != "200" && got != "200 " {
		t.Errorf("without a body: %q", got)
	}
}

package httpproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// mirrored is a request as a server got it.
type mirrored struct {
	line   string
	header http.Header
	body   []byte
}

// recording returns a handler that passes on each request that it gets, and answers with the given text.
func recording(t *testing.T, answer string) (http.HandlerFunc, chan mirrored) {
	got := make(chan mirrored, 1000)
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("%s: the body: %v", r.RequestURI, err)
		}
		got <- mirrored{fmt.Sprint(r.Method, " ", r.Host, r.RequestURI), r.Header, body}
		_, _ = io.WriteString(w, answer)
	}, got
}

// mirrorCount returns the count of copies with a result.
func mirrorCount(p running, label, result string) uint64 {
	return uint64(counted(p.Stats().Traffic[0])[label+" http_mirrored_total "+result])
}

// TestMirror: the mirror gets what the route's upstream gets, with one more header, whatever the body's size and framing.
func TestMirror(t *testing.T) {
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		toServer, served := recording(t, "answer")
		toMirror, copies := recording(t, strings.Repeat("ignored", 100_000))
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, toServer))
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
			Path: "/a", Rewrite: "/b{rest}", Upstream: u, Mirror: httpproxy.Mirror{Upstream: newUpstream(t, serveHTTP(t, toMirror)), Percent: 100},
			RequestHeaders: httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{"X-Set", "{method}"}}, Remove: []string{"Cookie"}},
		}}})
		sent := uint64(0)
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			client := clientFor(t, proto)
			for _, size := range []int{0, 5, 16 << 10, 40_000, 64 << 10, 64<<10 + 1, 300_000} {
				for _, framed := range []bool{true, false} {
					body := make([]byte, size)
					_, _ = rand.Read(body)
					var from io.Reader = bytes.NewReader(body)
					if !framed {
						from = io.MultiReader(from) // hides the length
					}
					req, err := http.NewRequest(http.MethodPost, p.url+"/a/%2f?q=1", from)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Cookie", "a=b")
					req.Header.Set("X-Request-Id", fmt.Sprint("r", size))
					what := fmt.Sprintf("%d bytes, length %t, by %s to %s", size, framed, proto, protocol)
					if resp, text := doWith(t, client, req); resp.StatusCode != 200 || text != "answer" {
						t.Fatalf("%s: %s %q", what, resp.Status, text)
					}
					original := <-served
					if !bytes.Equal(original.body, body) || original.header.Get(httpproxy.MirrorField) != "" {
						t.Errorf("%s: the server got %d bytes, %v", what, len(original.body), original.header)
					}
					if size > httpproxy.DefaultMirrorBody {
						continue
					}
					sent++
					c := <-copies
					if c.line != original.line || !bytes.Equal(c.body, body) || c.header.Get(httpproxy.MirrorField) != "1" {
						t.Errorf("%s: the mirror got %q with %d bytes, the server %q; %v", what, c.line, len(c.body), original.line, c.header)
					}
					for _, name := range []string{"X-Set", "X-Request-Id", "X-Forwarded-For", "Cookie", "User-Agent"} {
						if got, want := c.header.Get(name), original.header.Get(name); got != want {
							t.Errorf("%s: %s is %q for the mirror, %q for the server", what, name, got, want)
						}
					}
				}
			}
		}
		eventually(t, "the copies are counted", func() bool {
			return mirrorCount(p, "/a", "sent") == sent && mirrorCount(p, "/a", "too_large") == 8
		})
		if n := len(copies); n != 0 {
			t.Errorf("%d copies too many", n)
		}
	}
}

// TestMirrorOfLongBodies: a body of HTTP/2 without a length that is longer than MaxBody is not copied, also if it comes with its head.
func TestMirrorOfLongBodies(t *testing.T) {
	toServer, served := recording(t, "answer")
	toMirror, copies := recording(t, "ignored")
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Path: "/a", Upstream: newUpstream(t, serveHTTP(t, toServer)), Mirror: httpproxy.Mirror{Upstream: newUpstream(t, serveHTTP(t, toMirror)), Percent: 100, MaxBody: 10},
	}}})
	for range 20 {
		for _, body := range []string{"short", "longer than that"} {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/a", io.MultiReader(strings.NewReader(body)))
			if _, text := doWith(t, clientFor(t, "HTTP/2.0"), req); text != "answer" {
				t.Fatalf("%q", text)
			}
			if original := <-served; string(original.body) != body {
				t.Errorf("the server got %q", original.body)
			}
		}
	}
	eventually(t, "all are counted", func() bool { return mirrorCount(p, "/a", "sent")+mirrorCount(p, "/a", "too_large") == 40 })
	for range mirrorCount(p, "/a", "sent") {
		if c := <-copies; string(c.body) != "short" {
			t.Errorf("the mirror got %q", c.body)
		}
	}
}

// TestMirrorThatFails: a mirror that cannot be reached, or never answers, neither delays nor fails a request, and gets no
// more copies than the bound.
func TestMirrorThatFails(t *testing.T) {
	toServer, _ := recording(t, "answer")
	hangs, release := make(chan struct{}), make(chan struct{})
	silent := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		hangs <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	u := newUpstream(t, serveHTTP(t, toServer))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/silent", Upstream: u, Mirror: httpproxy.Mirror{Upstream: newUpstream(t, silent), Percent: 100}},
		{Path: "/down", Upstream: u, Mirror: httpproxy.Mirror{Upstream: newUpstream(t, "127.0.0.1:1"), Percent: 100}},
		{Path: "/none", Upstream: u, Mirror: httpproxy.Mirror{Upstream: newUpstream(t, silent)}},
	}})
	client := clientFor(t, "HTTP/1.1")
	fetch := func(path string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, body := doWith(t, client, req); resp.StatusCode != 200 || body != "answer" {
			t.Fatalf("%s: %s %q", path, resp.Status, body)
		}
	}
	fetch("/none")
	fetch("/down")
	eventually(t, "a failed copy", func() bool { return mirrorCount(p, "/down", "failed") == 1 })
	for range httpproxy.MaxCopies {
		fetch("/silent")
		<-hangs
	}
	fetch("/silent")
	if n := mirrorCount(p, "/silent", "dropped"); n != 1 {
		t.Errorf("%d copies were dropped, want 1", n)
	}
	close(release)
	eventually(t, "the copies end", func() bool { return mirrorCount(p, "/silent", "sent") == httpproxy.MaxCopies })
	go func() { <-hangs }()
	fetch("/silent")
	eventually(t, "one more", func() bool { return mirrorCount(p, "/silent", "sent") == httpproxy.MaxCopies+1 })
}

// TestMirrorOfHalfARequest: without its whole body a request has no copy, and the client's end leaves nothing behind.
func TestMirrorOfHalfARequest(t *testing.T) {
	toMirror, copies := recording(t, "")
	u := newUpstream(t, serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/", Upstream: u, Mirror: httpproxy.Mirror{Upstream: newUpstream(t, serveHTTP(t, toMirror)), Percent: 100}}}})
	c, _ := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\n\r\nhalf")
	_ = c.Close()
	eventually(t, "the end of the request", func() bool { return mirrorCount(p, "/", "dropped") == 1 })
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(br), nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("%v %v", resp, err)
	}
	if len(copies) != 0 {
		t.Error("half a request, or one for an upgrade, has a copy")
	}
}

// TestMirrorAtTheEnd: a copy under way does not hold up a drain for long.
func TestMirrorAtTheEnd(t *testing.T) {
	begun := make(chan struct{}, 1)
	silent := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done() // the connection ends
	})
	u := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/", Upstream: u, Mirror: httpproxy.Mirror{Upstream: newUpstream(t, silent), Percent: 100}}}})
	get(t, p.url)
	<-begun
	http.DefaultClient.CloseIdleConnections()
	if err := p.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	if n := mirrorCount(p, "/", "failed"); n != 1 {
		t.Errorf("%d copies have failed, want 1", n)
	}
}

// TestMirrorDuringLongAnswers: a copy that has been sent takes nothing of its connection's memory while the answer lasts,
// so that the next requests on it have copies, too.
func TestMirrorDuringLongAnswers(t *testing.T) {
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = http.NewResponseController(w).Flush()
		<-hold
	}))
	toMirror, copies := recording(t, "")
	p := startProxy(t, httpproxy.Config{MaxBufferedPerConn: 4 << 20, Routes: []httpproxy.Route{{
		Path: "/", Upstream: u, Mirror: httpproxy.Mirror{Upstream: newUpstream(t, serveHTTP(t, toMirror)), Percent: 100, MaxBody: 3 << 20},
	}}})
	client := clientFor(t, "HTTP/2.0")
	body := strings.Repeat("x", 20_000)
	var answers []*http.Response
	for range 3 {
		resp, err := client.Post(p.url, "text/plain", io.MultiReader(strings.NewReader(body))) // without a length
		if err != nil {
			t.Fatal(err)
		}
		if answers = append(answers, resp); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
		eventually(t, "the copy has been sent", func() bool {
			return mirrorCount(p, "/", "sent")+mirrorCount(p, "/", "dropped") == uint64(len(answers))
		})
	}
	if n := len(copies); n != 3 {
		t.Errorf("%d copies, want 3", n)
	}
	release()
	for _, resp := range answers {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// TestMirrorLeavesMemory: the copies for a mirror that never answers take only a part of the memory for requests, so that
// no request is refused.
func TestMirrorLeavesMemory(t *testing.T) {
	u := newUpstream(t, serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	silent := newUpstream(t, serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	p := startProxy(t, httpproxy.Config{MaxBuffered: 2 << 20, Routes: []httpproxy.Route{{Path: "/", Upstream: u, Mirror: httpproxy.Mirror{Upstream: silent, Percent: 100}}}})
	client := clientFor(t, "HTTP/1.1")
	for _, size := range []int{60_000, 10_000} {
		for i := range 100 {
			resp, err := client.Post(p.url, "text/plain", strings.NewReader(strings.Repeat("x", size)))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			if _ = resp.Body.Close(); resp.StatusCode != 200 {
				t.Fatalf("request %d with %d bytes: %s", i, size, resp.Status)
			}
		}
	}
	if n := mirrorCount(p, "/", "dropped"); n == 0 || n > 200-8 {
		t.Errorf("%d of 200 copies were dropped", n)
	}
}

// TestMirrorAddsNoField: a copy has no field that the server does not get, other than MirrorField. Go's own parser adds one.
func TestMirrorAddsNoField(t *testing.T) {
	lines := make(chan string, 100)
	mirror := serveRaw(t, func(c net.Conn) {
		for br := bufio.NewReader(c); ; {
			line, err := br.ReadString('\n')
			if lines <- line; line == "\r\n" || err != nil {
				return
			}
		}
	})
	toServer, _ := recording(t, "")
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/", Upstream: newUpstream(t, serveHTTP(t, toServer)), Mirror: httpproxy.Mirror{Upstream: newUpstream(t, mirror), Percent: 100}}}})
	c, br := dialRaw(t, p.addr)
	roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nPragma: no-cache\r\n\r\n")
	names := ""
	for line := <-lines; line != "\r\n" && line != ""; line = <-lines {
		name, _, _ := strings.Cut(line, ":")
		names += name + " "
	}
	if !strings.Contains(names, "Pragma ") || strings.Contains(names, "Cache-Control ") {
		t.Errorf("the copy has %s", names)
	}
}

// TestMirrorOnStaleConnections: a copy with a body that meets a connection which the mirror closes is sent again on another one.
func TestMirrorOnStaleConnections(t *testing.T) {
	toServer, _ := recording(t, "")
	s := &onceServer{crowd: 1, waiting: make(chan struct{})}
	to := newUpstream(t, serveRaw(t, s.serve))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Path: "/", Upstream: newUpstream(t, serveHTTP(t, toServer)), Mirror: httpproxy.Mirror{Upstream: to, Percent: 100},
	}}})
	for n := range uint64(3) {
		req, err := http.NewRequest(http.MethodPut, p.url, strings.NewReader("text"))
		if err != nil {
			t.Fatal(err)
		}
		if resp, body := do(t, req); resp.StatusCode != 200 {
			t.Fatal(resp.Status, body)
		}
		eventually(t, "the copy is answered", func() bool { return mirrorCount(p, "/", "sent")+mirrorCount(p, "/", "failed") == n+1 })
	}
	if sent, vain := mirrorCount(p, "/", "sent"), s.vain.Load(); sent != 3 || vain != 2 {
		t.Errorf("%d copies are answered, %d were sent in vain", sent, vain)
	}
}

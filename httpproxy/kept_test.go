package httpproxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/upstream"
)

// idempotent are requests that may be sent again: their head, and the part of them that follows later.
var idempotent = []struct{ head, late string }{
	{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", ""},
	{"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nsome", ""},
	{"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\ns", "ome"},
	{"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\ns\r\n", "3\r\nome\r\n0\r\n\r\n"},
}

// TestServerThatClosesAfterEachAnswer, without saying so: no idempotent request fails.
func TestServerThatClosesAfterEachAnswer(t *testing.T) { closesAfterEachAnswer(t, 200) }

// closesAfterEachAnswer has eight clients send so many requests each.
func closesAfterEachAnswer(t *testing.T, each int) {
	const clients = 8
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			var conns atomic.Int64
			u := newUpstream(t, serveRaw(t, func(c net.Conn) {
				conns.Add(1)
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				body, err := io.ReadAll(r.Body)
				if want := map[string]string{"PUT": "some"}[r.Method]; err == nil && string(body) == want {
					_, _ = io.WriteString(c, okWith(strings.NewReader("hi")))
				}
			}))
			p := startProxy(t, routeTo(u))
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					if proto == "HTTP/2.0" {
						asksOften(t, p.url, each)
					} else {
						asksOftenRaw(t, p.addr, each)
					}
				})
			}
			wg.Wait()
			if n := conns.Load(); !t.Failed() && n < int64(clients*each) {
				t.Errorf("%d connections for %d requests", n, clients*each)
			}
			if e := u.Status().Endpoints[0]; e.Failures != 0 || e.Ejected {
				t.Errorf("the endpoint's state is %+v", e)
			}
		})
	}
}

func asksOftenRaw(t *testing.T, addr string, times int) {
	c, br := dialRaw(t, addr)
	for i := range times {
		r := idempotent[i%len(idempotent)]
		_, _ = io.WriteString(c, r.head)
		if r.late != "" {
			_, _ = io.WriteString(c, r.late)
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("request %d, %.9q: %v, %v", i, r.head, resp, err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

func asksOften(t *testing.T, url string, times int) {
	client := clientFor(t, "HTTP/2.0")
	for i := range times {
		method, body := http.MethodGet, io.Reader(nil)
		switch i % 3 {
		case 1:
			method, body = http.MethodPut, strings.NewReader("some")
		case 2:
			method, body = http.MethodPut, io.MultiReader(strings.NewReader("so"), strings.NewReader("me"))
		}
		req, _ := http.NewRequestWithContext(t.Context(), method, url, body)
		resp, err := client.Do(req)
		if err != nil {
			t.Errorf("request %d: %v", i, err)
			return
		}
		if text, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || err != nil {
			t.Errorf("request %d, a %s, is answered %s %q, %v", i, method, resp.Status, text, err)
		}
		resp.Body.Close()
	}
}

// take waits for a backend's report, and fails if there is none.
func take[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("the server has got nothing more")
	}
	return v
}

// takesHeads is a backend that answers the first request of each connection but the first, and closes it when it has read
// another. It closes its first connection at the first request. It reports each head.
type takesHeads struct {
	first  string // the answer on the first connection; "" = none, and the second request gets none
	heads  chan struct{}
	bodies chan string
	conns  atomic.Int64
}

func (s *takesHeads) serve(c net.Conn) {
	n := s.conns.Add(1)
	br := bufio.NewReader(c)
	for i := 0; ; i++ {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		s.heads <- struct{}{}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.bodies <- r.Method + " " + string(body) + fmt.Sprint(r.Trailer)
		switch {
		case n == 1 && s.first != "":
			_, _ = io.WriteString(c, s.first)
		case n == 1 && i == 1:
			return
		default:
			_, _ = io.WriteString(c, okWith(strings.NewReader("hi")))
		}
	}
}

// TestLateBodies: they are sent again after a stale connection, as long as they are kept.
func TestLateBodies(t *testing.T) {
	const chunkedHead = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	withLength := func(method string, n int) [2]string {
		return [2]string{fmt.Sprintf("%s / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", method, n), strings.Repeat("x", n)}
	}
	chunk := func(n int) string { return fmt.Sprintf("%x\r\n%s\r\n", n, strings.Repeat("x", n)) }
	for name, tc := range map[string]struct {
		request [2]string
		want    string // that the server gets again; "" = nothing
	}{
		"small":            {withLength("PUT", 5), "PUT xxxxx" + "map[]"},
		"two buffers":      {withLength("PUT", 30<<10), "PUT " + strings.Repeat("x", 30<<10) + "map[]"},
		"as much as fits":  {withLength("PUT", 64<<10), "PUT " + strings.Repeat("x", 64<<10) + "map[]"},
		"large":            {withLength("PUT", 64<<10+1), ""},
		"a POST":           {withLength("POST", 5), ""},
		"chunks":           {[2]string{chunkedHead, chunk(3) + chunk(20<<10) + "0\r\nA: b\r\n\r\n"}, "PUT " + strings.Repeat("x", 3+20<<10) + "map[A:[b]]"},
		"chunks, too many": {[2]string{chunkedHead, strings.Repeat(chunk(10<<10), 9) + "0\r\n\r\n"}, ""},
		"a long chunk":     {[2]string{chunkedHead, chunk(200<<10) + "0\r\n\r\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &takesHeads{heads: make(chan struct{}, 9), bodies: make(chan string, 9)}
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Ejection: upstream.Ejection{Failures: 1}}}, serveRaw(t, s.serve))
			p := startProxy(t, routeTo(u))
			wantHi(t, http.DefaultClient, http.MethodGet, p.url)
			take(t, s.heads)
			take(t, s.bodies)
			eventually(t, "the connection is idle", func() bool { return u.Status().Endpoints[0].Pool.Idle == 1 })
			c, br := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, tc.request[0])
			take(t, s.heads)
			_, _ = io.WriteString(c, tc.request[1]+getRoot) // the next request must not be taken for a part of the body
			first := take(t, s.bodies)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			if e := u.Status().Endpoints[0]; e.Ejected || e.Failures != 0 || e.Stale != uint64(min(len(tc.want), 1)) {
				t.Errorf("the endpoint's state is %+v", e)
			}
			if tc.want == "" {
				if resp.StatusCode != 502 || s.conns.Load() != 1 {
					t.Errorf("got %s %q, %d connections were opened", resp.Status, body, s.conns.Load())
				}
				return
			}
			if again := take(t, s.bodies); resp.StatusCode != 200 || string(body) != "hi" || first != tc.want || again != tc.want {
				t.Errorf("got %s %q, the server got %.20q (%d bytes) and %.20q (%d)", resp.Status, body, first, len(first), again, len(again))
			}
			resp, err = http.ReadResponse(br, nil)
			if err != nil || resp.StatusCode != 200 {
				t.Errorf("the next request is answered %v, %v", resp, err)
			}
			if next := take(t, s.bodies); next != "GET map[]" {
				t.Errorf("the next request is %.20q", next)
			}
		})
	}
}

// TestLateBodyAfterAStatus: a body that was sent whole, and is kept, is sent again to another endpoint.
func TestLateBodyAfterAStatus(t *testing.T) {
	first := &takesHeads{first: unavailable, heads: make(chan struct{}, 9), bodies: make(chan string, 9)}
	second := &asked{answer: okWith(strings.NewReader("hi")), keep: true}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}, serveRaw(t, first.serve), serveRaw(t, second.serve))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}}}}})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n")
	take(t, first.heads)
	_, _ = io.WriteString(c, "some")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != "hi" {
		t.Errorf("got %s %q", resp.Status, body)
	}
	if a, b := take(t, first.bodies), second.seen(); a != "PUT somemap[]" || len(b) != 1 || b[0] != "PUT some" {
		t.Errorf("the endpoints got %q and %q", a, b)
	}
}

// TestLateBodiesAreNotHeld: a request whose answer has begun cannot be sent again. From then on it holds no more than
// without a late body, whichever side speaks HTTP/2, also while its own body continues.
func TestLateBodiesAreNotHeld(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, size := range []int{0, 100, 20 << 10} {
			for _, more := range []bool{false, true} {
				for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
					if more && size == 0 {
						continue
					}
					t.Run(fmt.Sprint(proto, " to ", protocol, ", ", size, ", goes on: ", more), func(t *testing.T) {
						begun, end := make(chan struct{}), make(chan struct{})
						u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, func(w http.ResponseWriter, r *http.Request) {
							_ = http.NewResponseController(w).EnableFullDuplex()
							_, _ = io.CopyN(io.Discard, r.Body, int64(size))
							_, _ = io.WriteString(w, "some")
							_ = http.NewResponseController(w).Flush()
							<-end
						}))
						p := startProxy(t, routeTo(u))
						t.Cleanup(func() { close(end) })
						body, client := io.Pipe()
						t.Cleanup(func() { client.Close() })
						go func() {
							_, _ = client.Write(bytes.Repeat([]byte("x"), size))
							if !more {
								_ = client.Close()
							}
							close(begun)
						}()
						req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, p.url, body)
						resp, err := clientFor(t, proto).Do(req)
						if err != nil {
							t.Fatal(err)
						}
						defer resp.Body.Close()
						_, _ = io.ReadFull(resp.Body, make([]byte, 4))
						<-begun
						bound := int64(56 << 10) // three buffers, and text of heads
						if more {
							bound += 16 << 10 // for the framing of its chunks
						}
						eventually(t, "what was kept is given back", func() bool { return p.Stats().Buffered <= bound })
					})
				}
			}
		}
	}
}

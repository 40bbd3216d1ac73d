package httpproxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
)

// slowServer answers each request when a test says so, with its body.
type slowServer struct {
	*httpproxy.Upstream
	asked  chan string   // bodies of requests
	answer chan struct{} // each is for one request
	abort  chan struct{} // likewise
	gone   chan struct{} // a client has left
}

func newSlowServer(t testing.TB, way restWay, limits pool.Limits) *slowServer {
	t.Helper()
	s := &slowServer{asked: make(chan string, 9), answer: make(chan struct{}), abort: make(chan struct{}), gone: make(chan struct{}, 9)}
	s.Upstream = way.serve(t, limits, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.asked <- string(body)
		select {
		case <-s.answer:
			_, _ = io.WriteString(w, "answer to "+string(body))
		case <-s.abort:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			s.gone <- struct{}{}
		}
	})
	return s
}

// TestWaitRests: a session that waits long for an answer has no fiber, and no more than its request in memory. The latter
// also holds without loops.
func TestWaitRests(t *testing.T) {
	for name, way := range restWays {
		t.Run(name, func(t *testing.T) {
			s := newSlowServer(t, way, pool.Limits{})
			cfg, client := way.client(t, routeTo(s.Upstream))
			p := startProxy(t, cfg)
			rest := rested(t, way)
			bodies := []string{"", "a body", strings.Repeat("1234567890", 800)} // the last one may come behind its head
			for range 2 {                                                       // the second requests use the connections of the first
				var clients sync.WaitGroup
				for _, body := range bodies {
					clients.Go(func() {
						req, _ := http.NewRequest(http.MethodPost, p.url, strings.NewReader(body))
						if resp, got := doWith(t, client, req); resp.StatusCode != http.StatusOK || got != "answer to "+body {
							t.Errorf("%s %.40q for %.40q", resp.Status, got, body)
						}
					})
				}
				for range bodies {
					if body := <-s.asked; !slices.Contains(bodies, body) {
						t.Errorf("the server got %.40q", body)
					}
				}
				rest()
				eventually(t, "little is held", func() bool { return p.Stats().Buffered <= 12<<10 })
				for range bodies {
					s.answer <- struct{}{}
				}
				clients.Wait()
			}
		})
	}
}

// TestRestingRequestIsSentAgain: a request that a server gave up while its session rested goes to another as it was,
// although other requests have used its buffer.
func TestRestingRequestIsSentAgain(t *testing.T) {
	const head = "PUT http://first/a%20b/c?d=e HTTP/1.1\r\nHost: x\r\nUser-Agent: tester\r\nX-Request-Id: number-one\r\nX-Empty:\r\nContent-Length: 4\r\n\r\nbody"
	for name, target := range map[string]string{"PUT": head, "GET": "GET /a HTTP/1.1\r\nHost: first\r\nCookie: a=b\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			requests, fail := make(chan string, 2), make(chan struct{}, 1)
			backend := serveRaw(t, func(c net.Conn) {
				b := make([]byte, 4<<10)
				n, err := c.Read(b)
				if err != nil {
					return
				}
				requests <- string(b[:n])
				if _, ok := <-fail; ok {
					return // without an answer
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
			})
			lines := &logLines{t: t}
			cfg := routeTo(newUpstream(t, backend))
			cfg.AccessLog = &httpproxy.AccessLog{To: lines}
			other := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
			cfg.Routes = append([]httpproxy.Route{{Path: "/other", Upstream: other, NoAccessLog: true}}, cfg.Routes...)
			p := startProxy(t, cfg)
			rest := rested(t, restWay{})
			c, br := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, target)
			first := <-requests
			rest()
			for range 20 {
				get(t, p.url+"/other/"+strings.Repeat("z", 2000))
			}
			fail <- struct{}{}
			if second := <-requests; second != first {
				t.Errorf("sent %q, and then %q", first, second)
			}
			close(fail)
			if resp, body := readAnswer(t, br); resp.StatusCode != http.StatusOK || body != "ok" {
				t.Errorf("%s %q", resp.Status, body)
			}
			wantFields(t, lines.fields(), map[string]any{"method": name, "host": "first", "retries": 1, "status": 200})
		})
	}
}

// TestWaitEnds: an event that ends the exchange while the session waits for an answer is noticed at once by both sides.
func TestWaitEnds(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tc := range map[string]struct {
		end    func(t testing.TB, p running, s *slowServer, leave func())
		limit  time.Duration
		status int // 0 = there is no answer
		reason string
	}{
		"the client leaves": {end: func(_ testing.TB, _ running, _ *slowServer, leave func()) { leave() }, reason: listener.ReasonClientGone},
		"time-out":          {end: func(testing.TB, running, *slowServer, func()) {}, limit: 2 * checkInterval, status: 504, reason: listener.ReasonTimeout},
		"the server resets": {end: func(_ testing.TB, _ running, s *slowServer, _ func()) { s.abort <- struct{}{} }, status: 502, reason: listener.ReasonBackendGone},
		"drain":             {end: func(_ testing.TB, p running, _ *slowServer, _ func()) { _ = p.Drain(cancelled) }},
		"kill":              {end: func(t testing.TB, p running, _ *slowServer, _ func()) { killLast(t, p) }, reason: listener.ReasonKilled},
	} {
		for way, with := range restWays {
			t.Run(name+", "+way, func(t *testing.T) {
				s := newSlowServer(t, with, pool.Limits{})
				cfg := routeTo(s.Upstream)
				cfg.Routes[0].ResponseTimeout = tc.limit
				cfg, client := with.client(t, cfg)
				p := startProxy(t, cfg)
				rest := rested(t, with)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				status := make(chan int, 1)
				go func() {
					req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.url, strings.NewReader("body"))
					resp, err := client.Do(req)
					if err != nil {
						status <- 0
						return
					}
					_ = resp.Body.Close()
					status <- resp.StatusCode
				}()
				<-s.asked
				rest()
				tc.end(t, p, s, leave)
				if name != "the server resets" {
					<-s.gone
				}
				if got := <-status; got != tc.status {
					t.Errorf("the client gets %d, want %d", got, tc.status)
				}
				if tc.reason != "" {
					eventually(t, "the error is counted", func() bool { return p.Stats().Errors[tc.reason] == 1 })
				}
				eventually(t, "the exchange is over", func() bool { return p.Stats().Buffered == 0 })
			})
		}
	}
}

// TestInterimResponsesOfAWait: a request gets no more interim responses than are allowed, also if its session rests between
// them.
func TestInterimResponsesOfAWait(t *testing.T) {
	early := strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", httpwire.MaxInterim/2+1)
	more := make(chan struct{})
	backend := serveRaw(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4<<10))
		_, _ = io.WriteString(c, early)
		<-more
		_, _ = io.WriteString(c, early+"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	rest := rested(t, restWay{})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
	_, _ = br.Peek(1)
	rest()
	close(more)
	resp, err := http.ReadResponse(br, nil)
	for err == nil && resp.StatusCode < 200 {
		resp, err = http.ReadResponse(br, nil)
	}
	if err != nil || resp.StatusCode != http.StatusBadGateway {
		t.Errorf("%+v, %v; want 502", resp, err)
	}
}

// checkInterval is how long a session waits for an answer before it rests.
const checkInterval = time.Second

// TestRequestDuringAWait: a client that sends its next request while its session rests gets both answers.
func TestRequestDuringAWait(t *testing.T) {
	s := newSlowServer(t, restWay{}, pool.Limits{})
	p := startProxy(t, routeTo(s.Upstream))
	rest := rested(t, restWay{})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst")
	<-s.asked
	rest()
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nsecond")
	s.answer <- struct{}{}
	if _, body := readAnswer(t, br); body != "answer to first" {
		t.Errorf("the first answer is %q", body)
	}
	if got := <-s.asked; got != "second" {
		t.Errorf("the second request has the body %q", got)
	}
	rest()
	s.answer <- struct{}{}
	if _, body := readAnswer(t, br); body != "answer to second" {
		t.Errorf("the second answer is %q", body)
	}
}

// TestQueuedRequests: requests that wait long for a connection keep no more than themselves in memory, and are sent as they
// were, although others have used their buffers.
func TestQueuedRequests(t *testing.T) {
	for name, way := range restWays {
		t.Run(name, func(t *testing.T) {
			const n = 16
			s := newSlowServer(t, way, pool.Limits{MaxSize: 1, AcquireTimeout: patience})
			cfg := routeTo(s.Upstream)
			other := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
			cfg.Routes = append([]httpproxy.Route{{Path: "/other", Upstream: other}}, cfg.Routes...)
			cfg, client := way.client(t, cfg)
			p := startProxy(t, cfg)
			var clients sync.WaitGroup
			wanted := map[string]bool{}
			for i := range n {
				body := strings.Repeat(string(rune('a'+i)), 100+100*i)
				wanted[body] = true
				clients.Go(func() {
					req, _ := http.NewRequest(http.MethodPost, p.url, strings.NewReader(body))
					if resp, got := doWith(t, client, req); resp.StatusCode != http.StatusOK || got != "answer to "+body {
						t.Errorf("%s %.40q for %.40q", resp.Status, got, body)
					}
				})
			}
			// The one that is served may hold several buffers of 19 KiB.
			eventually(t, "little is held", func() bool {
				return len(s.asked) == 1 && s.Status().Endpoints[0].Pool.Waiting == n-1 && p.Stats().Buffered < 120<<10
			})
			for range 20 {
				req, _ := http.NewRequest(http.MethodGet, p.url+"/other/"+strings.Repeat("z", 2000), nil)
				doWith(t, client, req)
			}
			for range n {
				body := <-s.asked
				if !wanted[body] {
					t.Errorf("the server got %.40q, or got it twice", body)
				}
				delete(wanted, body)
				select {
				case s.answer <- struct{}{}:
				case <-s.gone:
					t.Fatal("a client has left")
				}
			}
			clients.Wait()
		})
	}
}

package httpproxy_test

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// busy is a backend with one connection. It answers /slow after slowness, and other requests on request.
type busy struct {
	u      *httpproxy.Upstream
	p      running
	answer chan struct{} // lets one request be answered

	mu  sync.Mutex
	got []string // the queries of requests, in their order
}

const slowness = 60 * time.Millisecond

func newBusy(t *testing.T, limits pool.Limits) *busy {
	t.Helper()
	b := &busy{answer: make(chan struct{}, 1000)}
	limits.MaxSize = 1
	limits.AcquireTimeout = 100 * patience
	b.u = newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: limits}}, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.got = append(b.got, r.URL.RawQuery)
		b.mu.Unlock()
		if r.URL.Path == "/slow" {
			select {
			case <-time.After(slowness):
			case <-r.Context().Done():
			}
			return
		}
		select {
		case <-b.answer:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { b.let(1000) })
	cfg := routeTo(b.u)
	cfg.Routes[0].DeadlineHeader = "X-Timeout-Ms"
	b.p = startProxy(t, cfg)
	return b
}

// let releases n answers.
func (b *busy) let(n int) {
	for range n {
		select {
		case b.answer <- struct{}{}:
		default:
		}
	}
}

func (b *busy) stats() pool.Stats { return b.u.Status().Endpoints[0].Pool }

// send sends n requests, whose statuses are sent to the channel.
func (b *busy) send(t *testing.T, client *http.Client, path string, n int) chan int {
	statuses := make(chan int, n)
	for range n {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.p.url+path, nil)
		go func() {
			resp, err := client.Do(req)
			if err != nil {
				statuses <- 0
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			statuses <- resp.StatusCode
		}()
	}
	return statuses
}

// queue makes n requests of a client wait, in addition to those that wait already, after one that has the connection.
func (b *busy) queue(t *testing.T, client *http.Client, path string, n int) chan int {
	t.Helper()
	before := b.stats().Waiting
	if b.stats().InUse == 0 {
		n++
		before--
	}
	statuses := b.send(t, client, path, n)
	eventually(t, "the requests wait", func() bool { return b.stats().Waiting == before+n || len(statuses) > 0 })
	if len(statuses) > 0 {
		t.Fatalf("a request has not waited: status %d", <-statuses)
	}
	return statuses
}

// from returns a client with its own address.
func from(t *testing.T, proto, address string) *http.Client {
	client := clientFor(t, proto)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	client.Transport.(*http.Transport).DialContext = d.DialContext
	return client
}

// learnPace shows the pool how long requests take: each at least slowness.
func (b *busy) learnPace(t *testing.T, client *http.Client) {
	t.Helper()
	statuses := b.send(t, client, "/slow?", 15)
	for range cap(statuses) {
		if status := <-statuses; status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	eventually(t, "the connection is free", func() bool { return b.stats().InUse == 0 })
}

// TestRefusedAtOnce: a request whose turn would come after its client's deadline is refused when it arrives, with Retry-After.
func TestRefusedAtOnce(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			b := newBusy(t, pool.Limits{})
			client := clientFor(t, proto)
			b.learnPace(t, client)
			const waiting = 60 // of at least slowness each, as far as the pool knows: more than 3 s
			statuses := b.queue(t, client, "/?", waiting)
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.p.url, nil)
			req.Header.Set("X-Timeout-Ms", "2000")
			resp, text := doWith(t, client, req)
			after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
			if resp.StatusCode != 503 || after < 3 || after > 45 || !strings.Contains(text, "in the time that the request has") {
				t.Errorf("%s, Retry-After %d: %s", resp.Status, after, text)
			}
			if s := b.stats(); s.GaveUp != 1 || s.Waiting != waiting {
				t.Errorf("gave up %d times, %d wait", s.GaveUp, s.Waiting)
			}
			eventually(t, "it is counted", func() bool { return b.p.Stats().Errors[listener.ReasonPoolExhausted] == 1 })
			req.Header.Set("X-Timeout-Ms", "never")
			late := make(chan int, 1)
			go func() {
				resp, err := client.Do(req)
				if err != nil {
					late <- 0
					return
				}
				_ = resp.Body.Close()
				late <- resp.StatusCode
			}()
			eventually(t, "a request without a deadline waits", func() bool { return b.stats().Waiting == waiting+1 })
			b.let(1000)
			for range cap(statuses) {
				if status := <-statuses; status != 200 {
					t.Errorf("a request that waited: %d", status)
				}
			}
			if status := <-late; status != 200 {
				t.Errorf("the request without a deadline: %d", status)
			}
		})
	}
}

// TestGRPCRefusedAtOnce: by grpc-timeout; the refusal also says in gRPC's form when to try again.
func TestGRPCRefusedAtOnce(t *testing.T) {
	b := newBusy(t, pool.Limits{})
	client := clientFor(t, "HTTP/2.0")
	b.learnPace(t, client)
	statuses := b.queue(t, client, "/?", 60)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, b.p.url, http.NoBody)
	req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Grpc-Timeout": {"2S"}}
	resp, _ := doWith(t, client, req)
	ms, _ := strconv.Atoi(resp.Header.Get("Grpc-Retry-Pushback-Ms"))
	if resp.StatusCode != 200 || resp.Header.Get("Grpc-Status") != "14" || ms < 3000 || ms > 45000 {
		t.Errorf("%s: %v", resp.Status, resp.Header)
	}
	b.let(1000)
	for range cap(statuses) {
		<-statuses
	}
}

// TestClientsTakeTurns: a client with many requests in the queue does not delay others or fill the queue.
func TestClientsTakeTurns(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			b := newBusy(t, pool.Limits{MaxWaiters: 40})
			first := b.queue(t, clientFor(t, proto), "/?many", 40)
			second := b.send(t, from(t, proto, "127.0.0.2"), "/?few", 3)
			refused := 0
			for range 3 { // for whom the others have made room
				if status := <-first; status == 503 {
					refused++
				}
			}
			if refused != 3 {
				t.Errorf("%d of the client's requests made room, want 3", refused)
			}
			eventually(t, "the others wait", func() bool { return b.stats().Waiting == 40 })
			b.let(1000)
			for range cap(second) {
				if status := <-second; status != 200 {
					t.Errorf("a request of the other client: %d", status)
				}
			}
			for range cap(first) - 3 {
				<-first
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			last := len(b.got) - 1 - slices.Index(reversed(b.got), "few")
			if last > 32 { // connections are on a loop: clients of the same one may pass others some times
				t.Errorf("the other client's last request was the %dth: %v", last, b.got)
			}
		})
	}
}

func reversed(list []string) []string {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// TestDeadlineHeader: what a client may write, and that a request ends then.
func TestDeadlineHeader(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        time.Duration
	}{
		{"X-Request-Timeout", "5", 5 * time.Second}, {"X-Request-Timeout", "0.25", 250 * time.Millisecond}, {"X-Request-Timeout", "1.5s", 1500 * time.Millisecond},
		{"x-envoy-expected-rq-timeout-ms", "15000", 15 * time.Second}, {"X-TIMEOUT-MS", "2", 2 * time.Millisecond}, {"X-Timeout-Ms", "3s", 3 * time.Second},
		{"T", "", 0}, {"T", "0", 0}, {"T", "-1", 0}, {"T", "soon", 0}, {"T", "1 s", 0}, {"T", "1e300", 0}, {"T", "99999999999999999999", 0}, {"T", "NaN", 0}, {"T", "5x", 0}, {"-ms", "7", 7 * time.Millisecond},
	} {
		if got := httpproxy.StatedTime(strings.ToLower(c.name), c.value); got != c.want {
			t.Errorf("%s: %s: %v, want %v", c.name, c.value, got, c.want)
		}
	}
	b := newBusy(t, pool.Limits{})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.p.url, nil)
		req.Header.Set("X-Timeout-Ms", "20")
		if resp, text := doWith(t, clientFor(t, proto), req); resp.StatusCode != 504 {
			t.Errorf("%s: %s: %s", proto, resp.Status, text)
		}
	}
	if err := (httpproxy.Config{Routes: []httpproxy.Route{{Upstream: b.u, DeadlineHeader: "a b"}}}).Verify(); err == nil {
		t.Error("a name that is no token is accepted")
	}
}

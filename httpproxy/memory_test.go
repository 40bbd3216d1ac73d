package httpproxy_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
)

// hanging is a backend that answers requests for /hang when it is told to.
type hanging struct {
	address string
	asked   atomic.Int64
	answer  func()
}

func newHanging(t *testing.T) *hanging {
	t.Helper()
	release := make(chan struct{})
	b := &hanging{answer: sync.OnceFunc(func() { close(release) })}
	b.address = serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			b.asked.Add(1)
			<-release
		}
		_, _ = io.WriteString(w, "hi")
	})
	t.Cleanup(b.answer)
	return b
}

// fill sends requests that hang, until one is refused for lack of memory. It returns the connections of the others.
func (b *hanging) fill(t *testing.T, p running) (waiting []*bufio.Reader) {
	t.Helper()
	for range 1000 {
		asked, refused := b.asked.Load(), p.Stats().Errors[listener.ReasonOverloaded]
		c, br := dialRaw(t, p.addr)
		_, _ = io.WriteString(c, "GET /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nunchanged")
		eventually(t, "the request is held or refused", func() bool {
			return b.asked.Load() > asked || p.Stats().Errors[listener.ReasonOverloaded] > refused
		})
		if b.asked.Load() == asked {
			wantShed(t, br)
			return waiting
		}
		waiting = append(waiting, br)
	}
	t.Fatal("1000 requests are held")
	return nil
}

// wantShed reads an answer that refuses a request for lack of memory.
func wantShed(t *testing.T, br *bufio.Reader) {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(body), "memory") {
		t.Errorf("%s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), body)
	}
}

// wantAnswered waits for the answers to the requests that were held, after which others are served again.
func wantAnswered(t *testing.T, p running, waiting []*bufio.Reader) {
	t.Helper()
	for _, br := range waiting {
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("a request that was held: %v, %v", resp, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	eventually(t, "requests are served again", func() bool {
		resp, err := http.Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// TestMaxBuffered: beyond the listener's memory new requests are refused, those that are there are not, and another listener is not
// concerned.
func TestMaxBuffered(t *testing.T) {
	const limit = 256 << 10
	b := newHanging(t)
	u := newUpstream(t, b.address)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u}}, MaxBuffered: limit})
	other := startProxy(t, routeTo(u))
	waiting := b.fill(t, p)
	if n := p.Stats().Buffered; n < limit/2 || n > 2*limit {
		t.Errorf("%d requests hold %d bytes, of %d", len(waiting), n, limit)
	}
	if resp, _ := get(t, other.url); resp.StatusCode != 200 {
		t.Errorf("the other listener: %s", resp.Status)
	}
	b.answer()
	wantAnswered(t, p, waiting)
}

// TestMemoryOfAllListeners: what one listener holds is missing to the others.
func TestMemoryOfAllListeners(t *testing.T) {
	b := newHanging(t)
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, b.address)}}, Memory: httpproxy.NewMemory(256 << 10)}
	p, other := startProxy(t, cfg), startProxy(t, cfg)
	waiting := b.fill(t, p)
	more := b.fill(t, other) // some: the last requests' buffers for sending may have been given back since
	if len(more) > len(waiting)/4 {
		t.Errorf("the other one takes %d more requests, after %d", len(more), len(waiting))
	}
	b.answer()
	wantAnswered(t, p, append(waiting, more...))
}

// TestMemoryOfHTTP2Heads: the heads of requests that wait are counted, also those without a fiber.
func TestMemoryOfHTTP2Heads(t *testing.T) {
	const clients, size = 20, 40 << 10
	release := make(chan struct{})
	var asked atomic.Int64
	answer := sync.OnceFunc(func() { close(release) })
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, serveEither(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Long") != "" {
			asked.Add(1)
			<-release
		}
	}))
	t.Cleanup(answer) // before the server is closed, which waits for its requests
	p := startProxy(t, routeTo(u))
	client := clientFor(t, "HTTP/2.0")
	for range 3 { // so that requests need no fiber
		req, _ := http.NewRequest(http.MethodGet, p.url, nil)
		doWith(t, client, req)
	}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			req, _ := http.NewRequest(http.MethodGet, p.url, nil)
			req.Header.Set("X-Long", strings.Repeat("x", size))
			resp, err := client.Do(req)
			if err != nil || resp.StatusCode != 200 {
				t.Errorf("%v, %v", resp, err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	eventually(t, "all requests wait", func() bool { return asked.Load() == clients || t.Failed() })
	if n := p.Stats().Buffered; n < clients*size {
		t.Errorf("%d requests with heads of %d bytes hold %d", clients, size, n)
	}
	answer()
	wg.Wait()
}

// TestLimitFiles: the limit of a control group may be that of one above it.
func TestLimitFiles(t *testing.T) {
	for groups, want := range map[string]string{
		"0::/\n":                              "/sys/fs/cgroup/memory.max",
		"0::/system.slice/headpond.service\n": "/sys/fs/cgroup/system.slice/headpond.service/memory.max /sys/fs/cgroup/system.slice/memory.max /sys/fs/cgroup/memory.max",
		"5:cpu,cpuacct:/x\n4:memory:/a\n":     "/sys/fs/cgroup/memory/a/memory.limit_in_bytes /sys/fs/cgroup/memory/memory.limit_in_bytes",
		"0::/../../x\n":                       "/sys/fs/cgroup/x/memory.max /sys/fs/cgroup/memory.max",
		"":                                    "", "nonsense": "/sys/fs/cgroup/memory.max",
	} {
		if got := strings.Join(httpproxy.LimitFiles(groups), " "); got != want {
			t.Errorf("%q: %s, want %s", groups, got, want)
		}
	}
}

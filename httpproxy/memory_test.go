package httpproxy_test

import (
	"bufio"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
)

// hanging is a backend that answers requests for /hang on request.
type hanging struct {
	address string
	asked   atomic.Int64
	answer  func()
}

func newHanging(t *testing.T) *hanging {
	t.Helper()
	release := make(chan struct{})
	b := &hanging{answer: sync.OnceFunc(func() { close(release) })}
	b.address = serveEither(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			b.asked.Add(1)
			<-release
		}
		_, _ = io.WriteString(w, "hi")
	})
	t.Cleanup(b.answer)
	return b
}

// holdingUpstream returns an upstream whose requests keep their memory while they wait, however long that takes: by HTTP/2, as by
// HTTP/1.1 it is freed after a second.
func holdingUpstream(t *testing.T, b *hanging) *httpproxy.Upstream {
	t.Helper()
	return newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, b.address)
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

// TestMaxBuffered: beyond the listener's limit new requests are refused. Running requests and other listeners are not
// affected.
func TestMaxBuffered(t *testing.T) {
	const limit = 256 << 10
	b := newHanging(t)
	u := holdingUpstream(t, b)
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

// TestMemoryOfAllListeners: all listeners share the memory.
func TestMemoryOfAllListeners(t *testing.T) {
	b := newHanging(t)
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: holdingUpstream(t, b)}}, Memory: httpproxy.NewMemory(256 << 10)}
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

// hang sends requests that hang on one HTTP/2 connection, one after the other, until one is refused for lack of memory. It
// returns how many hang, and a channel with their statuses.
func (b *hanging) hang(t *testing.T, client *http.Client, p running) (n int, statuses chan int) {
	t.Helper()
	statuses = make(chan int, 1000)
	for range cap(statuses) {
		asked, refused := b.asked.Load(), p.Stats().Errors[listener.ReasonOverloaded]
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/hang", strings.NewReader("unchanged"))
		go func() {
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				statuses <- 0
				return
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == 503 && (resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(body), "of this connection")) {
				t.Errorf("refused with Retry-After %q: %s", resp.Header.Get("Retry-After"), body)
			}
			statuses <- resp.StatusCode
		}()
		eventually(t, "the request is held or refused", func() bool {
			return b.asked.Load() > asked || p.Stats().Errors[listener.ReasonOverloaded] > refused
		})
		if b.asked.Load() == asked {
			if status := <-statuses; status != 503 {
				t.Errorf("refused with %d", status)
			}
			return n, statuses
		}
		n++
	}
	t.Fatal("all requests are held")
	return 0, nil
}

// TestMaxBufferedPerConn: beyond a connection's limit new requests on it are refused, and no others. When the memory is
// freed, all of it can be used again, also by reused streams and sessions.
func TestMaxBufferedPerConn(t *testing.T) {
	limit := httpproxy.LeastBufferedPerConn(0, 0)
	b := newHanging(t)
	cfg := routeTo(newUpstream(t, b.address))
	cfg.MaxBufferedPerConn, cfg.Listener.Logger = limit, slog.New(slog.DiscardHandler)
	p := startProxy(t, cfg)
	client, other := clientFor(t, "HTTP/2.0"), clientFor(t, "HTTP/2.0")
	n, statuses := b.hang(t, client, p)
	if held := p.Stats().Buffered; held > limit+64<<10 || n < 3 {
		t.Errorf("%d requests hold %d bytes, of %d", n, held, limit)
	}
	wantHi(t, other, http.MethodGet, p.url)
	wantHi(t, http.DefaultClient, http.MethodGet, p.url)
	cfg.MaxBufferedPerConn = 0 // also for connections that are there
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	wantHi(t, client, http.MethodGet, p.url)
	cfg.MaxBufferedPerConn = limit
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	b.answer()
	for range n {
		if status := <-statuses; status != 200 {
			t.Errorf("a request that was held: %d", status)
		}
	}
	for range 3 * n {
		wantHi(t, client, http.MethodGet, p.url)
	}
	again := newHanging(t)
	cfg.Routes[0].Upstream = newUpstream(t, again.address)
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the memory is given back", func() bool { return p.Stats().Buffered < 64<<10 })
	m, statuses := again.hang(t, client, p)
	if m < n/2 || m > 2*n {
		t.Errorf("%d requests fit at first, %d later", n, m)
	}
	again.answer()
	for range m {
		<-statuses
	}
}

// TestMaxBufferedPerConnOfOneRequest: a request alone on its connection is never refused, however large its head and the
// peeked part of its body are.
func TestMaxBufferedPerConnOfOneRequest(t *testing.T) {
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
	}))
	p := startProxy(t, httpproxy.Config{
		MaxBufferedPerConn: httpproxy.LeastBufferedPerConn(0, 0),
		Routes:             []httpproxy.Route{{Upstream: u, Body: []httpproxy.FieldMatch{{Name: "model", Value: "x"}}}, {Upstream: u}},
	})
	body := `{"text": "` + strings.Repeat("x", 62<<10) + `", "model": "x"}`
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for range 20 {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, strings.NewReader(body))
			req.Header.Set("X-Large", strings.Repeat("y", 60<<10))
			req.Header.Set("Content-Type", "application/json")
			if resp, got := doWith(t, client, req); resp.StatusCode != 200 || got != strconv.Itoa(len(body)) {
				t.Errorf("%s: %s %q", proto, resp.Status, got)
			}
		}
	}
	if err := (httpproxy.Config{MaxBufferedPerConn: httpproxy.LeastBufferedPerConn(0, 0) - 1}).Verify(); err == nil {
		t.Error("less than a request may take is accepted")
	}
	if err := (httpproxy.Config{MaxBufferedPerConn: -1}).Verify(); err == nil {
		t.Error("a negative bound is accepted")
	}
}

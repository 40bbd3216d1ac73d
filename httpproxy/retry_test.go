package httpproxy_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// asked is a backend that records the requests it has read, and answers each as configured.
type asked struct {
	mu     sync.Mutex
	bodies []string
	answer string // "" = none: the connection is reset
	keep   bool   // serve on
	hang   bool   // do not answer until the client has gone
}

func (a *asked) serve(c net.Conn) {
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		a.bodies = append(a.bodies, r.Method+" "+string(body))
		a.mu.Unlock()
		if a.hang {
			_, _ = br.Peek(1)
			return
		}
		_, _ = io.WriteString(c, a.answer)
		if !a.keep {
			if a.answer == "" {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			return
		}
	}
}

func (a *asked) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.bodies)
}

const unavailable = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"

// TestRetries: the first endpoint fails in every way, and the second would answer. Retries decides which requests get
// its answer.
func TestRetries(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	on := func(f ...httpproxy.Failure) httpproxy.Retries { return httpproxy.Retries{On: f} }
	for name, tc := range map[string]struct {
		first   *asked // nil = it resets connections
		method  string
		fields  string
		body    string
		retries httpproxy.Retries
		status  int // 0 = the answer breaks off
		want    string
	}{
		"reset":                   {method: "GET", status: 200, want: "hi"},
		"reset, with a body":      {method: "PUT", body: "some", status: 200, want: "hi"},
		"reset of a POST":         {method: "POST", body: "some", status: 502},
		"reset of a POST with id": {method: "POST", fields: "Idempotency-Key: 7\r\n", body: "some", status: 200, want: "hi"},
		"reset of a listed POST":  {method: "POST", body: "some", retries: httpproxy.Retries{Methods: []string{"POST"}}, status: 200, want: "hi"},
		"reset of an unlisted":    {method: "GET", retries: httpproxy.Retries{Methods: []string{"HEAD"}}, status: 502},
		"reset, sent once":        {method: "GET", retries: httpproxy.Retries{Attempts: 1}, status: 502},
		"reset, not asked for":    {method: "GET", retries: on(httpproxy.FailedConnect, httpproxy.Failed503), status: 502},
		"half a head":             {first: &asked{answer: ok + "Content-"}, method: "GET", status: 200, want: "hi"},
		"behind an interim":       {first: &asked{answer: "HTTP/1.1 103 Early Hints\r\n\r\n"}, method: "GET", status: 200, want: "hi"},
		"half a body":             {first: &asked{answer: ok + "Content-Length: 9\r\n\r\nhalf"}, method: "GET"},
		"not HTTP":                {first: &asked{answer: "SSH-2.0-x\r\n"}, method: "GET", status: 502},
		"503":                     {first: &asked{answer: unavailable, keep: true}, method: "GET", status: 503, want: "busy"},
		"503, asked for":          {first: &asked{answer: unavailable, keep: true}, method: "GET", retries: on(httpproxy.Failed503), status: 200, want: "hi"},
		"503 with half a body":    {first: &asked{answer: unavailable[:len(unavailable)-1]}, method: "GET", retries: on(httpproxy.Failed503), status: 200, want: "hi"},
		"503 to a HEAD":           {first: &asked{answer: unavailable[:len(unavailable)-4], keep: true}, method: "HEAD", retries: on(httpproxy.Failed503), status: 200},
		"503, a body":             {first: &asked{answer: unavailable, keep: true}, method: "PUT", body: "some", retries: on(httpproxy.Failed503), status: 200, want: "hi"},
		"503 to a POST":           {first: &asked{answer: unavailable, keep: true}, method: "POST", retries: on(httpproxy.Failed503), status: 503, want: "busy"},
		"503, another asked for":  {first: &asked{answer: unavailable, keep: true}, method: "GET", retries: on(httpproxy.Failed502), status: 503, want: "busy"},
		"502, in chunks":          {first: &asked{answer: "HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"}, method: "GET", retries: on(httpproxy.Failed502), status: 200, want: "hi"},
		"504, asked for":          {first: &asked{answer: "HTTP/1.1 504 Gateway Timeout\r\n\r\n"}, method: "GET", retries: on(httpproxy.Failed504), status: 200, want: "hi"},
		"500":                     {first: &asked{answer: "HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx"}, method: "GET", retries: on(httpproxy.Failed502, httpproxy.Failed503), status: 500, want: "x"},
		"599":                     {first: &asked{answer: "HTTP/1.1 599 No\r\nContent-Length: 1\r\n\r\nx"}, method: "GET", retries: on(httpproxy.Failed502, httpproxy.Failed503), status: 599, want: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := cmp.Or(tc.first, &asked{}), &asked{answer: okWith(strings.NewReader("hi")), keep: true}
			if tc.method == "HEAD" {
				second.answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
			}
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}, serveRaw(t, first.serve), serveRaw(t, second.serve))
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Retries: tc.retries}}})
			status, got := askRaw(t, p.addr, tc.method, tc.fields, tc.body)
			if status != tc.status || tc.want != "" && got != tc.want {
				t.Errorf("got %d %q, want %d %q", status, got, tc.status, tc.want)
			}
			want := []string{tc.method + " " + tc.body}
			if seen := first.seen(); !slices.Equal(seen, want) {
				t.Errorf("the first endpoint was asked %q", seen)
			}
			if tc.status != 200 {
				want = nil
			}
			if seen := second.seen(); !slices.Equal(seen, want) {
				t.Errorf("the second endpoint was asked %q", seen)
			}
		})
	}
}

// askRaw sends a request on a new connection. Interim answers are skipped; the status of a broken answer is 0.
func askRaw(t testing.TB, addr, method, fields, body string) (status int, text string) {
	t.Helper()
	c, br := dialRaw(t, addr)
	if _, err := fmt.Fprintf(c, "%s / HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s", method, fields, len(body), body); err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode < 200 {
			continue
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, string(got)
		}
		return resp.StatusCode, string(got)
	}
}

// TestRetriesOfHTTP2Streams: the same as for connections of HTTP/1.1.
func TestRetriesOfHTTP2Streams(t *testing.T) {
	first, second := &asked{}, &asked{answer: okWith(strings.NewReader("hi")), keep: true}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, Ejection: upstream.Ejection{Failures: -1}}},
		serveRaw(t, first.serve), serveRaw(t, second.serve))
	p := startProxy(t, routeTo(u))
	client := clientFor(t, "HTTP/2.0")
	for range 3 {
		wantHi(t, client, http.MethodGet, p.url)
	}
	if a, b := len(first.seen()), len(second.seen()); a != 3 || b != 3 {
		t.Errorf("the endpoints were asked %d and %d times", a, b)
	}
}

// TestRetriesAreSeen in the counts of the route and of both endpoints, and in the access log.
func TestRetriesAreSeen(t *testing.T) {
	first, second := &asked{answer: unavailable, keep: true}, &asked{answer: okWith(strings.NewReader("hi")), keep: true}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}, serveRaw(t, first.serve), serveRaw(t, second.serve))
	var log conntest.Log
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}}}}}
	cfg.Listener.AccessLog, cfg.Listener.Logger = true, log.Logger()
	p := startProxy(t, cfg)
	if status, got := askRaw(t, p.addr, "GET", "", ""); status != 200 || got != "hi" {
		t.Fatalf("got %d %q", status, got)
	}
	eventually(t, "it is logged", func() bool { return log.Line("msg=access", "status=200", "retries=1") != "" })
	got := counted(p.Stats().Traffic[0])
	if got["/ http_retries_total 503"] != 1 || got["/ http_requests_total 2xx"] != 1 || len(got) != 4 {
		t.Errorf("the route's counts are %v", got)
	}
	for i, class := range []string{"5xx", "2xx"} {
		row := u.Status().Endpoints[i].Traffic
		if n := row.Counts[int(class[0]-'0')]; n != 1 || row.Timings[0].Count() != 1 {
			t.Errorf("endpoint %d has %d answers of %s, its counts are %v", i, n, class, row.Counts)
		}
	}
}

// TestNoOtherEndpointAfterConnect: without "connect" one endpoint is tried.
func TestNoOtherEndpointAfterConnect(t *testing.T) {
	second := &asked{answer: okWith(strings.NewReader("hi"))}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}, conntest.FreeAddress(t), serveRaw(t, second.serve))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.FailedReset}}}}})
	status, got := askRaw(t, p.addr, "GET", "", "")
	if status != 502 || !strings.Contains(got, "connection refused") || len(second.seen()) != 0 {
		t.Errorf("got %d %q, the second endpoint was asked %q", status, got, second.seen())
	}
}

// TestEndpointThatHangsUpAtOnce: another one gets the request, whatever its method, as nothing was sent.
func TestEndpointThatHangsUpAtOnce(t *testing.T) {
	hangsUp := serveRaw(t, func(net.Conn) {})
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := enginetest.Dial(ctx, endpoint)
		if err == nil && endpoint == hangsUp {
			_, _ = c.Read(make([]byte, 1)) // the end
		}
		return c, err
	}
	second := &asked{answer: okWith(strings.NewReader("hi"))}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: dial, Settings: upstream.Settings{Balance: upstream.First}}, hangsUp, serveRaw(t, second.serve))
	p := startProxy(t, routeTo(u))
	if status, got := askRaw(t, p.addr, "POST", "", "some"); status != 200 || got != "hi" {
		t.Errorf("got %d %q", status, got)
	}
}

// TestSlowTry: a try that takes too long is followed by another, within the time for all.
func TestSlowTry(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		first, second := &asked{hang: true}, &asked{answer: okWith(strings.NewReader("hi")), keep: true}
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}, serveRaw(t, first.serve), serveRaw(t, second.serve))
		slow := httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed504}, PerTryTimeout: unit}
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Retries: slow}}})
		if status, got := askRaw(t, p.addr, "GET", "", ""); status != 200 || got != "hi" {
			t.Errorf("got %d %q", status, got)
		}
		if status, got := askRaw(t, p.addr, "POST", "", "some"); status != 504 || !strings.Contains(got, "no response in time") {
			t.Errorf("the POST got %d %q", status, got)
		}
		if e := u.Status().Endpoints[0]; e.Failures != 0 {
			t.Errorf("slowness counts as %d failures", e.Failures)
		}
	})
}

// TestEveryTryIsSlow: the time for the answer is that of all tries together.
func TestEveryTryIsSlow(t *testing.T) {
	hangs := &asked{hang: true}
	slow := httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed504}, Attempts: 10, PerTryTimeout: 20 * time.Millisecond}
	u := newUpstream(t, serveRaw(t, hangs.serve))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Retries: slow, ResponseTimeout: 50 * time.Millisecond}}})
	status, got := askRaw(t, p.addr, "GET", "", "")
	if n := len(hangs.seen()); status != 504 || !strings.Contains(got, "no response in time") || n > 3 {
		t.Errorf("got %d %q after %d tries", status, got, n)
	}
}

// TestRetryBudget: beyond the budget the client gets the result of the first try.
func TestRetryBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		backend *asked
		retries httpproxy.Retries
		status  int
		want    string
	}{
		"reset": {backend: &asked{}, status: 502, want: "the connection was closed without a response"},
		"503":   {backend: &asked{answer: unavailable, keep: true}, retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}}, status: 503, want: "busy"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.retries.Attempts = 2
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Ejection: upstream.Ejection{Failures: -1}}}, serveRaw(t, tc.backend.serve))
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, Retries: tc.retries}}})
			var requests, sent, refused float64
			var total traffic.Total
			for refused == 0 && requests < 1000 { // some in each ten seconds are always sent again
				if status, got := askRaw(t, p.addr, "GET", "", ""); status != tc.status || !strings.Contains(got, tc.want) {
					t.Fatalf("got %d %q", status, got)
				}
				requests++
				eventually(t, "all are counted", func() bool {
					snapshot := p.Stats().Traffic[0]
					got := counted(snapshot)
					sent, refused, total = got["/ http_retries_total "+name], got["/ http_retries_refused_total "], snapshot.Total()
					return sent+refused == requests && total.Done == requests
				})
			}
			if n := len(tc.backend.seen()); refused == 0 || n != int(requests+sent) {
				t.Errorf("of %v requests %v were sent again, %v not, %d came", requests, sent, refused, n)
			}
			if total.Failed != requests {
				t.Errorf("of %v requests that all failed %v failed of %v by the summary", requests, total.Failed, total.Done)
			}
		})
	}
}

// TestBudget: a window of ten seconds slides over requests and retries.
func TestBudget(t *testing.T) {
	now := time.Unix(1000, 0)
	b := httpproxy.NewBudget(now)
	take := func(percent int) (n int) {
		for b.Take(now, percent) {
			n++
		}
		return n
	}
	if n := take(20); n != 10 {
		t.Errorf("without requests %d retries are allowed", n)
	}
	b.Requests(1000)
	now = now.Add(time.Second)
	if n := take(20); n != 190 {
		t.Errorf("of 1000 requests %d are sent again besides the first 10", n)
	}
	if n := take(50); n != 300 {
		t.Errorf("of 1000 requests %d more with 50 percent", n)
	}
	now = now.Add(9 * time.Second) // the window is over, and still all of the last ten seconds
	if n := take(50); n != 0 {
		t.Errorf("%d at the end of the window", n)
	}
	now = now.Add(5 * time.Second) // half of it is left
	b.Requests(500)
	if n := take(50); n != 250 {
		t.Errorf("%d of 500 new requests", n)
	}
	now = now.Add(time.Hour)
	if n := take(100); n != 10 {
		t.Errorf("%d after an hour", n)
	}
}

// TestKilledBackendLosesNoGET: of two backends one is killed and started again three times, under load.
func TestKilledBackendLosesNoGET(t *testing.T) {
	const clients, kills, some = 8, 3, 50
	var others atomic.Int64
	answers := func(count *atomic.Int64) func(*net.TCPConn) {
		return func(c *net.TCPConn) {
			for br := bufio.NewReader(c); readRequest(br) == nil; count.Add(1) {
				_, _ = io.WriteString(c, okWith(strings.NewReader("hi")))
			}
		}
	}
	doomed := conntest.FreeAddress(t)
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Ejection: upstream.Ejection{Base: time.Millisecond, Max: 10 * time.Millisecond}}},
		doomed, conntest.Serve(t, answers(&others)))
	p := startProxy(t, routeTo(u))
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	for range clients {
		wg.Go(func() {
			for c, br := dialRaw(t, p.addr); ; {
				select {
				case <-done:
					return
				default:
				}
				_, _ = io.WriteString(c, getRoot)
				resp, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Errorf("a GET: %v", err)
					return
				}
				if body, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != "hi" || err != nil {
					t.Errorf("a GET is answered %s %q, %v", resp.Status, body, err)
					return
				}
			}
		})
	}
	for range kills {
		var mine atomic.Int64
		_, kill := conntest.ServeAt(t, doomed, answers(&mine))
		eventually(t, "it answers", func() bool { return mine.Load() >= some || t.Failed() })
		kill()
		before := others.Load()
		eventually(t, "the other one answers", func() bool { return others.Load() >= before+some || t.Failed() })
	}
}

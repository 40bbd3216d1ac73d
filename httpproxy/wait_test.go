package httpproxy_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// silentAddress is an endpoint that answers no attempt to connect.
const silentAddress = "silent:1"

// withSilent makes an upstream whose first endpoint is silentAddress. No other limit ends the wait for a connection.
func withSilent(t *testing.T, limits pool.Limits, others ...string) *httpproxy.Upstream {
	t.Helper()
	limits.AcquireTimeout, limits.OpenTimeout = time.Hour, time.Hour
	return newUpstreamWith(t, httpproxy.UpstreamOptions{
		Settings: upstream.Settings{Balance: upstream.First, Limits: limits}, ConnectTimeout: time.Hour,
		Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
			if endpoint == silentAddress {
				fiber.Block(func() { <-ctx.Done() })
				return nil, ctx.Err()
			}
			return enginetest.Dial(ctx, endpoint)
		},
	}, append([]string{silentAddress}, others...)...)
}

// TestConnectTimeout: a request waits for the silent endpoint as long as its route says, and then goes to the next one.
func TestConnectTimeout(t *testing.T) {
	const soon = 10 * time.Millisecond
	good := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") })
	for name, tc := range map[string]struct {
		others []string
		on     []httpproxy.Failure
		status int
		want   string
	}{
		"another endpoint":     {others: []string{good}, status: 200, want: "hi"},
		"none":                 {status: 502, want: "does not answer in time"},
		"another is not tried": {others: []string{good}, on: []httpproxy.Failure{httpproxy.FailedReset}, status: 502, want: "does not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			// The connection to the good endpoint may take its time, too, on a machine that is busy: then the client gets 502.
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
				Upstream: withSilent(t, pool.Limits{}, tc.others...), ConnectTimeout: soon, Retries: httpproxy.Retries{On: tc.on},
			}}})
			eventually(t, "the answer is "+tc.want, func() bool {
				resp, body := get(t, p.url)
				return resp.StatusCode == tc.status && strings.Contains(body, tc.want)
			})
		})
	}
}

// TestConnectTimeoutOfAFullPool: the wait for a connection that must become free ends likewise.
func TestConnectTimeoutOfAFullPool(t *testing.T) {
	b := newHanging(t)
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: time.Hour}}}, b.address)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/hang", Upstream: u}, {Upstream: u, ConnectTimeout: 10 * time.Millisecond}}})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
	eventually(t, "the connection is in use", func() bool { return b.asked.Load() == 1 })
	if resp, body := get(t, p.url); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "none became free") {
		t.Errorf("%s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), body)
	}
	b.answer()
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("the first request: %v, %v", resp, err)
	}
}

// TestRetryPause: between two tries there is half the pause at least, and the second pause is twice as long.
func TestRetryPause(t *testing.T) {
	const pause = 40 * time.Millisecond
	var mu sync.Mutex
	var asked []time.Time
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, time.Now())
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: u, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}, Attempts: 3, Pause: pause},
	}}})
	if resp, _ := get(t, p.url); resp.StatusCode != 503 {
		t.Errorf("the answer is %s", resp.Status)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 3 {
		t.Fatalf("the server was asked %d times", len(asked))
	}
	for i, least := range []time.Duration{pause / 2, pause} {
		if took := asked[i+1].Sub(asked[i]); took < least {
			t.Errorf("pause %d is %v, want %v at least", i, took, least)
		}
	}
}

// TestBadWaits are refused.
func TestBadWaits(t *testing.T) {
	u := newUpstream(t, "127.0.0.1:1")
	for name, r := range map[string]httpproxy.Route{
		"a negative pause":           {Upstream: u, Retries: httpproxy.Retries{Pause: -1}},
		"a long pause":               {Upstream: u, Retries: httpproxy.Retries{Pause: time.Hour}},
		"a negative connect timeout": {Upstream: u, ConnectTimeout: -1},
	} {
		if _, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{r}}); !errors.Is(err, httpproxy.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConnectTimeoutPassesOnFullPools: an endpoint whose pool is full is skipped as well.
func TestConnectTimeoutPassesOnFullPools(t *testing.T) {
	b := newHanging(t)
	other := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "other") })
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{
		Settings: upstream.Settings{Balance: upstream.First, Limits: pool.Limits{MaxSize: 1, AcquireTimeout: time.Hour}},
	}, b.address, other)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/hang", Upstream: u}, {Upstream: u, ConnectTimeout: 10 * time.Millisecond}}})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
	eventually(t, "the connection is in use", func() bool { return b.asked.Load() == 1 })
	eventually(t, "the other endpoint answers", func() bool { // it, too, must be reached in time
		_, body := get(t, p.url)
		return body == "other"
	})
	b.answer()
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("the first request: %v, %v", resp, err)
	}
}

// TestConnectTimeoutOfRenewed: it also bounds the opening of a connection in place of one that the server has closed.
func TestConnectTimeoutOfRenewed(t *testing.T) {
	first := serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
			_, _ = http.ReadRequest(br)
		}
	})
	other := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "other") })
	var dials atomic.Int64
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{
		Settings: upstream.Settings{Balance: upstream.First, Limits: pool.Limits{AcquireTimeout: time.Hour, OpenTimeout: time.Hour}}, ConnectTimeout: time.Hour,
		Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
			if endpoint == first && dials.Add(1) > 1 {
				fiber.Block(func() { <-ctx.Done() })
				return nil, ctx.Err()
			}
			return enginetest.Dial(ctx, endpoint)
		},
	}, first, other)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/first", Upstream: u}, {Upstream: u, ConnectTimeout: 200 * time.Millisecond}}})
	c, br := dialRaw(t, p.addr)
	if _, body := roundTrip(t, c, br, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n"); body != "first" {
		t.Fatalf("the first answer is %q", body)
	}
	eventually(t, "the other endpoint answers", func() bool { // it, too, must be reached in time
		_, body := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		return body == "other"
	})
}

// TestRetryPauseIsNoWait: a pause does not count for the servers' time to answer.
func TestRetryPauseIsNoWait(t *testing.T) {
	const limit = 200 * time.Millisecond
	var asked atomic.Int64
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: u, ResponseTimeout: limit, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}, Pause: 2 * limit},
	}}})
	eventually(t, "the second try is answered", func() bool { // in time, unless the machine stands still
		asked.Store(0)
		resp, _ := get(t, p.url)
		return resp.StatusCode == 200 && asked.Load() == 2
	})
}

// TestRetryAfterASlowUpload: the client's time for the body does not count for the servers' time to answer.
func TestRetryAfterASlowUpload(t *testing.T) {
	const limit, answer = 2 * time.Second, 1200 * time.Millisecond
	var asked atomic.Int64
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, serveEither(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if asked.Add(1)%2 == 1 {
			panic(http.ErrAbortHandler) // resets the stream
		}
		<-time.After(answer)
		_, _ = w.Write(body)
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, ResponseTimeout: limit}}})
	eventually(t, "the second try is answered", func() bool { // in time, unless the machine stands still
		asked.Store(0)
		c, br := dialRaw(t, p.addr)
		defer c.Close()
		_, _ = io.WriteString(c, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n")
		<-time.After(answer) // longer than limit with the answer
		resp, body := roundTrip(t, c, br, "body")
		return resp.StatusCode == 200 && body == "body" && asked.Load() == 2
	})
}

// TestNoRetryBeyondTheEnd: a request that could not be sent again in time gets the last answer.
func TestNoRetryBeyondTheEnd(t *testing.T) {
	var asked atomic.Int64
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	const limit = httpproxy.MaxRetryPause
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: u, Timeout: limit, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}, Pause: limit},
	}}})
	eventually(t, "the only try is answered", func() bool { // before the limit, unless the machine stands still
		asked.Store(0)
		resp, _ := get(t, p.url)
		return resp.StatusCode == 503 && asked.Load() == 1
	})
}

// TestRetryPauseOfGoneClient: a pause ends when the client goes.
func TestRetryPauseOfGoneClient(t *testing.T) {
	const pause = httpproxy.MaxRetryPause
	var asked atomic.Int64
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: u, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}, Pause: pause},
	}}})
	eventually(t, "the session ends before the pause", func() bool { // unless the machine stands still
		began, before := time.Now(), asked.Load()
		c, _ := dialRaw(t, p.addr)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		eventually(t, "the server is asked", func() bool { return asked.Load() > before })
		_ = c.Close()
		eventually(t, "the session is over", func() bool { return len(p.Sessions()) == 0 })
		return time.Since(began) < pause/2
	})
}

package httpproxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// readRequest reads one request with its body.
func readRequest(br *bufio.Reader) error {
	req, err := http.ReadRequest(br)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err
}

// dialRaw connects a client that writes and reads by itself.
func dialRaw(t testing.TB, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c, bufio.NewReader(c)
}

// roundTrip sends head and reads the answer with its body.
func roundTrip(t testing.TB, c net.Conn, br *bufio.Reader, head string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(c, head); err != nil {
		t.Fatal(err)
	}
	return readAnswer(t, br)
}

func readAnswer(t testing.TB, br *bufio.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: the body: %v", resp.Status, err)
	}
	return resp, string(body)
}

const getRoot = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

// TestIdleNever: without an idle limit no other time-out ends a body that pauses, in either direction, also after a
// request on the same connection that had one.
func TestIdleNever(t *testing.T) {
	for _, first := range []string{"", "/unknown", "/some"} {
		t.Run("after "+first, func(t *testing.T) {
			t.Parallel()
			paced(t, func(t testing.TB, unit time.Duration) { idleNever(t, unit, first) })
		})
	}
}

func idleNever(t testing.TB, unit time.Duration, first string) {
	never := serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		for readRequest(br) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
			<-time.After(time.Second + 2*unit) // longer than a session waits without looking for its client
			_, _ = io.WriteString(c, "1\r\nb\r\n0\r\n\r\n")
		}
	})
	p := startProxy(t, httpproxy.Config{
		ReadHeaderTimeout: unit,
		ClientIdleTimeout: unit,
		Routes: []httpproxy.Route{
			{Path: "/never", Upstream: newUpstream(t, never), IdleTimeout: -1},
			{Path: "/some", Upstream: newUpstream(t, never), IdleTimeout: time.Second + 10*unit},
		},
	})
	c, br := dialRaw(t, p.addr)
	if first != "" {
		roundTrip(t, c, br, "GET "+first+" HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	if _, body := roundTrip(t, c, br, "GET /never HTTP/1.1\r\nHost: a\r\n\r\n"); body != "ab" {
		t.Errorf("got %q", body)
	}
	if _, err := io.WriteString(c, "POST /never HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx"); err != nil {
		t.Fatal(err)
	}
	<-time.After(3 * unit)
	if resp, body := roundTrip(t, c, br, "y"); body != "ab" {
		t.Errorf("upload: %s %q", resp.Status, body)
	}
}

// TestSlowAnswerWithAShortIdleTimeout: the wait for the response's head does not count for the idle limit of its body.
func TestSlowAnswerWithAShortIdleTimeout(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		backend := serveRaw(t, func(c net.Conn) {
			br := bufio.NewReader(c)
			for readRequest(br) == nil {
				<-time.After(3 * unit)
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		})
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), IdleTimeout: unit}}})
		c, br := dialRaw(t, p.addr)
		for range 2 {
			if _, body := roundTrip(t, c, br, getRoot); body != "ok" {
				t.Errorf("got %q", body)
			}
		}
	})
}

// TestResponseTimeoutIsNoReasonToSendAgain: the server has the request.
func TestResponseTimeoutIsNoReasonToSendAgain(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		done := make(chan struct{})
		backend := serveRaw(t, func(c net.Conn) {
			br := bufio.NewReader(c)
			if readRequest(br) == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
			<-done
		})
		t.Cleanup(func() { close(done) })
		up := newUpstream(t, backend)
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, ResponseTimeout: unit}}})
		for i, head := range []string{getRoot, "GET / HTTP/1.0\r\nHost: a\r\n\r\n"} {
			c, br := dialRaw(t, p.addr)
			roundTrip(t, c, br, getRoot)
			if resp, _ := roundTrip(t, c, br, head); resp.StatusCode != http.StatusGatewayTimeout {
				t.Errorf("%q: %s", head, resp.Status)
			}
			if n := up.Status().Endpoints[0].Pool.Opened; n != uint64(i+1) {
				t.Errorf("%q: %d connections were opened", head, n)
			}
		}
	})
}

// TestWaitingForAConnectionIsNotTheServersTime: the response's time begins when the request is sent.
func TestWaitingForAConnectionIsNotTheServersTime(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		backend := serveRaw(t, func(c net.Conn) {
			br := bufio.NewReader(c)
			for readRequest(br) == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
				<-time.After(3 * unit)
				_, _ = io.WriteString(c, "k")
			}
		})
		up := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: patience}}}, backend)
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up, ResponseTimeout: unit, IdleTimeout: patience}}})
		first, br := dialRaw(t, p.addr)
		if _, err := io.WriteString(first, getRoot); err != nil {
			t.Fatal(err)
		}
		if _, err := br.Peek(1); err != nil { // it has the only connection
			t.Fatal(err)
		}
		second, br2 := dialRaw(t, p.addr)
		if resp, body := roundTrip(t, second, br2, getRoot); body != "ok" {
			t.Errorf("%s %q", resp.Status, body)
		}
		if _, body := readAnswer(t, br); body != "ok" {
			t.Error(body)
		}
	})
}

// TestServerThatReadsNoBody: the connection to a server that neither reads a body nor answers is closed.
func TestServerThatReadsNoBody(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		done := make(chan struct{})
		backend := serveRaw(t, func(net.Conn) { <-done })
		t.Cleanup(func() { close(done) })
		p := startProxy(t, httpproxy.Config{
			Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), IdleTimeout: unit, ResponseTimeout: unit}},
		})
		c, br := dialRaw(t, p.addr)
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
		go func() {
			for piece := []byte(strings.Repeat("x", 1<<16)); ; {
				if _, err := c.Write(piece); err != nil {
					return
				}
			}
		}()
		if resp, _ := readAnswer(t, br); resp.StatusCode != http.StatusGatewayTimeout {
			t.Error(resp.Status)
		}
	})
}

// TestServerGoneInMidUpload is the server's fault, not that of the slow client.
func TestServerGoneInMidUpload(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err == nil {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}}})
	c, br := dialRaw(t, p.addr)
	if resp, body := roundTrip(t, c, br, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"); resp.StatusCode != http.StatusBadGateway || !resp.Close {
		t.Errorf("%s, close %v: %s", resp.Status, resp.Close, body)
	}
}

// TestWholeTimeout bounds a request as a whole: while it waits for a connection, for an answer, for the rest of it and of its own body; not an
// upgraded connection.
func TestWholeTimeout(t *testing.T) {
	paced(t, wholeTimeout)
}

func wholeTimeout(t testing.TB, unit time.Duration) {
	done := make(chan struct{})
	backend := serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		switch req.URL.Path {
		case "/body":
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx")
		case "/upgrade":
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			<-time.After(3 * unit)
			_, _ = io.WriteString(c, "late")
			return
		}
		<-done
	})
	t.Cleanup(func() { close(done) })
	one := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: patience}}}, backend)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: newUpstream(t, backend), Timeout: unit}, {Path: "/one", Upstream: one, Timeout: unit},
	}})
	for _, tc := range []struct {
		request string
		status  int
	}{
		{getRoot, http.StatusGatewayTimeout},
		{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx", http.StatusGatewayTimeout},
	} {
		c, br := dialRaw(t, p.addr)
		if resp, body := roundTrip(t, c, br, tc.request); resp.StatusCode != tc.status || !strings.Contains(body, "the time allowed for the request is over") {
			t.Errorf("%.10q: %s %s", tc.request, resp.Status, body)
		}
	}
	wholeTimeoutOfStreams(t, p.url)
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET /body HTTP/1.1\r\nHost: a\r\n\r\n")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err == nil || string(body) != "x" {
		t.Errorf("the body: %q, %v", body, err)
	}
	c, br = dialRaw(t, p.addr)
	resp, _ = roundTrip(t, c, br, "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	if rest, err := io.ReadAll(br); resp.StatusCode != 101 || err != nil || string(rest) != "late" {
		t.Errorf("upgraded: %s %q, %v", resp.Status, rest, err)
	}
	first, _ := dialRaw(t, p.addr)
	_, _ = io.WriteString(first, "GET /one HTTP/1.1\r\nHost: a\r\n\r\n")
	conntest.Eventually(t, "the one connection is in use", func() bool { return one.Status().Endpoints[0].Pool.InUse == 1 })
	c, br = dialRaw(t, p.addr)
	if resp, _ := roundTrip(t, c, br, "GET /one HTTP/1.1\r\nHost: a\r\n\r\n"); resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("waiting for a connection: %s", resp.Status)
	}
}

// wholeTimeoutOfStreams is the same for those of HTTP/2.
func wholeTimeoutOfStreams(t testing.TB, url string) {
	t.Helper()
	client := clientFor(t, "HTTP/2.0")
	for path, want := range map[string]string{"/": "504", "/body": "200 x and its end is missing"} {
		resp, err := client.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		got := strconv.Itoa(resp.StatusCode)
		if got == "200" {
			got += " " + string(body)
		}
		if err != nil {
			got += " and its end is missing"
		}
		if got != want {
			t.Errorf("a stream for %s: %s, %v", path, got, err)
		}
	}
}

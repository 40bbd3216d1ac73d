package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/traffic"
	"github.com/headpond/headpond/upstream"
)

// counted returns what a snapshot's counters and histograms have, by route (or nothing), name and code, without zeros.
func counted(s traffic.Snapshot) map[string]float64 {
	out := map[string]float64{}
	for _, v := range s.Views {
		for _, row := range s.Of(v) {
			at := ""
			if len(row.Labels) > 0 {
				at = row.Labels[0] + " "
			}
			for _, c := range v.Counters {
				if n := c.Read(&row); n > 0 {
					out[at+c.Name+" "+c.Value] = n
				}
			}
			for _, t := range v.Histograms {
				if h := t.Read(&row); h.Count() > 0 {
					out[at+t.Name] = float64(h.Count())
				}
			}
		}
	}
	return out
}

// askOnce makes a request on a connection of its own.
func askOnce(t *testing.T, addr, path, fields string, status int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", path, fields)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s: %v, %v", path, resp, err)
	}
	_, _ = io.Copy(io.Discard, c)
}

// TestTraffic makes requests that end in every way and looks at what was counted for routes and endpoints.
func TestTraffic(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
		case "/upgrade":
			c, _, _ := http.NewResponseController(w).Hijack()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_ = c.Close()
		case "/gone":
			panic(http.ErrAbortHandler)
		}
	})
	up := newUpstream(t, backend)
	dead := newUpstream(t, "127.0.0.1:1")
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/missing", Upstream: up}, {Path: "/dead", Upstream: dead}, {Path: "/api", Upstream: up}, {Path: "/upgrade", Upstream: up},
		{Path: "/gone", Upstream: up}, {Path: "/long", Upstream: up, Timeout: time.Hour}, {Host: "h.example", Path: "/x", Upstream: up},
	}})
	for path, status := range map[string]int{
		"/api": 200, "/api/2": 200, "/missing": 404, "/dead": 502, "/gone": 502, "/long": 200, "/nowhere": 404, "/api/../x": 400,
	} {
		askOnce(t, p.addr, path, "Connection: close", status)
	}
	askOnce(t, p.addr, "/upgrade", "Connection: Upgrade\r\nUpgrade: x", 101)

	const requests, times, waits = "http_requests_total ", "http_request_seconds", "http_request_wait_seconds"
	want := map[string]float64{
		"/api " + requests + "2xx": 2, "/api " + times: 2, "/api " + waits: 2,
		"/missing " + requests + "4xx": 1, "/missing " + times: 1, "/missing " + waits: 1,
		"/dead " + requests + "5xx": 1, "/dead " + times: 1,
		"/gone " + requests + "5xx": 1, "/gone " + times: 1, "/gone " + waits: 1, "/gone http_retries_total reset": 2,
		"/long " + requests + "2xx": 1, "/long " + times: 1, "/long " + waits: 1,
		"/upgrade " + requests + "1xx": 1, "/upgrade " + waits: 1,
		" " + requests + "4xx": 2,
	}
	until := time.Now().Add(suspendAfter)
	for got := counted(p.Stats().Traffic[0]); !maps.Equal(got, want); got = counted(p.Stats().Traffic[0]) {
		if time.Now().After(until) {
			t.Fatalf("counted %v, want %v", got, want)
		}
		runtime.Gosched()
	}
	var end map[string]float64
	eventually(t, "the upgrade is counted for the endpoint, too", func() bool {
		status := up.Status()
		end = counted(traffic.Snapshot{Schema: status.Traffic, Rows: []traffic.Row{status.Endpoints[0].Traffic}})
		return end["http_upstream_requests_total 1xx"] == 1
	})
	for name, n := range map[string]float64{
		"http_upstream_requests_total 2xx": 3, "http_upstream_requests_total 4xx": 1, "http_upstream_requests_total none": 3,
		"http_upstream_requests_total 1xx": 1, "http_upstream_request_seconds": 7,
	} {
		if end[name] != n {
			t.Errorf("endpoint: %s is %v, want %v", name, end[name], n)
		}
	}
	if err := p.Update(httpproxy.Config{Routes: []httpproxy.Route{{Path: "/api", Upstream: up}}}); err != nil {
		t.Fatal(err)
	}
	get(t, p.url+"/api")
	conntest.Eventually(t, "a route counts on after a reload", func() bool {
		return counted(p.Stats().Traffic[0])["/api "+requests+"2xx"] == 3
	})
}

// TestUpstreamThatCountsNothing serves requests over an upstream that NewUpstream has not made.
func TestUpstreamThatCountsNothing(t *testing.T) {
	dialer := &httppool.Dialer{Dial: enginetest.Dial}
	up, err := upstream.New(upstream.Config[*httppool.Conn]{
		Name: "own", Open: dialer.Open, Close: func(c *httppool.Conn) { _ = c.Close() },
		Settings: upstream.Settings{Endpoints: upstream.Endpoints(serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up}}})
	if resp, _ := get(t, p.url); resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}

package httpproxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/upstream"
)

// removals are the policies that end a lease of an endpoint that is removed.
var removals = map[string]upstream.Settings{
	"close": {OnRemoved: upstream.CloseRemoved}, "limit": {RemovedTimeout: 20 * time.Millisecond},
}

// move replaces the endpoints of an upstream by another one.
func move(t *testing.T, u *httpproxy.Upstream, s upstream.Settings, to string) {
	t.Helper()
	s.Endpoints, s.Limits = upstream.Endpoints(to), httpproxy.Limits(s.Limits)
	if err := u.Update(s); err != nil {
		t.Fatal(err)
	}
}

// wantMoved checks that no lease of a removed endpoint is left, and that requests are served by the other one.
func wantMoved(t *testing.T, u *httpproxy.Upstream, p running) {
	t.Helper()
	eventually(t, "no lease is left", func() bool { return len(u.Status().Endpoints) == 1 })
	if resp, body := get(t, p.url); resp.StatusCode != http.StatusOK || body != "other" {
		t.Errorf("afterwards: %s %q", resp.Status, body)
	}
}

func otherServer(t *testing.T) string {
	return serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "other") })
}

// TestRemovedEndpointEndsStreams removes the endpoint of an endless response: the client must not take it for complete.
func TestRemovedEndpointEndsStreams(t *testing.T) {
	events := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for name, removal := range removals {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				u := newUpstream(t, events)
				p := startProxy(t, routeTo(u))
				resp, err := clientFor(t, proto).Get(p.url)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if _, err := io.ReadFull(resp.Body, make([]byte, len("data: 1\n\n"))); err != nil {
					t.Fatal(err)
				}
				move(t, u, removal, otherServer(t))
				if rest, err := io.ReadAll(resp.Body); err == nil || len(rest) > 0 {
					t.Errorf("the stream ended with %q, %v", rest, err)
				}
				wantMoved(t, u, p)
			})
		}
	}
}

// TestRemovedEndpointEndsUpgraded does that to a connection that was upgraded.
func TestRemovedEndpointEndsUpgraded(t *testing.T) {
	for name, removal := range removals {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, serveUpgrade(t, echo))
			p := startProxy(t, routeTo(u))
			_, br := dialUpgrade(t, p.addr, "")
			if _, err := io.ReadFull(br, make([]byte, len("greeting "))); err != nil {
				t.Fatal(err)
			}
			move(t, u, removal, otherServer(t))
			if rest, err := io.ReadAll(br); len(rest) > 0 {
				t.Errorf("the connection ended with %q, %v", rest, err)
			}
			wantMoved(t, u, p)
		})
	}
}

// TestRemovedEndpointBeforeAnswer removes the endpoint before it answers a request on a used connection. The request may
// be sent again, as on a stale connection, but not to the removed endpoint.
func TestRemovedEndpointBeforeAnswer(t *testing.T) {
	var dialled atomic.Int32
	asked := make(chan struct{})
	silent := serveRaw(t, func(c net.Conn) {
		dialled.Add(1)
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		asked <- struct{}{}
		_, _ = br.ReadByte()
	})
	u := newUpstream(t, silent)
	p := startProxy(t, routeTo(u))
	if _, body := get(t, p.url); body != "first" {
		t.Fatalf("got %q", body)
	}
	answer := make(chan string, 1)
	go func() {
		_, body := get(t, p.url)
		answer <- body
	}()
	<-asked
	move(t, u, removals["close"], otherServer(t))
	if body := <-answer; body != "other" || dialled.Load() != 1 {
		t.Errorf("the request was answered with %q; %d connections to the endpoint that is gone", body, dialled.Load())
	}
	wantMoved(t, u, p)
}

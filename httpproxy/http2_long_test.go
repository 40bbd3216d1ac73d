package httpproxy_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// TestHTTP2ManyOfTheStandardServer: streams that the standard server answers end with their answers, too.
func TestHTTP2ManyOfTheStandardServer(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), Timeout: time.Hour}}}
	cfg.MaxStreams = 2
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	for id := uint32(1); id < 20; id += 2 {
		h.ask(id, true, plainGet...)
		if got := h.outcome(id); !strings.HasPrefix(got, "200") {
			t.Fatalf("%d: %s", id, got)
		}
	}
}

// TestHTTP2EarlyAnswerOfTheStandardServer ends a stream, and not the connection.
func TestHTTP2EarlyAnswerOfTheStandardServer(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
	})
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), Timeout: time.Hour}}}
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	for id := uint32(1); id < 8; id += 2 {
		h.ask(id, false, append(plainPost, "content-length", "100000000")...)
		h.do(0, h.WriteData(id, false, make([]byte, 1000)))
		if got := h.outcome(id); got != "403 no" {
			t.Fatalf("%d: %s", id, got)
		}
	}
	h.ask(9, true, plainGet...)
	if got := h.outcome(9); got != "403 no" {
		t.Fatalf("another stream: %s", got)
	}
}

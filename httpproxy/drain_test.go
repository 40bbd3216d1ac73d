package httpproxy_test

import (
	"io"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// TestDrainOfUnusualRequests: requests that had begun are served, and so are those that an HTTP/2 client sends before
// it learns of the drain; at worst they are refused so that they may be sent again.
func TestDrainOfUnusualRequests(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	idle, br := dialRaw(t, p.addr)
	if resp, _ := roundTrip(t, idle, br, getRoot); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	h := dialH2(t, p.addr)
	c, answer := dialRaw(t, p.addr)
	const begun = "GET / HTTP/1.1\r\nHost: a\r\nConnection: X-A\r\n"
	came := p.Stats().BytesIn
	_, _ = io.WriteString(c, begun)
	eventually(t, "the request has begun", func() bool { return p.Stats().BytesIn >= came+uint64(len(begun)) })
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(t.Context()) }()
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("the idle connection: %v", err)
	}
	if resp, body := roundTrip(t, c, answer, "X-A: b\r\n\r\n"); resp.StatusCode != 200 || body != "ok" || !resp.Close {
		t.Errorf("%s %q, close %t", resp.Status, body, resp.Close)
	}
	h.next(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok })
	h.ask(1, true, append(plainGet, "trailer", "x-b")...)
	switch f := h.next(func(f http2.Frame) bool { return f.Header().StreamID == 1 }).(type) {
	case *http2.MetaHeadersFrame:
		if f.PseudoValue("status") != "200" {
			t.Errorf("in HTTP/2: %v", f)
		}
	case *http2.RSTStreamFrame:
		if f.ErrCode != http2.ErrCodeRefusedStream {
			t.Errorf("in HTTP/2: %v", f)
		}
	}
	h.c.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

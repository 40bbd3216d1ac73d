package httpproxy_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
)

// These tests are about HTTP/2 servers that could harm others.

// TestServerHTTP2Blocks: a block that arrives in pieces does not use the memory of a reused buffer.
func TestServerHTTP2Blocks(t *testing.T) {
	var b bytes.Buffer
	_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	buffer := append(b.Bytes(), strings.Repeat("a", 1000)...)
	was := string(buffer)
	if err := httpproxy.ServerBlock(buffer[:b.Len()], []byte(strings.Repeat("b", 500))); err != nil {
		t.Fatal(err)
	}
	if string(buffer) != was {
		t.Errorf("the buffer has %.60q", buffer)
	}
}

// TestServerHTTP2ShrinksTheWindow below zero while only the end of a body remains.
func TestServerHTTP2ShrinksTheWindow(t *testing.T) {
	shrunk := make(chan struct{})
	backend := serveFrames(t, func(s *frames) {
		head, _ := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
		data, _ := s.await(http2.FrameData).(*http2.DataFrame)
		if head == nil || data == nil {
			t.Error("no request")
			return
		}
		_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for {
			if f, ok := s.await(http2.FrameSettings).(*http2.SettingsFrame); !ok || f.IsAck() {
				break
			}
		}
		close(shrunk)
		if end, ok := s.await(http2.FrameData).(*http2.DataFrame); !ok || !end.StreamEnded() || len(end.Data()) > 0 {
			t.Errorf("the end is %v", end)
		}
		s.answer(head.StreamID, "ok")
		s.drain()
	})
	p := h2cTo(t, backend)
	body, next := pieces()
	go func() {
		next("hello")
		<-shrunk
		next("")
	}()
	req, err := http.NewRequest(http.MethodPost, p.url, body)
	if err != nil {
		t.Fatal(err)
	}
	if resp, got := do(t, req); resp.StatusCode != http.StatusOK || got != "ok" {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
}

// TestHTTP2ShrinksTheWindow is the same with a client and an answer.
func TestHTTP2ShrinksTheWindow(t *testing.T) {
	shrunk := make(chan struct{})
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
		_ = http.NewResponseController(w).Flush()
		<-shrunk
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	h.ask(1, true, plainGet...)
	h.next(func(f http2.Frame) bool { _, ok := f.(*http2.DataFrame); return ok })
	h.do(0, h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	h.next(func(f http2.Frame) bool { s, ok := f.(*http2.SettingsFrame); return ok && s.IsAck() })
	close(shrunk)
	if got := strings.TrimSpace(h.outcome(1)); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestServerHTTP2HalfGreeting: a connection whose server stops within its SETTINGS is closed, and other connections are
// opened.
func TestServerHTTP2HalfGreeting(t *testing.T) {
	var conns atomic.Int64
	backend := serveRaw(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		if conns.Add(1) == 1 {
			_, _ = c.Write([]byte{0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3})
			_, _ = io.Copy(io.Discard, c)
			return
		}
		s := &frames{Framer: http2.NewFramer(c, c), Conn: c}
		s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_ = s.WriteSettings()
		id, _ := s.request()
		s.answer(id, "ok")
		s.drain()
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C, ConnectTimeout: 200 * time.Millisecond}, backend)
	p := startProxy(t, routeTo(u))
	eventually(t, "a request is served", func() bool {
		resp, body := get(t, p.url)
		return resp.StatusCode == http.StatusOK && body == "ok"
	})
}

// TestServerHTTP2InterimFlood: the number of kept interim heads is bounded.
func TestServerHTTP2InterimFlood(t *testing.T) {
	over := make(chan http2.ErrCode, 1)
	backend := serveFrames(t, func(s *frames) {
		defer close(over)
		id, _ := s.request()
		var ended sync.WaitGroup
		ended.Go(func() {
			if f, ok := s.await(http2.FrameRSTStream).(*http2.RSTStreamFrame); ok {
				over <- f.ErrCode
			}
		})
		s.fields(id, false, ":status", "103", "link", strings.Repeat("x", 3900)) // the newest field of the table, of index 62
		block := append([]byte("\x08\x03103"), bytes.Repeat([]byte{1<<7 | 62}, 50)...)
		for range 500 {
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
		}
		ended.Wait()
	})
	cfg := routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend))
	cfg.Routes[0].ResponseTimeout, cfg.Routes[0].IdleTimeout = -1, -1
	p := startProxy(t, cfg)
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") // and reads nothing
	if code := <-over; code != http2.ErrCodeProtocol {
		t.Errorf("reset with %v", code)
	}
}

// TestServerHTTP2ReadsNothing: the heads of cancelled requests do not pile up for a server that reads none.
func TestServerHTTP2ReadsNothing(t *testing.T) {
	const at, size = 50, 50 << 10 // requests at a time, and the size of each
	stop := make(chan struct{})
	came := make(chan struct{})
	backend := serveFrames(t, func(s *frames) {
		if s.number == 1 {
			s.request()
			close(came)
		}
		<-stop
	})
	t.Cleanup(func() { close(stop) })
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C, PingAfter: time.Hour, ConnectTimeout: patience}, backend)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/stays", Upstream: u, ResponseTimeout: -1, IdleTimeout: -1},
		{Upstream: u, ResponseTimeout: 20 * time.Millisecond, IdleTimeout: 20 * time.Millisecond},
	}})
	client := clientFor(t, "HTTP/1.1")
	go func() { // so that the connection stays
		if resp, err := client.Get(p.url + "/stays"); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-came
	var unsent atomic.Bool
	for range 20 { // 50 MB: the sockets hold less
		var all sync.WaitGroup
		for range at {
			all.Go(func() {
				req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.url, nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("X", strings.Repeat("x", size))
				resp, err := client.Do(req)
				if err != nil { // where the machine is slow, 20 ms are too short for the client, too
					return
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusGatewayTimeout && !strings.Contains(string(body), "no response in time") { // it was not sent
					unsent.Store(true)
				}
			})
		}
		all.Wait()
		if unsent.Load() {
			return
		}
	}
	t.Error("every head was taken, as if the server had read it")
}

// TestServerHTTP2DiesLater: a server that answers a PING and then dies is probed again when there is another request, also
// one that was running when it answered.
func TestServerHTTP2DiesLater(t *testing.T) {
	t.Run("before the request", func(t *testing.T) { diesLater(t, false) })
	t.Run("after the request", func(t *testing.T) { diesLater(t, true) })
}

func diesLater(t *testing.T, answersLate bool) {
	slow, over := make(chan struct{}), make(chan struct{})
	answered, ended := sync.OnceFunc(func() { close(slow) }), sync.OnceFunc(func() { close(over) })
	backend := serveFrames(t, func(s *frames) { // a second time if its answer to the PING was late
		defer ended()
		s.request()
		ping, ok := s.await(http2.FramePing).(*http2.PingFrame)
		if !ok {
			t.Error("no PING")
			return
		}
		data := ping.Data
		if answersLate {
			answered()
			s.request()
		}
		_ = s.WritePing(true, data)
		if !answersLate {
			answered()
			s.request()
		}
		for !ok || s.await(http2.FramePing, http2.FrameGoAway) != nil { // and says nothing
			ok = true
		}
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C, PingAfter: 200 * time.Millisecond}, backend)
	p := startProxy(t, routeTo(u))
	client := clientFor(t, "HTTP/1.1")
	ask := func() {
		resp, err := client.Post(p.url, "", strings.NewReader("x"))
		if err != nil {
			t.Error(err)
			return
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadGateway {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	var first sync.WaitGroup
	first.Go(ask)
	<-slow
	ask()
	first.Wait()
	<-over
}

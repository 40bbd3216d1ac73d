package httpproxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
)

// partsServer answers with the bytes that a test sends, after the head of a chunked stream of events. It counts connections.
func partsServer(t testing.TB) (address string, parts chan<- string, conns *atomic.Int32) {
	return partsServerWith(t, nil)
}

// partsServerWith is partsServer with TLS, unless cfg is nil.
func partsServerWith(t testing.TB, cfg *tls.Config) (address string, parts chan<- string, conns *atomic.Int32) {
	pieces, conns := make(chan string), new(atomic.Int32)
	return serveRaw(t, func(c net.Conn) {
		if cfg != nil {
			c = tls.Server(c, cfg)
		}
		conns.Add(1)
		br := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")
			for p := range pieces {
				if p == "close" {
					return
				}
				if _, _ = io.WriteString(c, p); strings.HasSuffix(p, ": 1\r\n\r\n") {
					break
				}
			}
		}
	}), pieces, conns
}

// TestEventsWithoutAFiber: while events come one by one, the session has neither a fiber nor buffers, wherever the chunks
// are cut, and with TLS, too. Their contents, the trailers and the next request are as without rests.
func TestEventsWithoutAFiber(t *testing.T) {
	for name, way := range map[string]struct{ client, server bool }{"plain": {}, "TLS": {client: true}, "TLS to the server": {server: true}, "TLS on both sides": {true, true}} {
		t.Run(name, func(t *testing.T) {
			serverTLS, o := (*tls.Config)(nil), httpproxy.UpstreamOptions{}
			if way.server {
				serverTLS, o.TLS = certificates(t)
			}
			backend, parts, conns := partsServerWith(t, serverTLS)
			cfg, client := restWay{tls: way.client}.client(t, routeTo(newUpstreamWith(t, o, backend)))
			p := startProxy(t, cfg)
			rest := rested(t, restWay{})
			for range 2 {
				eventsWithoutAFiber(t, p, client, parts, rest)
			}
			if st := p.Stats(); st.Accepted != 1 || conns.Load() != 1 || len(st.Errors) > 0 {
				t.Errorf("%d and %d connections, errors %v; want one each, and none", st.Accepted, conns.Load(), st.Errors)
			}
		})
	}
}

func eventsWithoutAFiber(t *testing.T, p running, client *http.Client, parts chan<- string, rest func()) {
	resp, err := client.Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, part := range []struct{ sent, want string }{
		{"3\r\none\r\n", "one"},
		{"3\r\ntwo\r\n5\r\nthree\r\n", "twothree"},
		{"8\r\nfo", "fo"}, // in the content
		{"urfiv", "urfiv"},
		{"e\r", "e"},
		{"\n", ""}, // between chunks
		{"1", ""},  // in a size line
		{"0;x", ""},
		{"=y\r\n0123456789abcdef", "0123456789abcdef"},
		{"\r\n3\r\nsix\r\n", "six"},
		{"4\r\nlast\r\n0", "last"}, // in the end
	} {
		rest()
		eventually(t, "no buffer is held", func() bool { return enginetest.Kind() == fiber.Goroutine || p.Stats().Buffered <= 2<<10 })
		parts <- part.sent
		wantEvent(t, resp.Body, part.want)
	}
	rest()
	parts <- "\r\nX-Sum"
	rest()
	parts <- ": 1\r\n\r\n"
	if b, err := io.ReadAll(resp.Body); err != nil || len(b) > 0 || resp.Trailer.Get("X-Sum") != "1" {
		t.Errorf("at the end: %q, %v, trailers %v", b, err, resp.Trailer)
	}
}

// restingStream sends a request to a proxy, and returns once the head of the answer is there and the session rests. The events of the
// answer are what is sent to parts.
func restingStream(t *testing.T, withTLS bool, request string) (p running, parts chan<- string, resp *http.Response) {
	t.Helper()
	backend, sends, _ := partsServer(t)
	cfg := routeTo(newUpstream(t, backend))
	clientTLS := (*tls.Config)(nil)
	if withTLS {
		cfg.TLS, clientTLS = certificates(t)
	}
	p = startProxy(t, cfg)
	rest := rested(t, restWay{})
	c, br := dialRaw(t, p.addr)
	if withTLS {
		c = tls.Client(c, clientTLS)
		br.Reset(c)
	}
	_, _ = io.WriteString(c, request)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	rest()
	return p, sends, resp
}

// TestSlowReaderOfEvents: events for which the client has no room are kept, in order, and the server has to wait.
func TestSlowReaderOfEvents(t *testing.T) {
	t.Run("plain", func(t *testing.T) { slowReaderOfEvents(t, false) })
	t.Run("TLS", func(t *testing.T) { slowReaderOfEvents(t, true) })
}

func slowReaderOfEvents(t *testing.T, withTLS bool) {
	p, parts, resp := restingStream(t, withTLS, getRoot)
	var want bytes.Buffer
	event := func(i int) string {
		text := fmt.Sprintf("event %d %s\n", i, strings.Repeat("-", 4000))
		want.WriteString(text)
		return fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
	}
	idle, fibers := p.Stats().Buffered, enginetest.Fibers()
	blocked, sent := enginetest.Kind() == fiber.Goroutine, 0
	for ; !blocked; sent++ {
		parts <- event(sent)
		busy := 0
		eventually(t, "the session rests, or waits for the client to read", func() bool {
			if p.Stats().Buffered == idle && enginetest.Fibers() <= fibers { // one of the handshake may have been among them
				return true
			}
			busy++               // with TLS a fiber that sends the rest of a record may be all that waits
			blocked = busy > 100 // on a slow machine it may be working, and the client begins to read early
			return blocked
		})
	}
	go func() {
		for range 100 {
			parts <- event(sent)
			sent++
		}
		parts <- "4\r\nlast\r\n0\r\nX-Sum: 1\r\n\r\n"
	}()
	got, err := io.ReadAll(resp.Body)
	if want.WriteString("last"); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got %d bytes, want %d of %d events; error %v", len(got), want.Len(), sent, err)
	}
}

// TestEndOfEventsForASlowReader: a client of HTTP/1.0, whose answer ends with the connection, gets all of the events that it
// had no room for when they ended.
func TestEndOfEventsForASlowReader(t *testing.T) {
	for name, withTLS := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) { endOfEvents(t, withTLS) })
	}
}

func endOfEvents(t *testing.T, withTLS bool) {
	p, parts, resp := restingStream(t, withTLS, "GET / HTTP/1.0\r\n\r\n")
	var want bytes.Buffer
	idle, fibers := p.Stats().Buffered, enginetest.Fibers()
	waits := func(until func() bool) (passed bool) { // on a slow machine it may be working, and the client begins to read early
		tries := 0
		eventually(t, "the session has done what it can", func() bool {
			fiber.Sleep(time.Millisecond)
			tries++
			passed = until()
			return passed || tries > 100
		})
		return passed
	}
	for rests := enginetest.Kind() != fiber.Goroutine; rests; {
		text := fmt.Sprintf("event %d %s\n", want.Len(), strings.Repeat("-", 8000))
		want.WriteString(text)
		parts <- fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
		rests = waits(func() bool { return p.Stats().Buffered == idle && enginetest.Fibers() == fibers })
	}
	parts <- "0\r\nX-Sum: 1\r\n\r\n"
	waits(func() bool { return len(p.Sessions()) == 0 })
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got %d bytes, want %d; error %v", len(got), want.Len(), err)
	}
}

// TestBadChunkDuringARest: an answer that breaks its framing after a rest is cut off, not passed on, and its connection
// serves nobody else.
func TestBadChunkDuringARest(t *testing.T) {
	backend, parts, _ := partsServer(t)
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	rest := rested(t, restWay{})
	resp, err := http.Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	rest()
	parts <- "5\r\nfirst\r\n"
	wantEvent(t, resp.Body, "first")
	rest()
	parts <- "2\r\nok\r\nnone\r\nsecret\r\n"
	if b, err := io.ReadAll(resp.Body); err == nil || len(b) > 0 && string(b) != "o" && string(b) != "ok" {
		t.Errorf("the client got %q, %v; want at most ok, and an error", b, err)
	}
	parts <- "close"
}

// TestBytesOfEvents: the listener's counters have the bytes of events, whether a fiber or the loop has passed them on.
func TestBytesOfEvents(t *testing.T) {
	backend, parts, _ := partsServer(t)
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	rest := rested(t, restWay{})
	c, br := dialRaw(t, p.addr)
	var got bytes.Buffer
	_, _ = io.WriteString(c, getRoot)
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(br, &got)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		rest()
		parts <- "5\r\nevent\r\n"
		wantEvent(t, resp.Body, "event")
	}
	rest()
	parts <- "4\r\nlast\r\n0\r\nX-Sum: 1\r\n\r\n"
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all bytes are counted", func() bool { return p.Stats().BytesOut == uint64(got.Len()) })
}

// TestIdleLimitOfEvents: a part of an event begins the idle limit anew, also if the rest of it comes later.
func TestIdleLimitOfEvents(t *testing.T) {
	paced(t, func(t testing.TB, unit time.Duration) {
		backend, parts, _ := partsServer(t)
		cfg := routeTo(newUpstream(t, backend))
		cfg.Routes[0].IdleTimeout = 10 * unit
		p := startProxy(t, cfg)
		resp, err := http.Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for _, part := range []string{"5\r\nfirst\r\n1", "0;x=y\r\n0123456789abcdef\r\n3", "\r\nend\r\n0\r\nX-Sum: 1\r\n\r\n"} {
			<-time.After(6 * unit)
			parts <- part
		}
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "first0123456789abcdefend" {
			t.Errorf("got %q, %v", b, err)
		}
	})
}

// TestEventInALongTick: an event that a busy loop finds together with the end of the wait before the rest leaves no buffer
// behind.
func TestEventInALongTick(t *testing.T) {
	backend, parts, _ := partsServer(t)
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	var stopped atomic.Bool
	var busy sync.WaitGroup
	for range 4 { // on both loops
		c, err := enginetest.Dial(t.Context(), p.addr)
		if err != nil {
			t.Fatal(err)
		}
		busy.Add(1)
		fiber.Spawn(c, func() {
			defer busy.Done()
			defer c.Close()
			for !stopped.Load() {
				for began := time.Now(); time.Since(began) < 6*time.Millisecond; {
					runtime.Gosched()
				}
				fiber.Sleep(time.Millisecond)
			}
		})
	}
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	for range 20 {
		resp, err := client.Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		parts <- "4\r\nlast\r\n0\r\nX-Sum: 1\r\n\r\n"
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "last" {
			t.Errorf("got %q, %v", b, err)
		}
		_ = resp.Body.Close()
	}
	stopped.Store(true)
	busy.Wait()
	eventually(t, "an idle session holds no buffer", func() bool { return p.Stats().Buffered == 0 })
}

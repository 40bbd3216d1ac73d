package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// startStreams starts a server of WebSockets and event streams. A WebSocket echoes; a POST to /publish/NAME sends its body as an event to
// the reader of /events/NAME.
func startStreams(t *testing.T, name string) (addr string) {
	t.Helper()
	events := map[string]chan string{"h1": make(chan string), "h2c": make(chan string)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, _ *http.Request) {
		c, br, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s: %s\r\n\r\n", serverName, name)
		_, _ = io.Copy(c, br)
	})
	mux.HandleFunc("GET /events/{reader}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set(serverName, name)
		for send := http.NewResponseController(w); send.Flush() == nil; {
			select {
			case text := <-events[r.PathValue("reader")]:
				_, _ = io.WriteString(w, "data: "+text)
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("POST /publish/{reader}", func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		select {
		case events[r.PathValue("reader")] <- string(text):
		case <-r.Context().Done():
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.Listener.Addr().String()
}

// lines is an operation of a load: it has a new line sent and receives it, behind a prefix.
func lines(from io.Reader, prefix string, send func(ctx context.Context, line string) error) func(context.Context) error {
	br, n := bufio.NewReader(from), 0
	return func(ctx context.Context) error {
		n++
		line := fmt.Sprintf("%d %s\n", n, strings.Repeat("x", n*131%5000))
		if err := send(ctx, line); err != nil {
			return err
		}
		if got, err := br.ReadString('\n'); err != nil || got != prefix+line {
			return fmt.Errorf("got %.40q, %w, want %.40q", got, err, prefix+line)
		}
		return nil
	}
}

// openSocket opens a WebSocket through the gateway.
func openSocket(t *testing.T, listen, server string) func(context.Context) error {
	t.Helper()
	c := dial(t, listen)
	br := bufio.NewReader(c)
	_, _ = io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get(serverName) != server {
		t.Fatalf("the WebSocket: %v, %v", resp, err)
	}
	return lines(br, "", func(_ context.Context, line string) error {
		_, err := io.WriteString(c, line)
		return err
	})
}

// openEvents opens an event stream through the gateway. Events are sent by requests past it, to the address of the server.
func openEvents(t *testing.T, listen, server, addr, proto string) func(context.Context) error {
	t.Helper()
	client, end := webClient(proto)
	client.Timeout = 0
	t.Cleanup(end)
	resp, err := client.Get("http://" + listen + "/events/" + proto)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get(serverName) != server {
		t.Fatalf("the events by %s: %v, %v", proto, resp, err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return lines(resp.Body, "data: ", func(ctx context.Context, line string) error {
		resp, err := ask(ctx, adminClient, http.MethodPost, "http://"+addr+"/publish/"+proto, strings.NewReader(line))
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	})
}

// TestReloadLosesNoStream: open WebSockets and event streams go on through reloads that change every part of an upstream, take its server
// away, and change the listener.
func TestReloadLosesNoStream(t *testing.T) {
	first, second := startStreams(t, "first"), startStreams(t, "second")
	listen := address(t)
	config := httpConfig(listen, "max_size: 500", first)
	g := startGateway(t, config)
	streams := map[string]*load{
		"WebSocket": startLoad(t, 1, openSocket(t, listen, "first")), "events": startLoad(t, 1, openEvents(t, listen, "first", first, "h1")),
		"events by HTTP/2": startLoad(t, 1, openEvents(t, listen, "first", first, "h2c")),
	}
	for _, changed := range []string{
		httpConfig(listen, "max_size: 500", second),
		strings.Replace(config, "max_size: 500", "max_size: 400, max_lifetime: 1m", 1),
		config + "    connect_timeout: 7s\n",
		strings.Replace(config, "{path: /, upstream: api}", "{path: /other, upstream: api, idle_timeout: 1h}", 1),
		strings.Replace(config, "    protocol: http\n", "    protocol: http\n    access_log: true\n    max_conns: 100\n", 1),
		httpConfig(listen, "max_size: 500", second, first),
	} {
		g.reload(changed, "applied")
		for _, l := range streams {
			l.awaitMore(t, 5)
		}
	}
	for name, l := range streams {
		l.end()
		if n := l.failed.Load(); n > 0 {
			t.Errorf("%s: %d of %d lines are lost: %v", name, n, n+l.ok.Load(), l.lastError())
		}
	}
}

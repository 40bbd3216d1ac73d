package httpproxy_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// bomb is a connection whose Write panics when left reaches 0.
type bomb struct {
	net.Conn
	left  *atomic.Int64
	wrote chan struct{} // gets an element for each other Write if it has room
}

func (b bomb) Write(p []byte) (int, error) {
	if b.left.Add(-1) == 0 {
		panic("bomb")
	}
	select {
	case b.wrote <- struct{}{}:
	default:
	}
	return b.Conn.Write(p)
}

// behind is a body that begins after the head was written.
type behind struct {
	io.Reader
	wrote <-chan struct{}
	once  *sync.Once
}

func (b behind) Read(p []byte) (int, error) {
	b.once.Do(func() { <-b.wrote })
	return b.Reader.Read(p)
}

// TestPanicOfAServersConnection, which the embedding program dials: it ends the request and nothing else; the pool gets
// the slot back.
func TestPanicOfAServersConnection(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for part, write := range map[string]int64{"head": 1, "body": 2} {
			t.Run(proto+" "+part, func(t *testing.T) {
				var left atomic.Int64
				wrote := make(chan struct{}, 1)
				dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
					c, err := enginetest.Dial(ctx, endpoint)
					return bomb{c, &left, wrote}, err
				}
				one := pool.Limits{MaxSize: 1, AcquireTimeout: patience}
				cfg := routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: dial, Settings: upstream.Settings{Limits: one}}, backend))
				var log conntest.Log
				lines, traced := &logLines{t: t}, &traces{t: t}
				cfg.AccessLog, cfg.Tracer, cfg.Listener.Logger = &httpproxy.AccessLog{To: lines}, traced, log.Logger()
				p := startProxy(t, cfg)
				client := clientFor(t, proto)
				post := func() (status int, body string, err error) {
					content := io.MultiReader(strings.NewReader("hi")) // of no known length
					if part == "body" {
						content = behind{content, wrote, new(sync.Once)}
					}
					resp, err := client.Post(p.url, "text/plain", content)
					if err != nil {
						return 0, "", err
					}
					defer resp.Body.Close()
					b, err := io.ReadAll(resp.Body)
					return resp.StatusCode, string(b), err
				}
				left.Store(write)
				if status, body, err := post(); status == http.StatusOK && err == nil {
					t.Errorf("%d %q", status, body)
				}
				line, trace := lines.fields(), traced.take()
				if line["method"] != "POST" || line["reason"] == "" || trace.Method != "POST" || trace.Reason == "" {
					t.Errorf("logged %v, traced %+v", line, trace)
				}
				if text := log.Line("request ended by a panic"); part == "head" && (line["reason"] != "internal" || line["status"] != 0.0 ||
					!strings.Contains(text, "method=POST") || !strings.Contains(text, "route=/") || !strings.Contains(text, "session).send")) {
					t.Errorf("logged %v and %q", line, text)
				}
				for len(wrote) > 0 {
					<-wrote
				}
				if status, body, err := post(); status != http.StatusOK || body != "hi" {
					t.Errorf("the next: %d %q, %v", status, body, err)
				}
				eventually(t, "it is counted", func() bool { return p.Stats().Errors[listener.ReasonInternal] == 1 })
				wantFields(t, lines.fields(), map[string]any{"status": 200})
			})
		}
	}
}

// TestPanicInATunnel resets the client's connection: a clean end would make what has come look like the whole.
func TestPanicInATunnel(t *testing.T) {
	var left atomic.Int64
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := enginetest.Dial(ctx, endpoint)
		return bomb{c, &left, nil}, err
	}
	p := startProxy(t, routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: dial}, serveUpgrade(t, echo))))
	c, br := dialUpgrade(t, p.addr, "")
	if _, err := io.ReadFull(br, make([]byte, len("greeting "))); err != nil {
		t.Fatal(err)
	}
	left.Store(1)
	_, _ = io.WriteString(c, "x")
	if _, err := br.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v, want a reset", err)
	}
}

// bombs is a listener of such connections.
type bombs struct {
	net.Listener
	left *atomic.Int64
}

func (l bombs) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return bomb{c, l.left, nil}, err
}

// TestPanicOfAnHTTP2Connection ends it, and nothing else.
func TestPanicOfAnHTTP2Connection(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	cfg := routeTo(newUpstream(t, backend))
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	p, err := httpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var left atomic.Int64
	addr := conntest.Run(t, bombs{conntest.Listen(t), &left}, p.Serve, func() { _ = p.Drain(t.Context()) })
	h := dialH2(t, addr)
	h.ask(1, true, plainGet...)
	if got := h.outcome(1); got != "200 ok" {
		t.Errorf("got %q", got)
	}
	left.Store(1)
	h.ask(3, true, plainGet...)
	eventually(t, "the connection has ended", func() bool { return p.Stats().Active == 0 })
	h = dialH2(t, addr)
	h.ask(1, true, plainGet...)
	if got := h.outcome(1); got != "200 ok" {
		t.Errorf("the next: %q", got)
	}
	h.c.Close()
}

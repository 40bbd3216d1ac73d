package httpproxy_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
)

// A sessionEnd is a way in which a session of HTTP/1.1 ends: one connection to a proxy.
type sessionEnd struct {
	kept bool // something may refer to the session later, so that no other client may get it
	run  func(t *testing.T, addr string)
}

func sessionEnds(loops bool) map[string]sessionEnd {
	return map[string]sessionEnd{
		"by close": {false, func(t *testing.T, addr string) {
			sendWhole(t, addr, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		}},
		"by a refusal": {false, func(t *testing.T, addr string) { sendWhole(t, addr, "GET / HTTP/1.1\r\nbad field\r\n\r\n") }},
		"while suspended": {false, func(t *testing.T, addr string) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			before := enginetest.Fibers()
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			eventually(t, "the session is suspended", func() bool {
				fiber.Sleep(time.Millisecond)
				return enginetest.Fibers() <= max(before, 1)
			})
		}},
		"by an upgrade": {true, func(t *testing.T, addr string) {
			c, br := dialUpgrade(t, addr, "")
			_ = c.CloseWrite()
			if _, err := io.Copy(io.Discard, br); err != nil {
				t.Error(err)
			}
		}},
		"by HTTP/2": {true, func(t *testing.T, addr string) {
			dialH2(t, addr).c.Close() // without a request, which would have a session of its own
		}},
		"after a rest": {loops, func(t *testing.T, addr string) {
			sendWhole(t, addr, "GET /events HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		}},
		"by a panic": {true, func(t *testing.T, addr string) {
			sendWhole(t, addr, "GET /bomb HTTP/1.1\r\nHost: a\r\n\r\n")
		}},
		"by a panic behind another request": {true, func(t *testing.T, addr string) {
			sendWhole(t, addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /bomb HTTP/1.1\r\nHost: a\r\n\r\n")
		}},
	}
}

// sendWhole sends text and returns what comes until the connection ends.
func sendWhole(t *testing.T, addr, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, text)
	got, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("%q: %v", text, err)
	}
	return string(got)
}

// TestWhichSessionsAreReused: the session of a client that went over to another protocol or panicked, or that rested, is no other
// client's later, as a direction of an upgrade, a fiber or an event of the loop may still use it. Others are.
func TestWhichSessionsAreReused(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the store of sessions has a part for each
	before, loops := enginetest.Fibers(), enginetest.Kind() != fiber.Goroutine
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ws":
			c, br, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
			_, _ = io.Copy(c, br)
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			if loops {
				eventually(t, "the session rests", func() bool {
					fiber.Sleep(time.Millisecond)
					return enginetest.Fibers() <= max(before, 1)
				})
			}
		default:
			_, _ = io.WriteString(w, "ok")
		}
	})
	bombs := newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := enginetest.Dial(ctx, endpoint)
		return panicking{c}, err
	}}, backend)
	cfg := httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}, {Path: "/bomb", Upstream: bombs}}}
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	for name, ending := range sessionEnds(loops) {
		t.Run(name, func(t *testing.T) {
			const clients = 12 // the race detector has the store forget some
			made := httpproxy.CountSessions(func() {
				for range clients {
					p, err := httpproxy.New(cfg)
					if err != nil {
						t.Fatal(err)
					}
					t.Run("client", func(t *testing.T) { // whose proxy has ended after it, and so have all sessions
						ending.run(t, conntest.Run(t, enginetest.Listen(t), p.Serve, func() { _ = p.Drain(context.Background()) }))
					})
				}
			})
			if ending.kept != (made == clients) {
				t.Errorf("%d sessions for %d clients; reused=%t", made, clients, !ending.kept)
			}
		})
	}
}

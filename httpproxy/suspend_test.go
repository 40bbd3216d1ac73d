package httpproxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
)

// startIdle returns a proxy with a client that has had an answer, and a function that waits until
// the client's session is suspended (sessions on goroutines never are).
func startIdle(t *testing.T, cfg httpproxy.Config) (p running, c net.Conn, ask, suspended func()) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	t.Cleanup(backend.Close)
	cfg.Routes = []httpproxy.Route{{Upstream: newUpstream(t, strings.TrimPrefix(backend.URL, "http://"))}}
	p = startProxy(t, cfg)
	before := enginetest.Fibers() // one of them accepts
	c, br := dialRaw(t, p.addr)
	if cfg.TLS != nil {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		br = bufio.NewReader(c)
	}
	ask = func() {
		if resp, body := roundTrip(t, c, br, getRoot); resp.StatusCode != http.StatusOK || body != "ok" {
			t.Errorf("%s %q", resp.Status, body)
		}
	}
	suspended = func() {
		for enginetest.Fibers() > max(before, 1) {
			if t.Context().Err() != nil {
				t.Fatal("the session is not suspended")
			}
			fiber.Sleep(time.Millisecond)
		}
	}
	return p, c, ask, suspended
}

// A client that was idle for long is served as before.
func TestSuspendedSession(t *testing.T) {
	t.Run("plain", func(t *testing.T) { idleAgainAndAgain(t, httpproxy.Config{}) })
	server, _ := certificates(t)
	t.Run("tls", func(t *testing.T) { idleAgainAndAgain(t, httpproxy.Config{TLS: server}) })
}

func idleAgainAndAgain(t *testing.T, cfg httpproxy.Config) {
	p, c, ask, suspended := startIdle(t, cfg)
	for range 3 {
		ask()
		suspended()
	}
	ask()
	if st := p.Stats(); st.Active != 1 || st.Accepted != 1 {
		t.Errorf("%+v", st)
	}
	suspended()
	_ = c.Close()
	if err := p.Drain(t.Context()); err != nil {
		t.Errorf("a session is left: %v", err)
	}
}

// So is one of HTTP/2.
func TestSuspendedHTTP2(t *testing.T) {
	server, client := certificates(t)
	client.NextProtos = []string{"h2"}
	for name, tc := range map[string]struct{ server, client *tls.Config }{"plain": {}, "tls": {server, client}} {
		t.Run(name, func(t *testing.T) {
			backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
			cfg := routeTo(newUpstream(t, backend))
			cfg.TLS = tc.server
			p := startProxy(t, cfg)
			before := enginetest.Fibers() // one of them accepts
			c, _ := dialRaw(t, p.addr)
			if tc.client != nil {
				c = tls.Client(c, tc.client)
			}
			h := speakH2(t, c)
			suspended := func() {
				for enginetest.Fibers() > max(before, 1) {
					if t.Context().Err() != nil {
						t.Fatal("the connection is not suspended")
					}
					fiber.Sleep(time.Millisecond)
				}
			}
			id := uint32(1)
			for range 3 {
				suspended()
				for range 3 {
					h.ask(id, false, plainPost...)
					h.do(0, h.WriteData(id, true, []byte("hi")))
					if got := h.outcome(id); got != "200 hi" {
						t.Errorf("stream %d: %q", id, got)
					}
					id += 2
				}
			}
			suspended()
			drained := make(chan error, 1)
			go func() { drained <- p.Drain(t.Context()) }()
			if last := h.farewell(); last != id-2 {
				t.Errorf("the last stream is %d", last)
			}
			h.c.Close()
			if err := <-drained; err != nil {
				t.Errorf("a connection is left: %v", err)
			}
		})
	}
}

// A pause within a frame of an ended stream does not make the rest of it count as frames.
func TestPauseInHTTP2Frame(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/known", Upstream: newUpstream(t, backend)}}})
	h := dialH2(t, p.addr)
	h.ask(1, false, plainPost...)
	if got := h.outcome(1); !strings.HasPrefix(got, "404 ") {
		t.Errorf("got %q", got)
	}
	if got := h.outcome(1); got != "reset NO_ERROR" {
		t.Errorf("then %q", got)
	}
	const evil = "\x00\x00\x08\x06\x00\x00\x00\x00\x00evil" + "ping"
	h.do(io.WriteString(h.c, "\x00\x00\x21\x00\x01\x00\x00\x00\x01"+"0123456789012345"))
	<-time.After(500 * time.Millisecond) // as long as it takes for idle ones to be suspended, and more
	h.do(io.WriteString(h.c, evil))
	h.ask(3, true, ":method", "GET", ":scheme", "http", ":path", "/known", ":authority", "a")
	f := h.next(func(f http2.Frame) bool { return f.Header().StreamID == 3 || f.Header().Type != http2.FrameSettings })
	if head, ok := f.(*http2.MetaHeadersFrame); !ok || head.PseudoValue("status") != "200" {
		t.Errorf("got %v", f)
	}
}

// The time-out of idle connections counts from the last answer.
func TestSuspendedSessionTimesOut(t *testing.T) {
	cfg := httpproxy.Config{ClientIdleTimeout: 300 * time.Millisecond}
	_, c, ask, suspended := startIdle(t, cfg)
	ask()
	suspended()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("%q, %v, want the end", b, err)
	}
}

func TestDrainEndsSuspendedSessions(t *testing.T) {
	p, c, ask, suspended := startIdle(t, httpproxy.Config{})
	ask()
	suspended()
	if err := p.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("%q, %v, want the end", b, err)
	}
}

// A drain that begins while a session is about to wait ends that wait, too.
func TestDrainJustBeforeTheWait(t *testing.T) {
	p, err := httpproxy.New(httpproxy.Config{
		ReadHeaderTimeout: time.Hour, Listener: listener.Config{Logger: slog.New(slog.DiscardHandler)},
		Routes: []httpproxy.Route{{Upstream: newUpstream(t, "127.0.0.1:1")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := conntest.Listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	drained, served := make(chan error, 1), make(chan error, 1)
	begin := func() { go func() { drained <- p.Drain(ctx) }() }
	go func() { served <- p.Serve(&slowClock{l, begin}) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := errors.Join(<-drained, <-served); err != nil {
		t.Error(err)
	}
}

// slowClock is a listener whose connections delay the setting of deadlines until an earlier one has passed.
type slowClock struct {
	net.Listener
	begin func()
}

func (l *slowClock) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &slowConn{Conn: c, begin: l.begin, passed: make(chan struct{})}, nil
}

type slowConn struct {
	net.Conn
	begin         func()
	first, second sync.Once
	passed        chan struct{}
}

func (c *slowConn) SetReadDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		defer c.second.Do(func() { close(c.passed) })
	} else {
		c.first.Do(func() {
			c.begin()
			<-c.passed
		})
	}
	return c.Conn.SetReadDeadline(at)
}

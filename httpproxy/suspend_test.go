package httpproxy_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
)

// startIdle returns a proxy with a client that has had an answer, and what waits until the client's
// session is suspended (sessions on goroutines never are).
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

// The time-out of idle connections counts from the last answer.
func TestSuspendedSessionTimesOut(t *testing.T) {
	cfg := httpproxy.Config{KeepAlive: 300 * time.Millisecond}
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

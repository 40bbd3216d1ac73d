package httpproxy_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// sessionOf waits until a session is as wanted.
func sessionOf(t *testing.T, p running, wanted func(listener.Info) bool) (found listener.Info) {
	t.Helper()
	conntest.Eventually(t, "the session is as wanted", func() bool {
		for _, s := range p.Sessions() {
			if wanted(s) {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// TestRegister: a client's request is listed, also that of an upgraded connection, which can be killed like others.
func TestRegister(t *testing.T) {
	answer := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
			return
		}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(backend.Close)
	at := strings.TrimPrefix(backend.URL, "http://")
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, at)}}})
	kill := func(s listener.Info) {
		t.Helper()
		if id, stream, ok := listener.ParseID(s.ID); !ok || !p.Kill(id, stream) {
			t.Errorf("cannot kill %+v", s)
		}
	}
	c, br := dialRaw(t, p.addr)
	idle := sessionOf(t, p, func(s listener.Info) bool { return s.State == listener.StateIdle })
	if idle.Client != c.LocalAddr().String() || idle.Method != "" {
		t.Errorf("idle: %+v", idle)
	}
	_, _ = fmt.Fprintf(c, "GET /slow%s?secret HTTP/1.1\r\nHost: a.example\r\nUser-agent: tester\r\n\r\n", strings.Repeat("/x", 100))
	busy := sessionOf(t, p, func(s listener.Info) bool { return s.Endpoint != "" })
	if busy.ID != idle.ID || busy.State != listener.StateActive || busy.Method != "GET" || busy.Host != "a.example" || !strings.HasPrefix(busy.Path, "/slow/x/x") ||
		len(busy.Path) != 128 || busy.Application != "tester" || busy.Endpoint != at || busy.Held.IsZero() {
		t.Errorf("active: %+v", busy)
	}
	close(answer)
	if _, err := http.ReadResponse(br, nil); err != nil {
		t.Error(err)
	}
	again := sessionOf(t, p, func(s listener.Info) bool { return s.State == listener.StateIdle })
	if again.Since.Before(busy.Since) || again.Endpoint != "" {
		t.Errorf("idle again: %+v, before %+v", again, busy)
	}
	kill(again)
	conntest.WantGone(t, c)

	c, _ = dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	upgraded := sessionOf(t, p, func(s listener.Info) bool { return s.Path == "/chat" && s.Endpoint != "" })
	if upgraded.State != listener.StateActive || upgraded.Upstream == "" || upgraded.Endpoint != at {
		t.Errorf("upgraded: %+v", upgraded)
	}
	conntest.Want(t, c, "HTTP/1.1 101 ")
	kill(upgraded)
	for err := error(nil); err == nil; {
		_, err = c.Read(make([]byte, 1<<10))
	}
	conntest.Eventually(t, "no session is left", func() bool { return len(p.Sessions()) == 0 })
}

// TestStreamsInRegister: each stream of an HTTP/2 connection has a row, and can be reset without the others.
func TestStreamsInRegister(t *testing.T) {
	answer := make(chan struct{})
	gone := make(chan string, 1) // path of a request that the proxy has given up
	arrived := make(chan struct{}, 3)
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-answer:
			_, _ = io.WriteString(w, "ok")
		case <-r.Context().Done():
			gone <- r.URL.Path
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	whole := sessionOf(t, p, func(s listener.Info) bool { return s.State == listener.StateIdle })
	h.ask(1, true, ":method", "GET", ":scheme", "http", ":path", "/one?secret", ":authority", "a.example", "user-agent", "tester")
	h.ask(3, true, ":method", "GET", ":scheme", "http", ":path", "/three", ":authority", "a.example")
	rows := map[string]listener.Info{}
	conntest.Eventually(t, "both streams hold a connection", func() bool {
		held := 0
		for _, s := range p.Sessions() {
			rows[s.ID] = s
			if s.Endpoint != "" {
				held++
			}
		}
		return held == 2
	})
	<-arrived // a stream has its connection before the backend has the request
	<-arrived
	one, three := rows[whole.ID+".1"], rows[whole.ID+".3"]
	if len(rows) != 3 || rows[whole.ID].Streams != 2 || rows[whole.ID].State != listener.StateActive {
		t.Errorf("%+v", rows)
	}
	if one.Method != "GET" || one.Host != "a.example" || one.Path != "/one" || one.Application != "tester" || one.State != listener.StateActive ||
		one.Endpoint != backend || one.Held.IsZero() || one.Client != whole.Client || one.BytesIn != 0 || three.Path != "/three" {
		t.Errorf("%+v and %+v", one, three)
	}
	id, stream, _ := listener.ParseID(one.ID)
	if p.Kill(id, 5) || !p.Kill(id, stream) || p.Kill(id, stream) {
		t.Error("want stream 1 to be ended once, and no stream 5")
	}
	h.expect("reset CANCEL")
	if path := <-gone; path != "/one" {
		t.Errorf("the request for %s is given up", path)
	}
	close(answer)
	if got := h.outcome(3); got != "200 ok" {
		t.Errorf("the other stream: %q", got)
	}
	h.ask(5, true, plainGet...)
	if got := h.outcome(5); got != "200 ok" {
		t.Errorf("the next stream: %q", got)
	}
	conntest.Eventually(t, "the streams have left the list", func() bool { return len(p.Sessions()) == 1 })
	if n := p.Stats().Errors[listener.ReasonKilled]; n != 1 {
		t.Errorf("%d are counted as killed", n)
	}
	if !p.Kill(id, 0) {
		t.Error("the connection cannot be ended")
	}
	conntest.WantGone(t, h.c)
}

// TestKillDuringHandshake: a client that never ends its TLS handshake can be ended, and is counted as killed.
func TestKillDuringHandshake(t *testing.T) {
	server, _ := certificates(t)
	p := startProxy(t, httpproxy.Config{TLS: server, ReadHeaderTimeout: time.Hour, Routes: []httpproxy.Route{{Upstream: newUpstream(t, "127.0.0.1:1")}}})
	c, _ := dialRaw(t, p.addr)
	starting := sessionOf(t, p, func(s listener.Info) bool { return s.State == listener.StateStarting })
	if id, _, ok := listener.ParseID(starting.ID); !ok || !p.Kill(id, 0) {
		t.Errorf("cannot kill %+v", starting)
	}
	conntest.WantGone(t, c)
	conntest.Eventually(t, "no session is left", func() bool { return len(p.Sessions()) == 0 })
	if e := p.Stats().Errors; len(e) != 1 || e[listener.ReasonKilled] != 1 {
		t.Errorf("errors: %v, want one killed and nothing else", e)
	}
}

// TestKillWithinAHead: a client that has sent a part of a head can be ended, and is counted as killed.
func TestKillWithinAHead(t *testing.T) {
	lines := &logLines{t: t}
	p := startProxy(t, httpproxy.Config{ReadHeaderTimeout: time.Hour, AccessLog: &httpproxy.AccessLog{To: lines}, Routes: []httpproxy.Route{{Upstream: newUpstream(t, "127.0.0.1:1")}}})
	c, _ := dialRaw(t, p.addr)
	const part = "GET / HTTP/1.1\r\nHo"
	_, _ = io.WriteString(c, part)
	begun := sessionOf(t, p, func(s listener.Info) bool { return s.BytesIn == uint64(len(part)) })
	if id, _, ok := listener.ParseID(begun.ID); !ok || !p.Kill(id, 0) {
		t.Fatalf("%+v is not ended", begun)
	}
	conntest.WantGone(t, c)
	conntest.Eventually(t, "no session is left", func() bool { return len(p.Sessions()) == 0 })
	if e := p.Stats().Errors; len(e) != 1 || e[listener.ReasonKilled] != 1 {
		t.Errorf("errors: %v, want one killed and nothing else", e)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 499, "reason": "killed"})
}

// TestManySessions: 5,000 are listed, again and again, while others ask and get answers.
func TestManySessions(t *testing.T) {
	const sessions, busy, lists = 5000, 4, 10
	t.Cleanup(func() { // on goroutines each session has a buffer, and other tests measure the heap
		runtime.GC()
		runtime.GC()
	})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	t.Cleanup(backend.Close)
	p := startProxy(t, httpproxy.Config{
		ReadHeaderTimeout: time.Hour, Routes: []httpproxy.Route{{Upstream: newUpstream(t, strings.TrimPrefix(backend.URL, "http://"))}},
	})
	for range sessions {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	conntest.Eventually(t, "all sessions are listed", func() bool { return len(p.Sessions()) == sessions })
	var asked atomic.Int64
	done, ended := make(chan struct{}), make(chan error, busy)
	for range busy {
		c, br := dialRaw(t, p.addr)
		go func() {
			for {
				select {
				case <-done:
					ended <- nil
					return
				default:
				}
				_, err := io.WriteString(c, getRoot)
				if err == nil {
					var resp *http.Response
					if resp, err = http.ReadResponse(br, nil); err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
					}
				}
				if err != nil {
					ended <- err
					return
				}
				asked.Add(1)
			}
		}()
	}
	conntest.Eventually(t, "the busy ones are listed, too", func() bool { return len(p.Sessions()) == sessions+busy })
	for range lists {
		before := asked.Load()
		conntest.Eventually(t, "requests continue", func() bool { return asked.Load() > before })
		ids := map[string]bool{}
		for _, s := range p.Sessions() {
			ids[s.ID] = true
		}
		if len(ids) != sessions+busy {
			t.Errorf("%d sessions are listed", len(ids))
		}
	}
	close(done)
	var errs []error
	for range busy {
		errs = append(errs, <-ended)
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// TestKillFreesTheUpstream: killed sessions hold and wait for nothing, and are counted once.
func TestKillFreesTheUpstream(t *testing.T) {
	backend := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the connection's end
		<-r.Context().Done()
	})
	one := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: 100 * patience}}}, backend)
	cfg := routeTo(one)
	server, client := certificates(t)
	cfg.TLS = server
	plain, secure := startProxy(t, routeTo(one)), startProxy(t, cfg)
	stats := func() pool.Stats { return one.Status().Endpoints[0].Pool }
	for name, ask := range map[string]func(t *testing.T) running{
		"HTTP/1.1": func(t *testing.T) running {
			c, _ := dialRaw(t, plain.addr)
			_, _ = io.WriteString(c, getRoot)
			return plain
		},
		"HTTP/1.1 over TLS": func(t *testing.T) running {
			c, _ := dialRaw(t, secure.addr)
			_, _ = io.WriteString(tls.Client(c, client), getRoot)
			return secure
		},
		"half a body": func(t *testing.T) running {
			c, _ := dialRaw(t, plain.addr)
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc")
			return plain
		},
		"stream": func(t *testing.T) running {
			dialH2(t, plain.addr).ask(1, true, plainGet...)
			return plain
		},
	} {
		t.Run(name, func(t *testing.T) {
			conntest.Eventually(t, "no session is left", func() bool { return len(plain.Sessions())+len(secure.Sessions()) == 0 })
			p := ask(t)
			holder := sessionOf(t, p, func(s listener.Info) bool { return s.Endpoint != "" })
			ask(t)
			waiter := sessionOf(t, p, func(s listener.Info) bool { return s.State == listener.StateWaiting })
			killed := p.Stats().Errors[listener.ReasonKilled]
			for _, s := range []listener.Info{waiter, holder} {
				id, stream, _ := listener.ParseID(s.ID)
				if p.Kill(id, stream+1<<32) || !p.Kill(id, stream) || p.Kill(id, stream) {
					t.Errorf("%+v: cannot be killed, twice, or is another stream", s)
				}
			}
			if n := p.Stats().Errors[listener.ReasonKilled] - killed; n != 2 {
				t.Errorf("%d are counted as killed", n)
			}
			eventually(t, "nothing is held", func() bool { return stats().InUse == 0 && stats().Waiting == 0 })
		})
	}
}

// TestKillInFlight: a request that an operator ends, or whose connection, is logged and counted as killed, and not as given up by its client.
func TestKillInFlight(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			_, _ = io.WriteString(w, "a part")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	http1 := func(request string) func(*testing.T, running) {
		return func(t *testing.T, p running) {
			c, _ := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, request)
		}
	}
	http2 := func(t *testing.T, p running) {
		dialH2(t, p.addr).ask(1, true, plainGet...)
	}
	for name, c := range map[string]struct {
		ask   func(*testing.T, running)
		whole bool // end the connection, and not its stream
	}{
		"HTTP/1.1":    {ask: http1(getRoot)},
		"answer":      {ask: http1("GET /begun HTTP/1.1\r\nHost: a\r\n\r\n")},
		"half a body": {ask: http1("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc")},
		"stream":      {ask: http2},
		"connection":  {ask: http2, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			lines := &logLines{t: t}
			cfg := routeTo(newUpstream(t, backend))
			cfg.AccessLog = &httpproxy.AccessLog{To: lines}
			p := startProxy(t, cfg)
			c.ask(t, p)
			s := sessionOf(t, p, func(s listener.Info) bool { return s.Endpoint != "" })
			id, stream, _ := listener.ParseID(s.ID)
			if c.whole {
				stream = 0
			}
			if !p.Kill(id, stream) {
				t.Errorf("%+v cannot be ended", s)
			}
			wantFields(t, lines.fields(), map[string]any{"reason": "killed"})
			wantError(t, p, listener.ReasonKilled)
		})
	}
}

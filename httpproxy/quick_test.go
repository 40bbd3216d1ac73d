package httpproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
)

// These tests are about requests that need no fiber: all but the first ones of a connection, between HTTP/2 on both sides.

// aheadCases are a server's possible answers to such a request, and what the client gets.
var aheadCases = map[string]struct {
	answer func(s *frames, id uint32)
	want   string
	or     string // is right, too: it depends on whether the head comes alone
}{
	"whole":                     {answer: func(s *frames, id uint32) { s.answer(id, "hi") }, want: "200 hi"},
	"no content":                {answer: func(s *frames, id uint32) { s.fields(id, true, ":status", "204") }, want: "204"},
	"no content, with a length": {answer: func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "content-length", "0") }, want: "200"},
	"a length": {answer: func(s *frames, id uint32) {
		s.fields(id, false, ":status", "200", "content-length", "2")
		_ = s.WriteData(id, true, []byte("hi"))
	}, want: "200 hi"},
	"an end of its own": {answer: func(s *frames, id uint32) {
		s.fields(id, false, ":status", "200", "content-length", "2")
		_ = s.WriteData(id, false, []byte("hi"))
		_ = s.WriteData(id, true, nil)
	}, want: "200 hi"},
	"padding": {answer: func(s *frames, id uint32) {
		s.fields(id, false, ":status", "200")
		_ = s.WriteDataPadded(id, true, []byte("hi"), make([]byte, 200))
	}, want: "200 hi"},
	"an interim head": {answer: func(s *frames, id uint32) {
		s.fields(id, false, ":status", "103", "link", "</x>")
		s.answer(id, "hi")
	}, want: "103200 hi"},
	"trailers": {answer: func(s *frames, id uint32) {
		s.fields(id, false, ":status", "200")
		_ = s.WriteData(id, false, []byte("hi"))
		s.fields(id, true, "x-end", "1")
	}, want: "200 hi"},
	"long":  {answer: func(s *frames, id uint32) { s.answer(id, strings.Repeat("x", 9<<10)) }, want: "200 x… of 9216"},
	"error": {answer: func(s *frames, id uint32) { s.fields(id, true, ":status", "503") }, want: "503"},
	"too little": {answer: func(s *frames, id uint32) {
		s.fields(id, false, ":status", "200", "content-length", "9")
		_ = s.WriteData(id, true, []byte("hi"))
	}, want: "502", or: "200 reset INTERNAL_ERROR"},
	"two lengths": {answer: func(s *frames, id uint32) {
		s.fields(id, true, ":status", "200", "content-length", "1", "content-length", "2")
	}, want: "502"},
	"malformed": {answer: func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "Up", "x") }, want: "502"},
	"no head":   {answer: func(s *frames, id uint32) { _ = s.WriteData(id, true, []byte("hi")) }, want: "502"},
	"reset":     {answer: func(s *frames, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeInternal) }, want: "200 hi"},
	"refused":   {answer: func(s *frames, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, want: "200 hi"},
	"left":      {answer: func(s *frames, id uint32) { _ = s.WriteGoAway(id-2, http2.ErrCodeNo, nil) }, want: "200 hi"},
	"closed":    {answer: func(s *frames, _ uint32) { _ = s.Close() }, want: "200 hi"},
	"nonsense":  {answer: func(s *frames, _ uint32) { _, _ = s.Conn.Write([]byte(strings.Repeat("?", 100))) }, want: "200 hi"},
}

// warm is how many requests precede the tested one.
const warm = 3

// TestAhead: for each answer of a server the client gets what it should, and the next request is answered.
func TestAhead(t *testing.T) {
	for name, tc := range aheadCases {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			backend := serveFrames(t, func(s *frames) {
				for {
					id, _ := s.request()
					switch n := asked.Add(1); {
					case id == 0:
						return
					case n == warm+1:
						tc.answer(s, id)
					default:
						s.answer(id, "hi")
					}
				}
			})
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
			p := startProxy(t, routeTo(u))
			h := dialH2(t, p.addr)
			for i := range uint32(warm + 3) {
				id, want, or := 2*i+1, "200 hi", ""
				if i == warm {
					want, or = tc.want, tc.or
				}
				h.ask(id, true, plainGet...)
				if got := firstLine(h.outcome(id)); got != want && got != or {
					t.Errorf("request %d: %.100q, want %.100q", i+1, got, want)
				}
			}
			eventually(t, "all leases have ended", func() bool { return u.Status().Endpoints[0].Pool.InUse == 0 })
		})
	}
}

// firstLine is the outcome without the text of the gateway's own answers, and without the boundaries of frames.
func firstLine(outcome string) string {
	status, text, _ := strings.Cut(outcome, " ")
	switch content := strings.ReplaceAll(text, " ", ""); {
	case strings.Contains(text, "upstream") || strings.Contains(text, "server"):
		return status
	case strings.Contains(text, "reset"):
		return outcome
	case len(content) > 1000 && strings.Trim(content, "x") == "":
		return fmt.Sprintf("%s x… of %d", status, len(content))
	default:
		return strings.TrimSpace(status + " " + content)
	}
}

// warmUp sends the first requests of the connection, and returns the next stream.
func (h *h2Client) warmUp() (next uint32) {
	h.t.Helper()
	for next = 1; next < 2*warm; next += 2 {
		h.ask(next, true, plainGet...)
		if got := firstLine(h.outcome(next)); got != "200 hi" {
			h.t.Errorf("got %q", got)
		}
	}
	return next
}

// TestAheadGivenUp: a waiting request ends when its client resets it or leaves, an operator ends it, or its time is up.
// Its place is reusable.
func TestAheadGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		give func(t *testing.T, p running, h *h2Client, id uint32)
		want string // "" = the client has gone
	}{
		"reset": {give: func(_ *testing.T, _ running, h *h2Client, id uint32) {
			h.do(0, h.WriteRSTStream(id, http2.ErrCodeCancel))
		}},
		"gone": {give: func(_ *testing.T, _ running, h *h2Client, _ uint32) { _ = h.c.Close() }},
		"killed": {give: func(t *testing.T, p running, _ *h2Client, _ uint32) {
			for _, s := range p.Sessions() {
				if id, stream, ok := listener.ParseID(s.ID); ok && stream != 0 && !p.Kill(id, stream) {
					t.Error("there is no such stream")
				}
			}
		}, want: "reset CANCEL"},
		"late": {give: func(*testing.T, running, *h2Client, uint32) {}, want: "504"},
	} {
		t.Run(name, func(t *testing.T) {
			came, over := make(chan struct{}), make(chan http2.ErrCode, 1)
			var asked atomic.Int64
			backend := serveFrames(t, func(s *frames) {
				for {
					id, _ := s.request()
					switch n := asked.Add(1); {
					case id == 0:
						return
					case n == warm+1:
						close(came)
						if f, ok := s.await(http2.FrameRSTStream).(*http2.RSTStreamFrame); ok && f.StreamID == id {
							over <- f.ErrCode
						}
					default:
						s.answer(id, "hi")
					}
				}
			})
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
				{Upstream: u}, {Path: "/late", Upstream: u, ResponseTimeout: 200 * time.Millisecond},
			}})
			h := dialH2(t, p.addr)
			id := h.warmUp()
			h.ask(id, true, ":method", "GET", ":scheme", "http", ":path", "/"+name, ":authority", "a")
			<-came
			tc.give(t, p, h, id)
			if tc.want != "" {
				if got := firstLine(h.outcome(id)); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			}
			select {
			case code := <-over:
				if code != http2.ErrCodeCancel {
					t.Errorf("the server's stream is reset with %v", code)
				}
			case <-time.After(patience):
				t.Error("the server's stream goes on")
			}
			eventually(t, "the lease has ended", func() bool { return u.Status().Endpoints[0].Pool.InUse == 0 })
			next := dialH2(t, p.addr)
			next.ask(1, true, plainGet...)
			if got := firstLine(next.outcome(1)); got != "200 hi" {
				t.Errorf("the next: %q", got)
			}
		})
	}
}

// TestAheadSmallWindows: an answer waits for the client's window.
func TestAheadSmallWindows(t *testing.T) {
	backend := serveHTTP2(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	p := startProxy(t, routeTo(backend.upstream(t, httpproxy.ProtocolH2C)))
	h := dialH2(t, p.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2})
	for id := uint32(1); id < 2*warm+4; id += 2 {
		h.ask(id, true, plainGet...)
		h.next(func(f http2.Frame) bool {
			d, ok := f.(*http2.DataFrame)
			if ok && string(d.Data()) != "he" {
				t.Errorf("got %q", d.Data())
			}
			return ok
		})
		h.do(0, h.WriteWindowUpdate(id, 10))
		if got := strings.ReplaceAll(h.outcome(id), " ", ""); got != "llo" {
			t.Errorf("got %q", got)
		}
	}
}

// TestAheadSlowServer: requests wait for space on the server's connection. Those that the writer sends in place of the
// clients' reader are sent, too.
func TestAheadSlowServer(t *testing.T) {
	const n = 60
	begin := make(chan struct{})
	backend := serveFrames(t, func(s *frames) {
		_ = s.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		for range 2 {
			var asked []uint32
			for range n {
				id, _ := s.request()
				asked = append(asked, id)
			}
			for _, id := range asked {
				s.fields(id, true, ":status", "204")
			}
			<-begin
			_ = s.Conn.(*net.TCPConn).SetReadBuffer(1 << 20)
		}
		s.drain()
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
	h := dialH2(t, startProxy(t, routeTo(u)).addr)
	for i := range uint32(n) { // so that there are as many places
		h.ask(2*i+1, true, plainGet...)
	}
	h.answered(n)
	pad := strings.Repeat("x", 8<<10)
	for i := range uint32(n) {
		h.ask(2*(n+i)+1, true, append(plainGet, "x-pad", pad)...)
	}
	close(begin)
	h.answered(n)
	eventually(t, "all leases have ended", func() bool { return u.Status().Endpoints[0].Pool.InUse == 0 })
}

// TestAheadInPieces: an answer whose last frame arrives in pieces is passed on when complete, or in part if that takes
// long.
func TestAheadInPieces(t *testing.T) {
	proceed := make(chan struct{})
	backend := serveFrames(t, func(s *frames) {
		var b bytes.Buffer
		for n := 1; ; n++ {
			id, _ := s.request()
			if id == 0 {
				return
			}
			b.Reset()
			_ = http2.NewFramer(&b, nil).WriteData(id, true, []byte("hello"))
			s.fields(id, false, ":status", "200")
			_, _ = s.Conn.Write(b.Next(b.Len() - 2))
			if n > warm {
				<-proceed
			}
			_, _ = s.Conn.Write(b.Bytes())
		}
	})
	h := dialH2(t, h2cTo(t, backend).addr)
	for id := uint32(1); id < 2*warm; id += 2 {
		h.ask(id, true, plainGet...)
		if got := firstLine(h.outcome(id)); got != "200 hello" {
			t.Errorf("got %q", got)
		}
	}
	h.ask(2*warm+1, true, plainGet...)
	h.next(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
	close(proceed)
	if got := strings.ReplaceAll(h.outcome(2*warm+1), " ", ""); got != "hello" {
		t.Errorf("got %q", got)
	}
}

// panicky is a log that panics once, at the request for /panic.
type panicky struct {
	slog.Handler
	over *atomic.Bool
}

func (h panicky) Enabled(context.Context, slog.Level) bool { return true }

func (h panicky) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h panicky) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "path" && a.Value.String() == "/panic" && !h.over.Swap(true) {
			panic("a log")
		}
		return true
	})
	return nil
}

// TestAheadPanics: a panic in the gateway ends one request, and the pool gets its slot back.
func TestAheadPanics(t *testing.T) {
	backend := serveHTTP2(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") })
	u := backend.upstream(t, httpproxy.ProtocolH2C)
	cfg := routeTo(u)
	cfg.Listener.AccessLog = true
	cfg.Listener.Logger = slog.New(panicky{slog.DiscardHandler, new(atomic.Bool)})
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	for i := range uint32(warm + 3) {
		id, path := 2*i+1, "/"
		if i == warm {
			path = "/panic"
		}
		h.ask(id, true, ":method", "GET", ":scheme", "http", ":path", path, ":authority", "a")
		if got := firstLine(h.outcome(id)); got != "200 hi" {
			t.Errorf("request %d: %q", i+1, got)
		}
	}
	eventually(t, "it is counted", func() bool { return p.Stats().Errors[listener.ReasonInternal] == 1 })
	eventually(t, "all leases have ended", func() bool { return u.Status().Endpoints[0].Pool.InUse == 0 })
}

// TestHeadsStayApart: fields of one client or server never reach another, whatever their sizes and the number of
// concurrent requests and connections.
func TestHeadsStayApart(t *testing.T) {
	backend := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		tag := r.Header.Get("X-Tag")
		if len(tag)%3 == 0 {
			w.Header().Set("Link", tag)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
		}
		w.Header().Set("X-Echo", tag)
		w.Header().Set("X-Path", r.URL.RawQuery)
		if len(tag)%5 == 0 {
			w.Header().Set("Trailer", "X-End")
			defer w.Header().Set("X-End", tag)
		}
		_, _ = io.WriteString(w, tag)
	})
	p := startProxy(t, routeTo(backend.upstream(t, httpproxy.ProtocolH2C)))
	var clients sync.WaitGroup
	for c := range 6 {
		client := clientFor(t, []string{"HTTP/2.0", "HTTP/2.0", "HTTP/1.1"}[c%3])
		for worker := range 3 {
			clients.Go(func() {
				for i := range 40 {
					tag := strings.Repeat(fmt.Sprintf("%d-%d-%d.", c, worker, i), 1+(i*i*7+worker)%120)
					if err := askWithTag(client, p.url, tag); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	clients.Wait()
}

// askWithTag sends a request with a text in its head, and reports whether the answer has another.
func askWithTag(client *http.Client, url, tag string) error {
	query := "q=" + tag[:min(len(tag), 50)]
	req, err := http.NewRequest(http.MethodGet, url+"?"+query, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Tag", tag)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch end := resp.Trailer.Get("X-End"); {
	case err != nil:
		return err
	case resp.Header.Get("X-Echo") != tag, resp.Header.Get("X-Path") != query, string(body) != tag, end != "" && end != tag:
		return fmt.Errorf("%.60q: the head has %.60q and %.60q, the body is %.60q, the trailer %.60q", tag, resp.Header.Get("X-Echo"), resp.Header.Get("X-Path"), body, end)
	}
	return nil
}

// launchBomb is a client's connection that panics once it is armed, when the reader launches a request.
type launchBomb struct {
	fiber.Stream
	armed *atomic.Bool
}

func (b launchBomb) Loop() int {
	if b.armed.Load() && strings.Contains(string(debug.Stack()), ".(*http2).launch(") && b.armed.Swap(false) {
		panic("bomb")
	}
	return b.Stream.Loop()
}

// launchBombs accepts such connections.
type launchBombs struct {
	net.Listener
	armed *atomic.Bool
}

func (l launchBombs) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return launchBomb{fiber.StreamOf(c), l.armed}, nil
}

// TestLaunchPanics: a panic in the reader before a request has its session's fiber, or its place, ends this request only.
func TestLaunchPanics(t *testing.T) {
	backend := serveHTTP2(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") })
	cfg := routeTo(backend.upstream(t, httpproxy.ProtocolH2C))
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	p, err := httpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var armed atomic.Bool
	addr := conntest.Run(t, launchBombs{enginetest.Listen(t), &armed}, p.Serve, func() { _ = p.Drain(context.Background()) })
	h := dialH2(t, addr)
	for i := range uint32(warm + 3) {
		id, want := 2*i+1, "200 hi"
		if i == warm {
			armed.Store(true)
			want = "reset INTERNAL_ERROR"
		}
		h.ask(id, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a")
		if got := firstLine(h.outcome(id)); got != want {
			t.Errorf("request %d: %q", i+1, got)
		}
	}
	_ = h.c.Close()
	if n := p.Stats().Errors[listener.ReasonInternal]; n != 1 {
		t.Errorf("%d panics are counted", n)
	}
}

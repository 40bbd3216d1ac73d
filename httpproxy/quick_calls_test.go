package httpproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// These tests are about requests with small bodies and answers with trailers, such as unary gRPC calls, without a fiber:
// see quick_test.go.

// callHead is the head of a call.
var callHead = []string{":method", "POST", ":scheme", "http", ":path", "/a.B/C", ":authority", "a", "content-type", "application/grpc", "te", "trailers"}

// request is the frames of a request with its body in these pieces, the last of which ends it.
func (h *h2Client) request(id uint32, head []string, pieces ...string) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.fields(head...), EndHeaders: true})
	for i, p := range pieces {
		_ = f.WriteData(id, i == len(pieces)-1, []byte(p))
	}
	return b.Bytes()
}

// write sends frames in one write.
func (h *h2Client) write(b []byte) {
	h.t.Helper()
	h.do(h.c.Write(b))
}

// call sends a call in one write.
func (h *h2Client) call(id uint32, body string) {
	h.t.Helper()
	h.write(h.request(id, callHead, body))
}

// ping waits until the gateway has read everything sent.
func (h *h2Client) ping() {
	h.t.Helper()
	h.do(0, h.WritePing(false, [8]byte{1}))
	h.next(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
}

// reply reads an answer: status, content, gRPC fields in its head, trailers, and how it ended if it is incomplete.
func (h *h2Client) reply(id uint32) string {
	h.t.Helper()
	var status, content string
	var fields []string
	for {
		f, err := h.ReadFrame()
		if err != nil {
			return fmt.Sprint(status, " ", content, " ", fields, " ", err)
		}
		if f.Header().StreamID != id {
			continue
		}
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			return strings.TrimSpace(fmt.Sprint(status, " ", content, " reset ", f.ErrCode))
		case *http2.MetaHeadersFrame:
			if s := f.PseudoValue("status"); s != "" {
				status += s
			}
			for _, v := range f.RegularFields() {
				if f.PseudoValue("status") == "" || v.Name == "grpc-status" {
					fields = append(fields, v.Name+"="+v.Value)
				}
			}
			if f.StreamEnded() {
				return fmt.Sprint(status, " ", content, " ", fields)
			}
		case *http2.DataFrame:
			content += string(f.Data())
			if f.StreamEnded() {
				return fmt.Sprint(status, " ", content, " ", fields)
			}
		}
	}
}

// wantReply fails unless the answer is one of these.
func (h *h2Client) wantReply(id uint32, want ...string) {
	h.t.Helper()
	if got := h.reply(id); !slices.Contains(want, got) {
		h.t.Errorf("stream %d: got %.200q, want %.200q", id, got, want)
	}
}

// finish answers a call.
func (s *frames) finish(id uint32, body string) {
	var b bytes.Buffer
	f := &frames{Framer: http2.NewFramer(&b, nil)}
	f.fields(id, false, ":status", "200", "content-type", "application/grpc")
	_ = f.WriteData(id, false, []byte(body))
	f.fields(id, true, "grpc-status", "0", "x-tag", body[:min(len(body), 20)])
	_, _ = s.Conn.Write(b.Bytes())
}

// finished is what the client gets of that.
func finished(body string) string {
	return fmt.Sprintf("200 %s [grpc-status=0 x-tag=%s]", body, body[:min(len(body), 20)])
}

// sync waits until the gateway has read all that was sent.
func (s *frames) sync() {
	_ = s.WritePing(false, [8]byte{2})
	for {
		if f, ok := s.await(http2.FramePing).(*http2.PingFrame); !ok || f.IsAck() {
			return
		}
	}
}

// serveCalls answers calls with their bodies, except the one after the warm-up, for which it calls answer.
func serveCalls(t testing.TB, answer func(s *frames, id uint32, body string)) (*httpproxy.Upstream, running, *atomic.Int64) {
	t.Helper()
	calls := new(atomic.Int64)
	backend := serveFrames(t, func(s *frames) {
		for {
			id, body := s.request()
			switch n := calls.Add(1); {
			case id == 0:
				return
			case n == warm+1:
				answer(s, id, body)
			default:
				s.finish(id, body)
			}
		}
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
	return u, startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u}}}), calls
}

// warmCalls makes the first calls of the connection, and returns the next stream.
func (h *h2Client) warmCalls() (next uint32) {
	h.t.Helper()
	for next = 1; next < 2*warm; next += 2 {
		h.call(next, "warm")
		h.wantReply(next, finished("warm"))
	}
	return next
}

func wantNoLease(t testing.TB, u *httpproxy.Upstream) {
	t.Helper()
	eventually(t, "all leases have ended", func() bool { return u.Status().Endpoints[0].Pool.InUse == 0 })
}

// callCases are a server's possible answers to a call, and what the client gets.
var callCases = map[string]struct {
	answer func(s *frames, id uint32, body string)
	want   []string
}{
	"whole": {func(s *frames, id uint32, body string) { s.finish(id, body) }, []string{finished("hello")}},
	"a frame after the other": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		s.sync()
		_ = s.WriteData(id, false, []byte(body))
		s.sync()
		s.fields(id, true, "grpc-status", "0")
	}, []string{"200 hello [grpc-status=0]"}},
	"trailers after a while": {func(s *frames, id uint32, body string) {
		var b bytes.Buffer
		f := &frames{Framer: http2.NewFramer(&b, nil)}
		f.fields(id, false, ":status", "200", "content-type", "application/grpc")
		_ = f.WriteData(id, false, []byte(body))
		_, _ = s.Conn.Write(b.Bytes())
		s.sync()
		s.fields(id, true, "grpc-status", "0")
	}, []string{"200 hello [grpc-status=0]"}},
	"no content": {func(s *frames, id uint32, _ string) {
		s.fields(id, false, ":status", "200")
		s.fields(id, true, "grpc-status", "5")
	}, []string{"200  [grpc-status=5]"}},
	"trailers only": {func(s *frames, id uint32, _ string) {
		s.fields(id, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "7")
	}, []string{"200  [grpc-status=7]"}},
	"no trailers": {func(s *frames, id uint32, body string) { s.answer(id, body) }, []string{"200 hello []"}},
	"trailers that must not pass": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200")
		_ = s.WriteData(id, false, []byte(body))
		s.fields(id, true, "set-cookie", "a=b", "grpc-status", "0", "content-type", "text/html")
	}, []string{"200 hello [grpc-status=0]"}},
	"only such trailers": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200")
		_ = s.WriteData(id, false, []byte(body))
		s.fields(id, true, "set-cookie", "a=b")
	}, []string{"200 hello []"}},
	"trailers after a length": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200", "content-length", "5")
		_ = s.WriteData(id, false, []byte(body))
		s.fields(id, true, "x", "y")
	}, []string{"200 hello []"}},
	"long trailers": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		_ = s.WriteData(id, false, []byte(body))
		s.fields(id, true, "grpc-status", "0", "x", strings.Repeat("x", 40<<10))
	}, []string{"200 hello [grpc-status=0 x=" + strings.Repeat("x", 40<<10) + "]"}},
	"content after the trailers": {func(s *frames, id uint32, body string) { s.finish(id, body); _ = s.WriteData(id, true, []byte("!")) }, []string{finished("hello")}},
	"trailers that do not end": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		_ = s.WriteData(id, false, []byte(body))
		s.fields(id, false, "grpc-status", "0")
	}, []string{"200  [grpc-status=14]", "200 hello [grpc-status=14 grpc-message=the gateway has lost the server in the middle of its answer]", "200  [grpc-status=14 grpc-message=the gateway has lost the server in the middle of its answer]"}},
	"a status in trailers": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		_ = s.WriteData(id, false, []byte(body))
		s.fields(id, true, ":status", "200")
	}, []string{"200  [grpc-status=14]", "200 hello [grpc-status=14 grpc-message=the gateway has lost the server in the middle of its answer]", "200  [grpc-status=14 grpc-message=the gateway has lost the server in the middle of its answer]"}},
	"reset":   {func(s *frames, id uint32, _ string) { _ = s.WriteRSTStream(id, http2.ErrCodeInternal) }, []string{"200  [grpc-status=14]"}},
	"refused": {func(s *frames, id uint32, _ string) { _ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, []string{finished("hello")}},
	"left":    {func(s *frames, id uint32, _ string) { _ = s.WriteGoAway(id-2, http2.ErrCodeNo, nil) }, []string{finished("hello")}},
	"closed":  {func(s *frames, _ uint32, _ string) { _ = s.Close() }, []string{"200  [grpc-status=14]"}},
	"leaves, and answers": {func(s *frames, id uint32, body string) {
		_ = s.WriteGoAway(id, http2.ErrCodeNo, nil)
		s.sync()
		s.finish(id, body)
	}, []string{finished("hello")}},
	"leaves in the middle": {func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		_ = s.WriteGoAway(id, http2.ErrCodeNo, nil)
		s.sync()
		_ = s.WriteData(id, false, []byte(body))
		s.sync()
		s.fields(id, true, "grpc-status", "0")
	}, []string{"200 hello [grpc-status=0]"}},
	"reset behind the head":    {brokenAnswer(false, func(s *frames, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeInternal) }), brokenCall("")},
	"reset behind the content": {brokenAnswer(true, func(s *frames, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeInternal) }), brokenCall("hello")},
	"refused behind the head":  {brokenAnswer(false, func(s *frames, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream) }), brokenCall("")},
	"left behind the content":  {brokenAnswer(true, func(s *frames, id uint32) { _ = s.WriteGoAway(id-2, http2.ErrCodeNo, nil) }), brokenCall("hello")},
	"closed behind the head":   {brokenAnswer(false, func(s *frames, _ uint32) { _ = s.Close() }), brokenCall("")},
	"closed behind the content": {brokenAnswer(true, func(s *frames, _ uint32) { _ = s.Close() }),
		brokenCall("hello")},
	"reset behind the trailers": {func(s *frames, id uint32, body string) {
		s.finish(id, body)
		_ = s.WriteRSTStream(id, http2.ErrCodeNo)
	}, []string{finished("hello")}},
}

// brokenAnswer begins an answer and then breaks it, all at once.
func brokenAnswer(content bool, by func(s *frames, id uint32)) func(s *frames, id uint32, body string) {
	return func(s *frames, id uint32, body string) {
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		if content {
			_ = s.WriteData(id, false, []byte(body))
		}
		by(s, id)
	}
}

// brokenCall is what the client may get of such an answer. If the end arrives with the answer, the client gets nothing of
// it.
func brokenCall(content string) []string {
	const lost = " grpc-message=the gateway has lost the server in the middle of its answer]"
	return []string{"200 " + content + " [grpc-status=14" + lost, "200  [grpc-status=14" + lost, "200  [grpc-status=14]"}
}

// TestCalls: for each answer of a server the client gets what it should, and the next call is answered.
func TestCalls(t *testing.T) {
	for name, tc := range callCases {
		t.Run(name, func(t *testing.T) {
			u, p, _ := serveCalls(t, tc.answer)
			h := dialH2(t, p.addr)
			id := h.warmCalls()
			h.call(id, "hello")
			h.wantReply(id, tc.want...)
			for id += 2; id < 2*warm+9; id += 2 {
				h.call(id, "next")
				h.wantReply(id, finished("next"))
			}
			wantNoLease(t, u)
		})
	}
}

// TestCallsCutAnywhere: a call and its answer may come in two pieces, cut at any byte.
func TestCallsCutAnywhere(t *testing.T) {
	var cut atomic.Int64
	var answered bytes.Buffer // of the same size each time
	backend := serveFrames(t, func(s *frames) {
		for {
			id, body := s.request()
			if id == 0 {
				return
			}
			answered.Reset()
			f := &frames{Framer: http2.NewFramer(&answered, nil)}
			f.fields(id, false, ":status", "200", "content-type", "application/grpc")
			_ = f.WriteData(id, false, []byte(body))
			f.fields(id, true, "grpc-status", "0", "x-tag", body)
			_, _ = s.Conn.Write(answered.Next(int(cut.Load())))
			_, _ = s.Conn.Write(answered.Bytes())
		}
	})
	p := h2cTo(t, backend)
	for _, answers := range []bool{false, true} {
		h := dialH2(t, p.addr)
		for i := range 200 {
			id, tag := uint32(2*i+1), fmt.Sprintf("%04d", i)
			call := h.request(id, callHead, tag)
			at := min(i, len(call))
			if cut.Store(0); answers {
				cut.Store(int64(i))
				at = 0
			}
			h.write(call[:at])
			if at == len(call)-9-len(tag) { // behind the head
				h.ping()
			}
			h.write(call[at:])
			h.wantReply(id, finished(tag))
		}
	}
}

// TestCallsInFrames: a body may arrive in any number of frames, with padding, with a separate end, or with trailers.
func TestCallsInFrames(t *testing.T) {
	for name, send := range map[string]func(h *h2Client, id uint32, head []string){
		"two frames":   func(h *h2Client, id uint32, head []string) { h.write(h.request(id, head, "he", "llo")) },
		"an empty end": func(h *h2Client, id uint32, head []string) { h.write(h.request(id, head, "hello", "")) },
		"a length": func(h *h2Client, id uint32, head []string) {
			h.write(h.request(id, append(head, "content-length", "5"), "hello"))
		},
		"an end after a while": func(h *h2Client, id uint32, head []string) {
			h.ask(id, false, head...)
			h.do(0, h.WriteData(id, false, []byte("hello")))
			h.ping()
			h.do(0, h.WriteData(id, true, nil))
		},
		"padding": func(h *h2Client, id uint32, head []string) {
			var b bytes.Buffer
			_ = http2.NewFramer(&b, nil).WriteDataPadded(id, true, []byte("hello"), make([]byte, 200))
			h.ask(id, false, head...)
			h.write(b.Next(9 + 1 + 5 + 100))
			h.write(b.Bytes())
		},
		"trailers": func(h *h2Client, id uint32, head []string) {
			h.ask(id, false, head...)
			h.do(0, h.WriteData(id, false, []byte("hello")))
			h.ask(id, true, "x-end", "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			u, p, _ := serveCalls(t, func(s *frames, id uint32, body string) { s.finish(id, body) })
			h := dialH2(t, p.addr)
			for id := h.warmCalls(); id < 2*warm+9; id += 2 {
				send(h, id, slices.Clone(callHead))
				h.wantReply(id, finished("hello"))
			}
			wantNoLease(t, u)
		})
	}
}

// TestCallsThatContradictThemselves: they never reach the server, and the next call is answered.
func TestCallsThatContradictThemselves(t *testing.T) {
	for name, tc := range map[string]struct {
		length string
		pieces []string
	}{
		"longer than its length":           {"2", []string{"hello"}},
		"longer than its length, in parts": {"2", []string{"he", "llo"}},
		"shorter than its length":          {"9", []string{"hello"}},
		"shorter, with an end of its own":  {"9", []string{"hello", ""}},
		"content, and a length of 0":       {"0", []string{"hello"}},
	} {
		t.Run(name, func(t *testing.T) {
			u, p, calls := serveCalls(t, func(s *frames, id uint32, body string) { s.finish(id, body) })
			h := dialH2(t, p.addr)
			id := h.warmCalls()
			h.write(h.request(id, append(slices.Clone(callHead), "content-length", tc.length), tc.pieces...))
			h.wantReply(id, "reset PROTOCOL_ERROR")
			h.call(id+2, "next")
			h.wantReply(id+2, finished("next"))
			wantNoLease(t, u)
			if n := calls.Load(); n > warm+2 { // the head may have come to it
				t.Errorf("the server has got %d calls", n)
			}
		})
	}
}

// TestCallsOfAllSizes: they come back unchanged, alone and many at a time.
func TestCallsOfAllSizes(t *testing.T) {
	backend := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Trailer", "X-End")
		_, _ = w.Write(b)
		w.Header().Set("X-End", r.Header.Get("X-Tag"))
	})
	p := startProxy(t, routeTo(backend.upstream(t, httpproxy.ProtocolH2C)))
	client := clientFor(t, "HTTP/2.0")
	var all sync.WaitGroup
	for round := range 3 {
		for _, size := range []int{0, 1, 5, 4 << 10, 8<<10 - 1, 8 << 10, 8<<10 + 1, 16<<10 - 24, 16<<10 - 1, 16 << 10, 16<<10 + 1, 64<<10 - 1, 64 << 10, 300 << 10} {
			for _, known := range []bool{true, false} {
				ask := func() {
					if err := echoed(t.Context(), client, p.url, fmt.Sprintf("%d-%d.", round, size), size, known); err != nil {
						t.Errorf("%d bytes: %v", size, err)
					}
				}
				if round == 0 {
					ask()
				} else {
					all.Go(ask)
				}
			}
		}
	}
	all.Wait()
}

// errCrossed: an answer contains part of another.
var errCrossed = errors.New("crossed")

// echoed sends a body of the given size, which repeats a tag, and returns an error if the answer differs.
func echoed(ctx context.Context, client *http.Client, url, tag string, size int, known bool) error {
	body := strings.Repeat(tag, size/len(tag)+1)[:size]
	var r io.Reader = strings.NewReader(body)
	if !known {
		r = io.MultiReader(r)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, r)
	if err != nil {
		return err
	}
	req.Header.Set("X-Tag", tag)
	req.Header.Set("Te", "trailers")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	switch end := resp.Trailer.Get("X-End"); {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return errors.New(resp.Status)
	case string(got) != body:
		return fmt.Errorf("%w: the body of %.20q has come back as %d bytes %.60q", errCrossed, tag, len(got), got)
	case end != tag:
		return fmt.Errorf("%w: the trailer of %.20q is %.60q", errCrossed, tag, end)
	}
	return nil
}

// TestCallsStayApart: bodies and trailers never reach another call, while many calls of many connections run, some are
// reset, and the server sometimes refuses, resets or sends GOAWAY.
func TestCallsStayApart(t *testing.T) {
	var asked atomic.Int64
	backend := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		switch n := asked.Add(1); {
		case err != nil || n%97 == 0:
			panic(http.ErrAbortHandler)
		case n%89 == 0:
			w.Header().Set("Connection", "close") // leaves by GOAWAY
		}
		w.Header().Set("Trailer", "X-End")
		_, _ = w.Write(b)
		if len(b)%3 == 0 {
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("X-End", r.Header.Get("X-Tag"))
	})
	u := backend.upstream(t, httpproxy.ProtocolH2C)
	p := startProxy(t, routeTo(u))
	var clients sync.WaitGroup
	var whole atomic.Int64
	for c := range 6 {
		client := clientFor(t, []string{"HTTP/2.0", "HTTP/2.0", "HTTP/1.1"}[c%3])
		for worker := range 4 {
			clients.Go(func() {
				for i := range 60 {
					ctx, cancel := context.WithCancel(t.Context())
					if i%10 == 9 { // at any time
						time.AfterFunc(time.Duration(i*worker)*10*time.Microsecond, cancel)
					}
					err := echoed(ctx, client, p.url, fmt.Sprintf("%d-%d-%d.", c, worker, i), 1+(i*i*37+worker*113)%9000, i%2 == 0)
					cancel()
					if err == nil {
						whole.Add(1)
					} else if errors.Is(err, errCrossed) {
						t.Error(err)
					}
				}
			})
		}
	}
	clients.Wait()
	if n := whole.Load(); n < 1000 {
		t.Errorf("%d of 1440 calls were answered", n)
	}
	wantNoLease(t, u)
	eventually(t, "nothing is held any more", func() bool { return p.Stats().Buffered == 0 })
}

// TestCallsGivenUp: calls are reset by their clients in every state. The server's stream is reset if the server has seen
// the call, and its place is reusable.
func TestCallsGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		begins func(s *frames, id uint32) // the server, before the call is given up
		early  bool                       // the call is given up before the server sees it
		give   func(h *h2Client, id uint32)
	}{
		"with the head": {early: true, give: func(h *h2Client, id uint32) {
			call := h.request(id, callHead, "hello")
			h.write(append(call[:len(call)-9-5], reset(id)...))
		}},
		"with the body": {early: true, give: func(h *h2Client, id uint32) { h.write(append(h.request(id, callHead, "hello"), reset(id)...)) }},
		"in the body": {early: true, give: func(h *h2Client, id uint32) {
			h.write(append(h.request(id, callHead, "he", "llo")[:len(h.request(id, callHead, "he"))], reset(id)...))
		}},
		"before the answer":  {begins: func(*frames, uint32) {}, give: func(h *h2Client, id uint32) { h.write(reset(id)) }},
		"behind the head":    {begins: func(s *frames, id uint32) { s.fields(id, false, ":status", "200", "content-type", "application/grpc") }, give: giveUpInAnswer},
		"behind the content": {begins: func(s *frames, id uint32) { s.answerPart(id) }, give: giveUpInAnswer},
		"gone":               {begins: func(*frames, uint32) {}, give: func(h *h2Client, _ uint32) { _ = h.c.Close() }},
		"gone in the answer": {begins: func(s *frames, id uint32) { s.answerPart(id) }, give: func(h *h2Client, _ uint32) { _ = h.c.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			came, over := make(chan struct{}), make(chan http2.ErrCode, 1)
			backend := serveFrames(t, func(s *frames) {
				for {
					id, body := s.request()
					switch {
					case id == 0:
						return
					case tc.begins != nil && body == "hello":
						tc.begins(s, id)
						close(came)
						if f, ok := s.await(http2.FrameRSTStream).(*http2.RSTStreamFrame); ok && f.StreamID == id {
							over <- f.ErrCode
						}
					default:
						s.finish(id, body)
					}
				}
			})
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
			p := startProxy(t, routeTo(u))
			h := dialH2(t, p.addr)
			id := h.warmCalls()
			if tc.early {
				tc.give(h, id)
			} else {
				h.call(id, "hello")
				<-came
				tc.give(h, id)
				select {
				case code := <-over:
					if code != http2.ErrCodeCancel {
						t.Errorf("the server's stream is reset with %v", code)
					}
				case <-time.After(patience):
					t.Error("the server's stream goes on")
				}
			}
			wantNoLease(t, u)
			next := dialH2(t, p.addr)
			for id := uint32(1); id < 9; id += 2 {
				next.call(id, "next")
				next.wantReply(id, finished("next"))
			}
		})
	}
}

func reset(id uint32) []byte {
	var b bytes.Buffer
	_ = http2.NewFramer(&b, nil).WriteRSTStream(id, http2.ErrCodeCancel)
	return b.Bytes()
}

// answerPart begins an answer.
func (s *frames) answerPart(id uint32) {
	s.fields(id, false, ":status", "200", "content-type", "application/grpc")
	_ = s.WriteData(id, false, []byte("part"))
}

// giveUpInAnswer resets a call after its answer has begun.
func giveUpInAnswer(h *h2Client, id uint32) {
	h.next(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
	h.write(reset(id))
}

// TestCallsWithoutRoomAtTheServer: a body waits for the server's window, and is sent as far as it allows.
func TestCallsWithoutRoomAtTheServer(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		for n := 1; ; n++ {
			f, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
			if !ok {
				return
			}
			id, body := f.StreamID, ""
			for ended := false; !ended; {
				_ = s.WriteWindowUpdate(id, 3)
				d, ok := s.await(http2.FrameData).(*http2.DataFrame)
				if !ok {
					return
				}
				if len(d.Data()) > 3 {
					t.Errorf("%q has come into a window of 3", d.Data())
				}
				body, ended = body+string(d.Data()), d.StreamEnded()
			}
			s.finish(id, body)
		}
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
	h := dialH2(t, startProxy(t, routeTo(u)).addr)
	for id := uint32(1); id < 20; id += 2 {
		body := fmt.Sprintf("a body of %d", id)
		h.call(id, body)
		h.wantReply(id, finished(body))
	}
	wantNoLease(t, u)
}

// TestCallsWithoutRoomAtTheClient: an answer waits for the client's window, and its trailers follow it.
func TestCallsWithoutRoomAtTheClient(t *testing.T) {
	u, p, _ := serveCalls(t, func(s *frames, id uint32, body string) { s.finish(id, body) })
	h := dialH2(t, p.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for id := uint32(1); id < 2*warm+9; id += 2 {
		h.call(id, "hello")
		h.next(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
		h.do(0, h.WritePing(false, [8]byte{3}))
		h.next(func(f http2.Frame) bool {
			if d, ok := f.(*http2.DataFrame); ok {
				t.Errorf("%q has come into a window of 0", d.Data())
			}
			_, ok := f.(*http2.PingFrame)
			return ok
		})
		h.do(0, h.WriteWindowUpdate(id, 10))
		h.wantReply(id, strings.TrimPrefix(finished("hello"), "200"))
	}
	wantNoLease(t, u)
}

// TestCallsThatTakeTooLong: a call ends at its deadline in every state: without a window for its body, without an answer,
// or within one.
func TestCallsThatTakeTooLong(t *testing.T) {
	head := append(slices.Clone(callHead), "grpc-timeout", "200m")
	for name, tc := range map[string]struct {
		window uint32
		begins func(s *frames, id uint32)
		want   []string
	}{
		"no room":   {0, nil, []string{"200  [grpc-status=4]"}},
		"no answer": {100, func(*frames, uint32) {}, []string{"200  [grpc-status=4]"}},
		"in the answer": {100, func(s *frames, id uint32) { s.answerPart(id) }, []string{
			"200 part [grpc-status=4 grpc-message=the gateway has lost the server in the middle of its answer]"}},
	} {
		t.Run(name, func(t *testing.T) {
			backend := serveFrames(t, func(s *frames) {
				for n := 1; ; n++ {
					f, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
					if !ok {
						return
					}
					if n > warm && tc.window == 0 {
						s.drain()
						return
					}
					_ = s.WriteWindowUpdate(f.StreamID, 100)
					d, ok := s.await(http2.FrameData).(*http2.DataFrame)
					switch {
					case !ok:
						return
					case n > warm:
						tc.begins(s, f.StreamID)
						s.drain()
						return
					}
					s.finish(f.StreamID, string(d.Data()))
				}
			}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: tc.window})
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
			h := dialH2(t, startProxy(t, routeTo(u)).addr)
			id := h.warmCalls()
			h.write(h.request(id, head, "hello"))
			h.wantReply(id, tc.want...)
			wantNoLease(t, u)
		})
	}
}

// TestCallsHoldNoBody: calls whose answers continue hold no more memory than requests without a body.
func TestCallsHoldNoBody(t *testing.T) {
	const streams = 8
	holds := func(head []string, pieces ...string) (running, int64) {
		p := h2cTo(t, serveFrames(t, func(s *frames) {
			for {
				id, _ := s.request()
				if id == 0 {
					return
				}
				s.answerPart(id)
			}
		}))
		h := dialH2(t, p.addr)
		for i := range uint32(streams) {
			if len(pieces) == 0 {
				h.ask(2*i+1, true, head...)
			} else {
				h.write(h.request(2*i+1, head, pieces...))
			}
			h.next(func(f http2.Frame) bool { _, ok := f.(*http2.DataFrame); return ok })
		}
		h.ping()
		return p, p.Stats().Buffered
	}
	_, least := holds(plainGet)
	p, _ := holds(callHead, strings.Repeat("x", 4<<10))
	eventually(t, "the bodies are given back", func() bool { return p.Stats().Buffered < least+streams*(4<<10) })
	if p.Stats().Active != 1 {
		t.Error("they were held to the end of the connection")
	}
}

// TestCallsInTheLog: a call without a fiber is logged and counted as the first, which has one.
func TestCallsInTheLog(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		for {
			id, body := s.request()
			if id == 0 {
				return
			}
			s.finish(id, body)
		}
	})
	cfg := routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend))
	lines := &logLines{t: t}
	cfg.AccessLog = &httpproxy.AccessLog{To: lines}
	h := dialH2(t, startProxy(t, cfg).addr)
	for id := uint32(1); id < 2*warm+5; id += 2 {
		h.call(id, "hello")
		h.wantReply(id, finished("hello"))
		wantFields(t, lines.fields(), map[string]any{"method": "POST", "status": 200, "bytes_in": 5, "bytes_out": 5, "protocol": "HTTP/2.0", "retries": 0})
	}
}

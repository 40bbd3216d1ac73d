package httpproxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestGRPCTimeout reads what the specification of gRPC over HTTP/2 allows, and nothing else.
func TestGRPCTimeout(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second, "4m": 4 * time.Millisecond, "5u": 5 * time.Microsecond, "6n": 6,
		"99999999u": 99_999_999 * time.Microsecond, "007S": 7 * time.Second,
		"0S":         1,                        // over at once
		"99999999H":  0,                        // beyond what a Duration can be
		"2000000H":   2_000_000 * time.Hour,    // and within
		"99999999M":  99_999_999 * time.Minute, // likewise
		"100000000n": 0, "": 0, "S": 0, "1": 0, "1s": 0, "-1S": 0, "+1S": 0, "1.5S": 0, " 1S": 0, "1S ": 0, "1_0S": 0, "0xS": 0,
	} {
		if got := httpproxy.GRPCTimeout(value); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

// call calls a gRPC method with a deadline.
func call(t testing.TB, url, timeout string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Grpc-Timeout", timeout)
	resp, _ := doWith(t, clientFor(t, "HTTP/2.0"), req)
	return resp
}

// TestGRPCDeadline: a call ends at its deadline: without an answer, reset by the server that has the same deadline, or
// waiting for a place.
func TestGRPCDeadline(t *testing.T) {
	want := func(t testing.TB, resp *http.Response) {
		t.Helper()
		if code := resp.Header.Get("Grpc-Status"); resp.StatusCode != http.StatusOK || code != "4" {
			t.Errorf("%d, grpc-status %q %q", resp.StatusCode, code, resp.Header.Get("Grpc-Message"))
		}
	}
	t.Run("without an answer", func(t *testing.T) {
		paced(t, func(t testing.TB, unit time.Duration) { // the call is to come to the server before its time is over
			reset := make(chan http2.ErrCode, 1)
			backend := serveFrames(t, func(s *frames) {
				s.request()
				if f, ok := s.await(http2.FrameRSTStream).(*http2.RSTStreamFrame); ok {
					reset <- f.ErrCode
				}
				s.drain()
			})
			want(t, call(t, h2cTo(t, backend).url, fmt.Sprint(unit.Milliseconds(), "m")))
			select {
			case code := <-reset:
				if code != http2.ErrCodeCancel {
					t.Errorf("the server was told %v", code)
				}
			case <-time.After(10 * unit):
				t.Error("the server was told nothing")
			}
		})
	})
	t.Run("reset by the server", func(t *testing.T) {
		backend := serveFrames(t, func(s *frames) {
			id, _ := s.request()
			<-time.After(100 * time.Millisecond) // its deadline
			_ = s.WriteRSTStream(id, http2.ErrCodeCancel)
			s.drain()
		})
		want(t, call(t, h2cTo(t, backend).url, "100m"))
	})
	t.Run("waiting", func(t *testing.T) {
		came := make(chan struct{})
		backend := serveFrames(t, func(s *frames) {
			s.request()
			close(came)
			s.drain()
		})
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{
			Protocol: httpproxy.ProtocolH2C, Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: time.Hour}},
		}, backend)
		p := startProxy(t, routeTo(u))
		first := clientFor(t, "HTTP/2.0")
		go func() {
			if resp, err := first.Get(p.url); err == nil {
				_ = resp.Body.Close()
			}
		}()
		<-came
		want(t, call(t, p.url, "50m"))
	})
}

// TestGRPCDeadlineOfAnAnswer: a call whose time is over while its client does not take the answer ends with that status, as one does
// whose server is too slow. It is not counted as a client that has left.
func TestGRPCDeadlineOfAnAnswer(t *testing.T) { paced(t, deadlineOfAnAnswer) }

func deadlineOfAnAnswer(t testing.TB, unit time.Duration) {
	backend := serveFrames(t, func(s *frames) {
		id, _ := s.request()
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		_ = s.WriteData(id, false, []byte("more than the client takes"))
		s.drain()
	})
	lines := &logLines{t: t}
	cfg := routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend))
	cfg.AccessLog = &httpproxy.AccessLog{To: lines}
	h := dialH2(t, startProxy(t, cfg).addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4})
	h.ask(1, true, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", "a", "content-type", "application/grpc", "grpc-timeout", fmt.Sprint(3*unit.Milliseconds(), "m"))
	content, end := "", h.next(func(f http2.Frame) bool { return f.Header().StreamID == 1 && f.Header().Type == http2.FrameHeaders })
	for end != nil && !end.(*http2.MetaHeadersFrame).StreamEnded() {
		end = h.next(func(f http2.Frame) bool {
			if data, ok := f.(*http2.DataFrame); ok {
				content += string(data.Data())
			}
			reset, ok := f.(*http2.RSTStreamFrame)
			if ok {
				t.Fatalf("after %q: reset by %v", content, reset.ErrCode)
			}
			return f.Header().StreamID == 1 && f.Header().Type == http2.FrameHeaders
		})
	}
	if got := fmt.Sprint(end.(*http2.MetaHeadersFrame).Fields); content != "more" || !strings.Contains(got, `"grpc-status" = "4"`) {
		t.Errorf("%q, then %s", content, got)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 200, "reason": "timeout"})
}

// TestGRPCCallThatGrowsTooLong: the answer has begun when the call becomes longer than allowed.
func TestGRPCCallThatGrowsTooLong(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		id := s.await(http2.FrameHeaders).Header().StreamID
		s.fields(id, false, ":status", "200", "content-type", "application/grpc")
		_ = s.WriteData(id, false, []byte("some"))
		s.drain()
	})
	cfg := routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend))
	cfg.Routes[0].MaxBody = 10
	h := dialH2(t, startProxy(t, cfg).addr)
	h.ask(1, false, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", "a", "content-type", "application/grpc")
	h.next(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData })
	_ = h.WriteData(1, false, []byte("more than that"))
	end := h.next(func(f http2.Frame) bool {
		return f.Header().StreamID == 1 && (f.Header().Type == http2.FrameHeaders || f.Header().Type == http2.FrameRSTStream)
	})
	if got := fmt.Sprint(end); !strings.Contains(got, "HEADERS") || !strings.Contains(fmt.Sprint(end.(*http2.MetaHeadersFrame).Fields), `"grpc-status" = "8"`) {
		t.Errorf("the call ends with %s", got)
	}
}

// TestGRPCDeadlineOfAnInterimAnswer: the time of a call ends while an interim answer waits for a client that reads nothing.
func TestGRPCDeadlineOfAnInterimAnswer(t *testing.T) {
	over := make(chan struct{})
	backend := serveFrames(t, func(s *frames) {
		id, _ := s.request()
		s.fields(id, false, ":status", "103", "link", "</a>; rel=preload")
		if s.await(http2.FrameRSTStream) != nil {
			close(over)
		}
		s.drain()
	})
	var sent atomic.Int64
	large := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 256 {
			n, _ := w.Write(make([]byte, 32<<10))
			sent.Add(int64(n))
		}
	})
	lines := &logLines{t: t}
	cfg := routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend))
	cfg.Routes = append(cfg.Routes, httpproxy.Route{Path: "/large", Upstream: newUpstream(t, large), NoAccessLog: true})
	cfg.AccessLog = &httpproxy.AccessLog{To: lines}
	h := dialH2(t, startProxy(t, cfg).addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	h.do(0, h.WriteWindowUpdate(0, 1<<30))
	const call = 17
	for id := uint32(1); id < call; id += 2 {
		h.ask(id, true, ":method", "GET", ":scheme", "http", ":path", "/large", ":authority", "a")
	}
	for before := int64(-1); before < sent.Load() || before == 0; { // until the gateway has no room for more
		before = sent.Load()
		<-time.After(300 * time.Millisecond)
	}
	h.ask(call, true, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", "a", "content-type", "application/grpc", "grpc-timeout", "300m")
	select {
	case <-over:
	case <-time.After(patience / 8): // a busy gateway has no time left to ask the server
	}
	end := h.next(func(f http2.Frame) bool {
		head, ok := f.(*http2.MetaHeadersFrame)
		return f.Header().StreamID == call && (!ok || head.StreamEnded())
	})
	if got := fmt.Sprint(end); !strings.Contains(got, "HEADERS") || !strings.Contains(fmt.Sprint(end.(*http2.MetaHeadersFrame).Fields), `"grpc-status" = "4"`) {
		t.Errorf("the call ends with %s", got)
	}
	wantFields(t, lines.fields(), map[string]any{"status": 504, "reason": "timeout"})
}

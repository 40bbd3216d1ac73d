package httpproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
)

// These tests are about what HTTP/2 servers may do that net/http's does not. Each defines its server frame by frame.

// frames is the server's side of a connection.
type frames struct {
	*http2.Framer
	net.Conn
	number int // of the connection, from 1
}

// serveFrames starts a server that sends settings, and then passes each connection to f.
func serveFrames(t testing.TB, f func(*frames), settings ...http2.Setting) string {
	t.Helper()
	var conns atomic.Int64
	return serveRaw(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		s := &frames{Framer: http2.NewFramer(c, c), Conn: c, number: int(conns.Add(1))}
		s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		if s.WriteSettings(settings...) == nil {
			f(s)
		}
	})
}

// await reads up to the next frame of one of the types; nil = the connection is over.
func (s *frames) await(types ...http2.FrameType) http2.Frame {
	for {
		f, err := s.ReadFrame()
		if err != nil {
			return nil
		}
		if f, ok := f.(*http2.SettingsFrame); ok && !f.IsAck() && s.WriteSettingsAck() != nil {
			return nil
		}
		for _, t := range types {
			if f.Header().Type == t {
				return f
			}
		}
	}
}

// request reads the next request up to its end, and returns its stream; 0 = the connection is over.
func (s *frames) request() (id uint32, body string) {
	for {
		switch f := s.await(http2.FrameHeaders, http2.FrameData).(type) {
		case *http2.MetaHeadersFrame:
			if id = f.StreamID; f.StreamEnded() {
				return id, body
			}
		case *http2.DataFrame:
			if body += string(f.Data()); f.StreamEnded() {
				return id, body
			}
		default:
			return 0, ""
		}
	}
}

// fields sends a block; the pairs are names and values.
func (s *frames) fields(id uint32, ends bool, pairs ...string) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(pairs); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	piece := b.Next(16 << 10)
	_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: piece, EndHeaders: b.Len() == 0, EndStream: ends})
	for b.Len() > 0 {
		piece = b.Next(16 << 10)
		_ = s.WriteContinuation(id, b.Len() == 0, piece)
	}
}

// answer answers a request.
func (s *frames) answer(id uint32, body string) {
	s.fields(id, false, ":status", "200")
	_ = s.WriteData(id, true, []byte(body))
}

// drain reads until the connection is over.
func (s *frames) drain() { _ = s.await() }

func h2cTo(t testing.TB, addr string) running {
	t.Helper()
	return startProxy(t, routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, addr)))
}

// pieces is a body that arrives in pieces; next sends one, and "" ends it.
func pieces() (body io.Reader, next func(string)) {
	r, w := io.Pipe()
	return r, func(s string) {
		if s == "" {
			_ = w.Close()
			return
		}
		_, _ = io.WriteString(w, s)
	}
}

// TestServerHTTP2GivesRequestsBack by GOAWAY or REFUSED_STREAM: they are sent again, whatever their method, on this
// connection or another.
func TestServerHTTP2GivesRequestsBack(t *testing.T) {
	for name, giveBack := range map[string]func(s *frames, id uint32){
		"GOAWAY":         func(s *frames, id uint32) { _ = s.WriteGoAway(id-2, http2.ErrCodeNo, nil) },
		"REFUSED_STREAM": func(s *frames, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
	} {
		for kind, length := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": false, "HTTP/1.1 with a length": true, "HTTP/2.0 with a length": true} {
			t.Run(name+" "+kind, func(t *testing.T) {
				given := atomic.Bool{}
				backend := serveFrames(t, func(s *frames) {
					for {
						id, body := s.request()
						switch {
						case id == 0:
							return
						case body != "first" && !given.Swap(true):
							giveBack(s, id)
						default:
							s.answer(id, body)
						}
					}
				})
				p := h2cTo(t, backend)
				client := clientFor(t, kind[:len("HTTP/1.1")])
				for _, want := range []string{"first", "second", "third"} {
					body, next := pieces()
					go func() {
						next(want[:2])
						next(want[2:])
						next("")
					}()
					req, err := http.NewRequest(http.MethodPost, p.url, body)
					if err != nil {
						t.Fatal(err)
					}
					if length {
						req.ContentLength = int64(len(want))
					}
					if resp, got := doWith(t, client, req); resp.StatusCode != 200 || got != want {
						t.Errorf("%d %q, want %q", resp.StatusCode, got, want)
					}
				}
			})
		}
	}
}

// TestServerHTTP2RefusesAll: a request that is always refused gets an answer in the end, and many requests share a bound
// of repetitions.
func TestServerHTTP2RefusesAll(t *testing.T) {
	const requests, attempts = 30, 9
	var refused atomic.Int64
	backend := serveFrames(t, func(s *frames) {
		for {
			id, _ := s.request()
			if id == 0 {
				return
			}
			refused.Add(1)
			_ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream)
		}
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
	p := startProxy(t, routeTo(u))
	for range requests {
		if resp, body := get(t, p.url); resp.StatusCode != http.StatusBadGateway {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
	}
	if e := u.Status().Endpoints[0]; e.Stale != 0 || e.Failures != 0 {
		t.Errorf("%d stale connections and %d failures were counted: %v", e.Stale, e.Failures, e.LastError)
	}
	if n := refused.Load(); n < requests || n > requests*attempts/2 {
		t.Errorf("%d requests were sent %d times", requests, n)
	}
}

// TestServerHTTP2AllAtOnce: an interim head, the final one and content may arrive in one piece, also of an answer that is
// dropped for another try.
func TestServerHTTP2AllAtOnce(t *testing.T) {
	for name, length := range map[string][]string{"with a length": {"content-length", "5"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			backend := serveFrames(t, func(s *frames) {
				for {
					id, _ := s.request()
					if id == 0 {
						return
					}
					status, body := "200", "right"
					if asked.Add(1)%2 == 1 {
						status, body = "503", "wrong"
					}
					var piece bytes.Buffer
					all := frames{Framer: http2.NewFramer(&piece, nil)}
					all.fields(id, false, ":status", "103", "link", "</a>")
					all.fields(id, false, append([]string{":status", status}, length...)...)
					_ = all.WriteData(id, true, []byte(body))
					_, _ = s.Write(piece.Bytes())
				}
			})
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
				Upstream: u, Retries: httpproxy.Retries{On: []httpproxy.Failure{httpproxy.Failed503}},
			}}})
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				for range 3 {
					req, err := http.NewRequest("GET", p.url, nil)
					if err != nil {
						t.Fatal(err)
					}
					if resp, body := doWith(t, clientFor(t, proto), req); resp.StatusCode != 200 || body != "right" {
						t.Errorf("%s: %d %q", proto, resp.StatusCode, body)
					}
				}
			}
		})
	}
}

// TestServerHTTP2LeavesInTheMiddle: requests that it has begun before GOAWAY are served to their end.
func TestServerHTTP2LeavesInTheMiddle(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		id, _ := s.request()
		if s.number > 1 {
			s.answer(id, "new")
			s.drain()
			return
		}
		s.fields(id, false, ":status", "200")
		_ = s.WriteData(id, false, []byte("half, "))
		_ = s.WriteGoAway(id, http2.ErrCodeNo, nil)
		_ = s.WriteData(id, true, []byte("whole"))
		s.drain()
	})
	p := h2cTo(t, backend)
	for _, want := range []string{"half, whole", "new"} {
		if _, body := get(t, p.url); body != want {
			t.Errorf("%q, want %q", body, want)
		}
	}
}

// TestServerHTTP2Silent: a connection whose server answers no PING is closed, with its requests; one that answers is not.
func TestServerHTTP2Silent(t *testing.T) {
	for name, lives := range map[string]bool{"dead": false, "slow": true} {
		t.Run(name, func(t *testing.T) { paced(t, func(t testing.TB, unit time.Duration) { silentServer(t, unit, lives) }) })
	}
}

func silentServer(t testing.TB, unit time.Duration, lives bool) {
	over := make(chan struct{})
	backend := serveFrames(t, func(s *frames) {
		if !lives {
			defer close(over)
		}
		id, _ := s.request()
		ping, ok := s.await(http2.FramePing).(*http2.PingFrame)
		if !ok {
			t.Error("no PING")
			return
		}
		if !lives {
			if s.await(http2.FrameGoAway) == nil {
				t.Error("no GOAWAY")
			}
			return
		}
		_ = s.WritePing(true, ping.Data)
		s.answer(id, "late")
		s.drain()
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C, PingAfter: 3 * unit}, backend)
	p := startProxy(t, routeTo(u))
	resp, err := http.Post(p.url, "", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if want := map[bool]int{true: 200, false: 502}[lives]; resp.StatusCode != want {
		t.Errorf("%d %q, want %d", resp.StatusCode, body, want)
	}
	if !lives {
		<-over
	}
}

// TestServerHTTP2Dies with requests under way: those that may be sent again are, on another connection; the others get 502.
func TestServerHTTP2Dies(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		for s.number > 1 {
			id, _ := s.request()
			if id == 0 {
				return
			}
			s.answer(id, "again")
		}
		for range 2 {
			s.request()
		}
	})
	p := h2cTo(t, backend)
	var all sync.WaitGroup
	for method, want := range map[string]string{"GET": "200 again", "POST": "502 "} {
		all.Go(func() {
			req, err := http.NewRequest(method, p.url, nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if got := fmt.Sprintf("%d %s", resp.StatusCode, body); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q, want %q", method, got, want)
			}
		})
	}
	all.Wait()
}

var long = strings.Repeat("x", 40_000)

// malformedAnswers break a rule each, of a stream or of the whole connection.
var malformedAnswers = map[string]struct {
	answer func(s *frames, id uint32)
	whole  bool // the connection ends
}{
	"no status":         {func(s *frames, id uint32) { s.fields(id, true, "a", "b") }, false},
	"101":               {func(s *frames, id uint32) { s.fields(id, true, ":status", "101") }, false},
	"two statuses":      {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", ":status", "200") }, false},
	"status of words":   {func(s *frames, id uint32) { s.fields(id, true, ":status", "+20") }, false},
	"pseudo field late": {func(s *frames, id uint32) { s.fields(id, true, "a", "b", ":status", "200") }, false},
	"pseudo field":      {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", ":path", "/") }, false},
	"capitals":          {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "Abc", "b") }, false},
	"name with a blank": {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "a b", "b") }, false},
	"line in a value":   {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "a", "b\r\nc: d") }, false},
	"connection":        {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "connection", "close") }, false},
	"chunked":           {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "transfer-encoding", "chunked") }, false},
	"two lengths": {func(s *frames, id uint32) {
		s.fields(id, true, ":status", "200", "content-length", "0", "content-length", "1")
	}, false},
	"length without body": {func(s *frames, id uint32) { s.fields(id, true, ":status", "200", "content-length", "5") }, false},
	"interim that ends":   {func(s *frames, id uint32) { s.fields(id, true, ":status", "103") }, false},
	"body before head":    {func(s *frames, id uint32) { _ = s.WriteData(id, true, []byte("x")) }, false},
	"large head": {func(s *frames, id uint32) {
		s.fields(id, true, ":status", "200", "a", long, "b", long, "c", long, "d", long, "e", long, "f", long, "g", long)
	}, false},
	"window of nothing":  {func(s *frames, id uint32) { _ = s.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4)) }, false},
	"window too large":   {func(s *frames, id uint32) { _ = s.WriteWindowUpdate(id, 1<<31-1) }, false},
	"reset":              {func(s *frames, id uint32) { _ = s.WriteRSTStream(id, http2.ErrCodeInternal) }, false},
	"stream of its own":  {func(s *frames, _ uint32) { s.fields(2, true, ":status", "200") }, true},
	"stream not begun":   {func(s *frames, id uint32) { s.fields(id+2, true, ":status", "200") }, true},
	"body not asked for": {func(s *frames, id uint32) { _ = s.WriteData(id+2, true, nil) }, true},
	"push": {func(s *frames, id uint32) {
		_ = s.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, EndHeaders: true})
	}, true},
	"frame too large": {func(s *frames, id uint32) { _ = s.WriteRawFrame(http2.FrameData, 0, id, make([]byte, 16<<10+1)) }, true},
	"compression": {func(s *frames, id uint32) {
		_ = s.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, id, []byte{0xff, 0xff, 0xff})
	}, true},
	"continuation alone": {func(s *frames, id uint32) { _ = s.WriteContinuation(id, true, nil) }, true},
	"block broken off": {func(s *frames, id uint32) {
		_ = s.WriteRawFrame(http2.FrameHeaders, 0, id, nil)
		_ = s.WritePing(false, [8]byte{})
	}, true},
	"padding too long": {func(s *frames, id uint32) {
		_ = s.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, id, []byte{5, 0})
	}, true},
	"short SETTINGS":       {func(s *frames, _ uint32) { _ = s.WriteRawFrame(http2.FrameSettings, 0, 0, []byte{1}) }, true},
	"SETTINGS of a stream": {func(s *frames, id uint32) { _ = s.WriteRawFrame(http2.FrameSettings, 0, id, nil) }, true},
	"push in SETTINGS":     {func(s *frames, _ uint32) { _ = s.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1}) }, true},
	"window in SETTINGS": {func(s *frames, _ uint32) {
		_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
	}, true},
	"window of all":    {func(s *frames, _ uint32) { _ = s.WriteWindowUpdate(0, 1<<31-1) }, true},
	"short PING":       {func(s *frames, _ uint32) { _ = s.WriteRawFrame(http2.FramePing, 0, 0, []byte{1}) }, true},
	"short RST_STREAM": {func(s *frames, id uint32) { _ = s.WriteRawFrame(http2.FrameRSTStream, 0, id, []byte{1}) }, true},
	"short GOAWAY":     {func(s *frames, _ uint32) { _ = s.WriteRawFrame(http2.FrameGoAway, 0, 0, []byte{1}) }, true},
	"PINGs without end": {func(s *frames, _ uint32) {
		for s.WritePing(false, [8]byte{}) == nil {
		}
	}, true},
	"fields without end": {func(s *frames, id uint32) {
		_ = s.WriteRawFrame(http2.FrameHeaders, 0, id, nil)
		for s.WriteContinuation(id, false, nil) == nil {
		}
	}, true},
}

// TestServerHTTP2Malformed: malformed answers end with 502. The connection serves others if the violated rule is a
// stream's.
func TestServerHTTP2Malformed(t *testing.T) {
	for name, tc := range malformedAnswers {
		t.Run(name, func(t *testing.T) {
			backend := serveFrames(t, func(s *frames) {
				s.AllowIllegalWrites = true
				id, _ := s.request()
				if s.number == 1 {
					tc.answer(s, id)
					if id, _ = s.request(); (id == 0) != tc.whole {
						t.Errorf("the connection ended: %t", id == 0)
					}
				}
				if id != 0 {
					s.answer(id, "well")
					s.drain()
				}
			})
			p := h2cTo(t, backend)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusBadGateway && err == nil {
				t.Errorf("%d %.50q", resp.StatusCode, body)
			}
			if resp, body := get(t, p.url); resp.StatusCode != 200 || body != "well" {
				t.Errorf("afterwards: %d %q", resp.StatusCode, body)
			}
		})
	}
}

// TestServerHTTP2Windows: bodies go both ways however small the server's windows are, and no window is exceeded.
func TestServerHTTP2Windows(t *testing.T) {
	const size = 3000
	backend := serveFrames(t, func(s *frames) {
		head, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
		if !ok {
			return
		}
		id, got := head.StreamID, 0
		for allowed := 0; got < size; {
			if got == allowed {
				_ = s.WriteWindowUpdate(id, 7)
				allowed += 7
			}
			d, ok := s.await(http2.FrameData).(*http2.DataFrame)
			if !ok {
				t.Error("no more")
				return
			}
			if got += len(d.Data()); got > allowed {
				t.Errorf("%d bytes of %d", got, allowed)
			}
		}
		s.answer(id, fmt.Sprint(got))
		s.drain()
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	p := h2cTo(t, backend)
	req, err := http.NewRequest(http.MethodPost, p.url, strings.NewReader(strings.Repeat("x", size)))
	if err != nil {
		t.Fatal(err)
	}
	if _, body := do(t, req); body != fmt.Sprint(size) {
		t.Errorf("%q", body)
	}
}

// TestServerHTTP2AnswersEarly, without the rest of the request: the client gets the answer.
func TestServerHTTP2AnswersEarly(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		for {
			head, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
			if !ok {
				return
			}
			s.answer(head.StreamID, "enough")
			_ = s.WriteRSTStream(head.StreamID, http2.ErrCodeNo)
		}
	})
	p := h2cTo(t, backend)
	client := clientFor(t, "HTTP/2.0")
	for range 3 {
		body, _ := pieces() // which never ends
		resp, err := client.Post(p.url, "", body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "enough" {
			t.Errorf("%q, %v", got, err)
		}
		_ = resp.Body.Close()
	}
}

// TestServerHTTP2Streams: SETTINGS bound the requests on a connection, also when they come late.
func TestServerHTTP2Streams(t *testing.T) {
	const requests = 6
	var here sync.WaitGroup
	here.Add(requests)
	var conns atomic.Int64
	backend := serveFrames(t, func(s *frames) {
		conns.Add(1)
		id, _ := s.request()
		if id == 0 {
			return
		}
		here.Done()
		here.Wait()
		s.answer(id, "one")
		s.drain()
	}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	p := h2cTo(t, backend)
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			resp, err := http.Get(p.url)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); string(body) != "one" {
				t.Errorf("%q, %v", body, err)
			}
		})
	}
	all.Wait()
	if n := conns.Load(); n != requests {
		t.Errorf("%d connections", n)
	}
}

// TestServerHTTP2Cancelled: a client that leaves ends its stream with the server, and no other.
func TestServerHTTP2Cancelled(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			came, left := make(chan struct{}), make(chan error, 1)
			backend := serveFrames(t, func(s *frames) {
				s.request()
				came <- struct{}{}
				reset, ok := s.await(http2.FrameRSTStream).(*http2.RSTStreamFrame)
				if !ok || reset.ErrCode != http2.ErrCodeCancel {
					left <- errors.New("no reset")
					return
				}
				left <- nil
				id, _ := s.request()
				s.answer(id, fmt.Sprint(s.number))
				s.drain()
			})
			p := h2cTo(t, backend)
			client := clientFor(t, proto)
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			over := make(chan struct{})
			go func() {
				defer close(over)
				if resp, err := client.Do(req); err == nil {
					_ = resp.Body.Close()
				}
			}()
			<-came
			cancel()
			<-over
			if err := <-left; err != nil {
				t.Error(err)
			}
			if _, body := get(t, p.url); body != "1" {
				t.Errorf("connection %s", body)
			}
		})
	}
}

// TestServerHTTP2SlowClient: a client that does not read its answer delays no other.
func TestServerHTTP2SlowClient(t *testing.T) {
	b := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			for piece := make([]byte, 64<<10); ; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}
		_, _ = io.Copy(w, r.Body)
	})
	p := startProxy(t, routeTo(b.upstream(t, httpproxy.ProtocolH2C)))
	for range 5 {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
		if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.Repeat("x", 4<<20)
	req, err := http.NewRequest(http.MethodPost, p.url, strings.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	if _, got := do(t, req); got != want {
		t.Errorf("%d bytes", len(got))
	}
	if n := b.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestServerOfHTTP1 where HTTP/2 is expected: the answer is 502, and the log says why.
func TestServerOfHTTP1(t *testing.T) {
	plain := serveHTTP(t, func(http.ResponseWriter, *http.Request) {})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, plain)
	p := startProxy(t, routeTo(u))
	if resp, body := get(t, p.url); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	if s := u.Status().Endpoints[0]; !strings.Contains(s.LastError, "HTTP/1") {
		t.Errorf("the endpoint's error is %q", s.LastError)
	}
	secure := serveHTTP2(t, func(http.ResponseWriter, *http.Request) {}, "http/1.1")
	u = secure.upstream(t, httpproxy.ProtocolH2)
	p = startProxy(t, routeTo(u))
	if resp, body := get(t, p.url); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
}

// TestInterimBesideContent: interim answers that arrive together with the final one, and with more content than a buffer holds, are
// no failure of the server.
func TestInterimBesideContent(t *testing.T) {
	content := strings.Repeat("0123456789", 4000)
	backend := serveFrames(t, func(s *frames) {
		for {
			id, _ := s.request()
			if id == 0 {
				return
			}
			var all bytes.Buffer
			one := &frames{Framer: http2.NewFramer(&all, nil)}
			one.fields(id, false, ":status", "103", "link", "</a>")
			one.fields(id, false, ":status", "103", "link", "</b>")
			one.fields(id, false, ":status", "200")
			for left := content; left != ""; {
				n := min(len(left), 16<<10)
				_ = one.WriteData(id, n == len(left), []byte(left[:n]))
				left = left[n:]
			}
			if _, err := s.Conn.Write(all.Bytes()); err != nil {
				return
			}
		}
	})
	p := h2cTo(t, backend)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for i := range 20 {
			req, err := http.NewRequest(http.MethodPost, p.url, strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			if resp, body := doWith(t, client, req); resp.StatusCode != http.StatusOK || body != content {
				t.Fatalf("%s, request %d: %s, %d bytes", proto, i, resp.Status, len(body))
			}
		}
	}
}

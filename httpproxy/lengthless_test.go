package httpproxy_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"math"
	"net/http"
	"testing"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// TestBodiesWithoutLength: content, end and trailers pass in both directions, between all versions, whether the end comes with the last
// content or later.
func TestBodiesWithoutLength(t *testing.T) {
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		arrived := make(chan struct{}, 1)
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, func(w http.ResponseWriter, r *http.Request) {
			var size int64
			_, _ = fmt.Sscan(r.Header.Get("Size"), &size)
			body, _ := io.ReadAll(io.LimitReader(r.Body, size))
			arrived <- struct{}{}
			more, err := io.ReadAll(r.Body)
			w.Header().Set("Trailer", "Seen, Missing")
			later := r.Header.Get("Later") != ""
			if later {
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = w.Write(body)
			_ = http.NewResponseController(w).Flush()
			if later {
				<-arrived // the client has the content
			}
			w.Header().Set("Seen", fmt.Sprintf("%d+%d %v %s %d", len(body), len(more), err, r.Trailer.Get("Check"), r.ContentLength))
		}))
		p := startProxy(t, routeTo(u))
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, size := range []int{0, 1, 4000, 8 << 10, 16<<10 - 1, 16 << 10, 40_000, 300_000} {
				for _, later := range []bool{false, true} {
					for _, check := range []string{"", "checked"} {
						name := fmt.Sprintf("%s to %v, %d bytes, end later: %v, trailer %q", proto, protocol, size, later, check)
						content := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
						body, client := io.Pipe()
						r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, body)
						r.Header.Set("Size", fmt.Sprint(size))
						if check != "" {
							r.Trailer = http.Header{"Check": {check}}
						}
						if later {
							r.Header.Set("Later", "yes")
						}
						go func() {
							_, _ = client.Write(content)
							if later {
								<-arrived
							}
							_ = client.Close()
						}()
						resp, err := clientFor(t, proto).Do(r)
						if err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						got := make([]byte, size)
						_, err = io.ReadFull(resp.Body, got)
						if later {
							arrived <- struct{}{}
						} else {
							<-arrived
						}
						rest, endErr := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						if err != nil && size > 0 || !bytes.Equal(got, content) || len(rest) > 0 || endErr != nil {
							t.Errorf("%s: the answer's body: %d bytes (%v), %d more (%v)", name, len(got), err, len(rest), endErr)
						}
						if want := fmt.Sprintf("%d+0 <nil> %s -1", size, check); resp.Trailer.Get("Seen") != want || resp.ContentLength != -1 {
							t.Errorf("%s: the server has seen %q, want %q; a length of %d", name, resp.Trailer.Get("Seen"), want, resp.ContentLength)
						}
					}
				}
			}
		}
	}
}

// TestServerClosedBehindEnd: the connection of an answer that has come whole is closed before the client has got all of it, because the
// body of the request turns out to be too long. The client never gets a part of the answer as if it were the whole.
func TestServerClosedBehindEnd(t *testing.T) {
	const first, plug, size, window = 21_576, 4_000, 225_576, 23_576 // so that the compressor yields between two pieces of a buffer
	content := make([]byte, size)
	_, _ = rand.Read(content)
	passed, blocked, come := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	backend := serveFrames(t, func(s *frames) {
		for {
			head, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
			if !ok {
				return
			}
			s.fields(head.StreamID, false, ":status", "200", "content-type", "text/plain")
			_ = s.WriteData(head.StreamID, false, content[:first/2])
			_ = s.WriteData(head.StreamID, false, content[first/2:first])
			waitOrEnd(t, passed)
			_ = s.WriteData(head.StreamID, false, content[first:first+plug])
			waitOrEnd(t, blocked)
			for rest := content[first+plug:]; len(rest) > 0; {
				n := min(len(rest), 10_000)
				_ = s.WriteData(head.StreamID, n == len(rest), rest[:n])
				rest = rest[n:]
			}
			_ = s.WritePing(false, [8]byte{})
			s.await(http2.FramePing)
			come <- struct{}{}
		}
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, MaxBody: 10, Compression: &httpproxy.Compression{}}}})
	for range 30 {
		h := dialH2(t, p.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
		h.ask(1, false, ":method", "POST", ":scheme", "http", ":authority", "a", ":path", "/", "accept-encoding", "gzip")
		var got []byte
		ended, reset := false, false
		take := func(until int) {
			h.next(func(f http2.Frame) bool {
				switch f := f.(type) {
				case *http2.DataFrame:
					got = append(got, f.Data()...)
					ended = f.StreamEnded()
				case *http2.RSTStreamFrame:
					reset = true
				}
				return ended || reset || len(got) >= until
			})
		}
		take(first)
		passed <- struct{}{}
		take(window)
		blocked <- struct{}{}
		waitOrEnd(t, come)
		h.do(0, h.WriteWindowUpdate(0, 1<<20))
		h.do(0, h.WriteWindowUpdate(1, 1<<20))
		take(window + 1)
		h.do(0, h.WriteData(1, false, make([]byte, 20)))
		take(math.MaxInt)
		if !ended {
			continue
		}
		r, err := gzip.NewReader(bytes.NewReader(got))
		if err != nil {
			t.Fatal(err)
		}
		if whole, err := io.ReadAll(r); err != nil || !bytes.Equal(whole, content) {
			t.Fatalf("the answer has ended after %d bytes of %d (%v)", len(whole), size, err)
		}
	}
}

// waitOrEnd waits for c, or for the end of the test.
func waitOrEnd(t *testing.T, c <-chan struct{}) {
	select {
	case <-c:
	case <-t.Context().Done():
	}
}

// TestEmptyBodiesHoldNoMemory: requests whose bodies have no length, and turn out to be empty, wait for their answers without a buffer.
func TestEmptyBodiesHoldNoMemory(t *testing.T) {
	const streams = 20
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		asked := make(chan string, streams)
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			asked <- fmt.Sprintf("%q %v %d", body, err, r.ContentLength)
			waitOrEnd(t, r.Context().Done())
		}))
		p := startProxy(t, routeTo(u))
		h := dialH2(t, p.addr)
		for i := range uint32(streams) {
			h.ask(2*i+1, false, ":method", "POST", ":scheme", "http", ":authority", "a", ":path", "/")
			h.do(0, h.WriteData(2*i+1, true, nil))
		}
		for range streams {
			if got := <-asked; got != `"" <nil> -1` {
				t.Errorf("%v: the server has got %s", protocol, got)
			}
		}
		eventually(t, "little is held for the waiting client", func() bool {
			s := p.Stats()
			return s.Active == 1 && s.Buffered < streams*(4<<10)
		})
		_ = h.c.Close()
	}
}

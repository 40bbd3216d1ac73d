package httpproxy_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// dialDeaf connects a client that opens its windows and never reads.
func dialDeaf(t testing.TB, addr string) *h2Client {
	h := dialH2(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	h.do(0, h.WriteWindowUpdate(0, 1<<30))
	return h
}

// TestHTTP2DeafClientLargeHead: the answer to a head that is too large waits for a client that reads nothing, and ends
// with it.
func TestHTTP2DeafClientLargeHead(t *testing.T) {
	piece := make([]byte, 1<<20)
	var asked, flowing atomic.Int64
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		for range 64 {
			if _, err := w.Write(piece); err != nil {
				return
			}
			flowing.Add(1)
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialDeaf(t, p.addr)
	h.ask(1, true, plainGet...)
	h.ask(3, true, plainGet...)
	was := int64(-1)
	eventually(t, "the client's buffers are full", func() bool {
		now := flowing.Load()
		defer func() { was = now }()
		if asked.Load() < 2 || now == 0 || now != was {
			return false
		}
		for range 2000 { // as good as forever
			if flowing.Load() != now {
				return false
			}
		}
		return true
	})
	block := h.fields(append(plainGet, "a", strings.Repeat("a", 30000), "b", strings.Repeat("b", 40000))...)
	h.do(0, h.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: block[:16<<10], EndStream: true}))
	for block = block[16<<10:]; len(block) > 0; {
		n := min(len(block), 16<<10)
		h.do(0, h.WriteContinuation(5, n == len(block), block[:n]))
		block = block[n:]
	}
	h.c.Close()
	eventually(t, "the connection ends", func() bool { return p.Stats().Active == 0 })
}

// TestHTTP2UnreadUploads: unread uploads do not affect other streams.
func TestHTTP2UnreadUploads(t *testing.T) {
	asked := make(chan struct{})
	stuck := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	one := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: patience}}}, stuck)
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/stuck", Upstream: one}, {Path: "/", Upstream: newUpstream(t, backend)}}})
	h := dialH2(t, p.addr)
	to := func(method, path string) []string {
		return []string{":method", method, ":scheme", "http", ":path", path, ":authority", "a"}
	}
	h.ask(1, true, to("GET", "/stuck")...)
	<-asked
	room := map[uint32]int64{0: 1 << 20} // of the connection and of streams
	send := func(id uint32, total int64, ends bool) {
		for sent := int64(0); sent < total; {
			n := min(total-sent, 16<<10, room[0], room[id])
			if n <= 0 {
				f := h.next(func(f http2.Frame) bool { _, ok := f.(*http2.WindowUpdateFrame); return ok }).(*http2.WindowUpdateFrame)
				room[f.StreamID] += int64(f.Increment)
				continue
			}
			sent += n
			room[0] -= n
			room[id] -= n
			h.do(0, h.WriteData(id, ends && sent == total, make([]byte, n)))
		}
	}
	id := uint32(3)
	for ; id < 2*200; id += 2 { // all of them wait for the server's only connection
		h.ask(id, false, to("POST", "/stuck")...)
		room[id] = 65535
		send(id, 65535, false)
	}
	h.ask(id, false, to("POST", "/")...)
	room[id] = 65535
	send(id, 3<<20, true)
	if got := h.outcome(id); got != fmt.Sprint("200 ", 3<<20) {
		t.Errorf("got %q", got)
	}
}

// TestHTTP2WindowsAreExact: after many bodies the client has got credit for what it sent, and no more.
func TestHTTP2WindowsAreExact(t *testing.T) {
	backend := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	const all, piece, pieces = 1 << 20, 10000, 6 // what a stream may send at once
	room := int64(all)                           // of the connection
	for id := uint32(1); id < 200; id += 2 {
		h.ask(id, false, plainPost...)
		for i := range pieces {
			h.do(0, h.WriteDataPadded(id, i == pieces-1, make([]byte, piece), make([]byte, 99)))
			room -= piece + 100
		}
		h.next(func(f http2.Frame) bool {
			if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
				room += int64(w.Increment)
			}
			if r, ok := f.(*http2.RSTStreamFrame); ok {
				t.Fatalf("reset %s", r.ErrCode)
			}
			return f.Header().StreamID == id && f.Header().Flags.Has(http2.FlagHeadersEndStream) && f.Header().Type != http2.FrameWindowUpdate
		})
		if room > all {
			t.Fatalf("%d: room for %d bytes", id, room)
		}
	}
	if room < all/2 {
		t.Errorf("room for %d bytes", room)
	}
}

// TestHTTP2Padding: padding alone uses up no window.
func TestHTTP2Padding(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	h := dialH2(t, p.addr)
	h.ask(1, false, plainPost...)
	room := int64(64<<10 - 1)
	got := func(f http2.Frame) bool { _, ok := f.(*http2.WindowUpdateFrame); return ok }
	for sent := 0; sent < 1<<20; sent += 200 {
		for room < 200 {
			f := h.next(got).(*http2.WindowUpdateFrame)
			if f.StreamID == 1 {
				room += int64(f.Increment)
			}
		}
		h.do(0, h.WriteDataPadded(1, false, nil, make([]byte, 199)))
		room -= 200
	}
	h.do(0, h.WriteData(1, true, []byte("hi")))
	if got := h.outcome(1); got != "200 hi" {
		t.Errorf("got %q", got)
	}
}

// TestHTTP2RapidReset: a client that starts requests only to reset them loses its connection, also if it makes the proxy
// reset them.
func TestHTTP2RapidReset(t *testing.T) {
	for name, giveUp := range map[string]func(h *h2Client, id uint32) error{
		"by the client": func(h *h2Client, id uint32) error { return h.WriteRSTStream(id, http2.ErrCodeCancel) },
		"by the proxy": func(h *h2Client, id uint32) error {
			return h.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4))
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{})
			backend := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
				select {
				case asked <- struct{}{}:
				case <-t.Context().Done():
				}
				<-r.Context().Done()
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			h := dialH2(t, p.addr)
			ended := make(chan string)
			go func() {
				for {
					f, err := h.ReadFrame()
					if f, ok := f.(*http2.GoAwayFrame); ok {
						ended <- f.ErrCode.String()
						return
					}
					if err != nil {
						ended <- err.Error()
						return
					}
				}
			}()
			var err error
			code := ""
			const atOnce = 25 // requests: one after the other they take a starved machine minutes
			for first := uint32(1); first < 10000 && err == nil && code == ""; first += 2 * atOnce {
				_ = h.c.SetDeadline(time.Now().Add(patience))
				last := first + 2*(atOnce-1)
				for id := first; id <= last && err == nil; id += 2 {
					err = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82, 0x86, 0x84, 0x41, 1, 'a'}, EndHeaders: true, EndStream: true})
				}
				for id := first; id <= last && err == nil && code == ""; id += 2 {
					select {
					case <-asked:
					case code = <-ended:
					}
				}
				for id := first; id <= last && err == nil && code == ""; id += 2 {
					err = giveUp(h, id)
				}
			}
			if err == nil && code == "" {
				t.Error("no end to it")
				h.c.Close()
			}
			if code == "" {
				code = <-ended // what cannot be written to has said why, or is about to
			}
			if code != http2.ErrCodeEnhanceYourCalm.String() {
				t.Errorf("got %s", code)
			}
		})
	}
}

// TestHTTP2ManyBodies: checksums of large bodies, both ways at once.
func TestHTTP2ManyBodies(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	client := clientFor(t, "HTTP/2.0")
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			body := bytes.Repeat([]byte(fmt.Sprintf("%07d\n", i)), 1<<15)
			resp, err := client.Post(p.url, "text/plain", struct{ io.Reader }{bytes.NewReader(body)})
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			sum := sha256.New()
			if n, err := io.Copy(sum, resp.Body); err != nil || n != int64(len(body)) {
				t.Errorf("%d bytes, %v", n, err)
			}
			if want := sha256.Sum256(body); !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Error("another body")
			}
		})
	}
	all.Wait()
}

package httpproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headpond/headpond/httpproxy"
)

// leaver is an HTTP/2 client that always has requests under way, until GOAWAY tells it to begin no more.
type leaver struct {
	h     *http2.Framer // guarded by mu
	tag   string
	coder *hpack.Encoder
	block bytes.Buffer
	room  chan struct{} // for each request under way
	some  chan struct{} // closed when some requests have been answered

	mu       sync.Mutex
	asked    uint32            // the last request
	unended  uint32            // a request whose body has not ended; 0 = none
	last     uint32            // of the last GOAWAY
	answers  map[uint32]string // whole ones
	finished chan struct{}
}

func newLeaver(c net.Conn, tag string) *leaver {
	l := &leaver{
		h: http2.NewFramer(c, nil), tag: tag, room: make(chan struct{}, 30), some: make(chan struct{}), last: 1<<31 - 1, answers: make(map[uint32]string), finished: make(chan struct{}),
	}
	l.coder = hpack.NewEncoder(&l.block)
	_, _ = c.Write([]byte(http2.ClientPreface))
	_ = l.h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = l.h.WriteWindowUpdate(0, 1<<30)
	return l
}

func (l *leaver) name(id uint32) string { return fmt.Sprintf("%s-%d", l.tag, id) }

// ask sends requests. The body of each POST ends after the next request's head.
func (l *leaver) ask() {
	for id := uint32(1); ; id += 2 {
		select {
		case l.room <- struct{}{}:
		case <-l.finished:
			return
		}
		if !l.request(id) {
			return
		}
	}
}

// request sends a request; false = no more.
func (l *leaver) request(id uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	more := l.last == 1<<31-1
	if more {
		l.block.Reset()
		method := map[bool]string{true: "GET", false: "POST"}[id%3 == 0]
		for _, f := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"}, {"x-tag", l.name(id)}, {"x-size", strconv.Itoa(int(id) % 700)}} {
			_ = l.coder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		if l.h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: l.block.Bytes(), EndStream: method == "GET", EndHeaders: true}) != nil {
			return false
		}
		l.asked = id
	}
	if l.unended != 0 {
		_ = l.h.WriteData(l.unended, true, []byte("body"))
		l.unended = 0
	}
	if more && id%3 != 0 {
		l.unended = id
	}
	return more
}

// read reads until the connection ends.
func (l *leaver) read(c net.Conn) {
	defer close(l.finished)
	defer c.Close()
	fr := http2.NewFramer(nil, c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	got := make(map[uint32]string)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		l.mu.Lock()
		switch f := f.(type) {
		case *http2.PingFrame:
			_ = l.h.WritePing(true, f.Data)
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = l.h.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			l.last = f.LastStreamID
		case *http2.DataFrame:
			got[f.StreamID] += string(f.Data())
		}
		if id := f.Header().StreamID; f.Header().Type == http2.FrameRSTStream || f.Header().Flags.Has(http2.FlagDataEndStream) && (f.Header().Type == http2.FrameData || f.Header().Type == http2.FrameHeaders) {
			if f.Header().Type != http2.FrameRSTStream {
				l.answers[id] = got[id]
			}
			delete(got, id)
			<-l.room
			if len(l.answers) == 100 {
				close(l.some)
			}
		}
		l.mu.Unlock()
	}
}

// check checks that the requests up to GOAWAY's have been answered, and that the server has seen no other.
func (l *leaver) check(t *testing.T, seen func(tag string) bool) {
	if l.last == 1<<31-1 {
		t.Errorf("%s: no GOAWAY with the last request", l.tag)
	}
	for id := uint32(1); id <= l.asked; id += 2 {
		body := []byte("body")
		if id%3 == 0 {
			body = nil
		}
		answer, ok := l.answers[id]
		switch want := wildAnswer(l.name(id), body, int(id)%700); {
		case id > l.last && (ok || seen(l.name(id))):
			t.Errorf("%s, behind GOAWAY's %d, was answered or seen by the server", l.name(id), l.last)
		case id <= l.last && answer != want:
			t.Errorf("%s, of %d before GOAWAY: %.80q", l.name(id), l.last, answer)
		}
	}
}

// TestHTTP2DrainUnderLoad: of clients that always have requests under way, a drain answers all up to the one that GOAWAY names,
// and begins no other.
func TestHTTP2DrainUnderLoad(t *testing.T) {
	var tags sync.Map
	handler := func(w http.ResponseWriter, r *http.Request) {
		tags.Store(r.Header.Get("X-Tag"), true)
		wildHandler(w, r)
	}
	for name, u := range map[string]func() *httpproxy.Upstream{
		"HTTP/1.1": func() *httpproxy.Upstream { return newUpstream(t, serveHTTP(t, handler)) },
		"HTTP/2":   func() *httpproxy.Upstream { return serveHTTP2(t, handler).upstream(t, httpproxy.ProtocolH2C) },
	} {
		for round := range 4 {
			t.Run(fmt.Sprint(name, round), func(t *testing.T) {
				p := startProxy(t, routeTo(u()))
				var all sync.WaitGroup
				var leavers []*leaver
				for i := range 4 {
					c, err := net.Dial("tcp", p.addr)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(patience))
					l := newLeaver(c, fmt.Sprint(name, round, i))
					leavers = append(leavers, l)
					all.Go(func() { l.read(c) })
					all.Go(l.ask)
				}
				for _, l := range leavers {
					select {
					case <-l.some:
					case <-l.finished:
						t.Fatal("the connection has ended before the drain")
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := p.Drain(ctx); err != nil {
					t.Error(err)
				}
				all.Wait()
				for _, l := range leavers {
					l.check(t, func(tag string) bool { _, ok := tags.Load(tag); return ok })
				}
			})
		}
	}
}

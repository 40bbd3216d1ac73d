package httpproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// wildServer is an HTTP/2 server that does what a server may do, and what it must not, at random: for each request
// something else.
type wildServer struct {
	tame atomic.Bool
	mu   sync.Mutex
	acts map[string]int // how often a request that must not be repeated was acted on, by its tag
	bad  []string
}

// wildConn is a connection of it. One goroutine uses it.
type wildConn struct {
	*frames
	w      *wildServer
	rnd    *rand.Rand
	open   map[uint32]*wildStream
	last   uint32 // streams above are ignored after GOAWAY
	closes bool
}

type wildStream struct {
	method, tag string
	size        int
	body        []byte
}

// wildAnswer is the whole answer to a request.
func wildAnswer(tag string, body []byte, size int) string {
	piece := fmt.Sprintf("%s %d %08x|", tag, len(body), crc32.ChecksumIEEE(body))
	return strings.Repeat(piece, 1+size/len(piece))
}

func (w *wildServer) serve(f *frames) {
	c := &wildConn{frames: f, w: w, rnd: rand.New(rand.NewPCG(uint64(f.number), 7)), open: make(map[uint32]*wildStream), last: 1<<31 - 1} //nolint:gosec // for tests
	for !c.closes || len(c.open) > 0 {
		switch f := f.await(http2.FrameHeaders, http2.FrameData, http2.FrameRSTStream, http2.FramePing).(type) {
		case nil:
			return
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = c.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			delete(c.open, f.StreamID)
		case *http2.MetaHeadersFrame:
			if f.StreamID > c.last {
				continue
			}
			s := &wildStream{}
			for _, field := range f.Fields {
				switch field.Name {
				case ":method":
					s.method = field.Value
				case "x-tag":
					s.tag = field.Value
				case "x-size":
					s.size, _ = strconv.Atoi(field.Value)
				}
			}
			c.open[f.StreamID] = s
			if f.StreamEnded() {
				c.answer(f.StreamID, s)
			} else if !w.tame.Load() && c.rnd.IntN(12) == 0 {
				c.early(f.StreamID, s)
			}
		case *http2.DataFrame:
			n := f.Length
			if n > 0 {
				_ = c.WriteWindowUpdate(0, n)
			}
			s := c.open[f.StreamID]
			if s == nil {
				continue
			}
			s.body = append(s.body, f.Data()...)
			if f.StreamEnded() {
				c.answer(f.StreamID, s)
			} else if n > 0 {
				_ = c.WriteWindowUpdate(f.StreamID, n)
			}
		}
	}
}

// act counts a request that has had an effect.
func (c *wildConn) act(s *wildStream) {
	if s.method != http.MethodPost {
		return
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.w.acts[s.tag]++; c.w.acts[s.tag] > 1 {
		c.w.bad = append(c.w.bad, s.tag)
	}
}

// early answers before the body has come.
func (c *wildConn) early(id uint32, s *wildStream) {
	delete(c.open, id)
	c.act(s)
	c.fields(id, false, ":status", "403", "x-tag", s.tag)
	_ = c.WriteData(id, true, []byte(s.tag))
	if c.rnd.IntN(2) == 0 {
		_ = c.WriteRSTStream(id, http2.ErrCodeNo)
	}
}

func (c *wildConn) answer(id uint32, s *wildStream) {
	delete(c.open, id)
	if c.w.tame.Load() {
		c.content(id, s, "")
		return
	}
	c.noise()
	switch c.rnd.IntN(24) {
	case 0:
		_ = c.WriteRSTStream(id, http2.ErrCodeRefusedStream)
	case 1:
		c.act(s)
		_ = c.WriteRSTStream(id, http2.ErrCodeInternal)
	case 2: // in the middle of the body
		c.act(s)
		c.fields(id, false, ":status", "200", "x-tag", s.tag)
		_ = c.WriteData(id, false, []byte(s.tag))
		_ = c.WriteRSTStream(id, http2.ErrCodeCancel)
	case 3:
		c.content(id, s, "more")
	case 4:
		c.content(id, s, "less")
	case 5: // GOAWAY after this request
		c.goAway(id)
		c.content(id, s, "")
	case 6: // and before it
		c.goAway(max(id, 2) - 2)
	case 7: // in the middle of the body
		c.act(s)
		c.fields(id, false, ":status", "200", "x-tag", s.tag)
		_ = c.WriteData(id, false, []byte(s.tag))
		_ = c.Conn.Close()
	case 8: // trailers only
		c.act(s)
		c.fields(id, true, ":status", "200", "x-tag", s.tag, "x-empty", "1")
	case 9:
		c.fields(id, false, ":status", "103", "link", "</a>; rel=preload")
		c.content(id, s, "")
	case 10: // CONTINUATION without end
		c.act(s)
		_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}})
		for range 2000 {
			if c.WriteContinuation(id, false, nil) != nil {
				break
			}
		}
	case 11:
		for range 300 {
			_ = c.WritePing(false, [8]byte{})
		}
		c.content(id, s, "")
	default:
		c.content(id, s, "")
	}
}

// goAway refuses all streams above last.
func (c *wildConn) goAway(last uint32) {
	if last > c.last {
		return
	}
	c.last, c.closes = last, true
	_ = c.WriteGoAway(last, http2.ErrCodeNo, nil)
	for id := range c.open {
		if id > last {
			delete(c.open, id)
		}
	}
}

// noise changes settings and sends frames that mean nothing.
func (c *wildConn) noise() {
	switch c.rnd.IntN(8) {
	case 0:
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: []uint32{100, 1000, 5000, 65535, 1 << 20}[c.rnd.IntN(5)]})
	case 1:
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: []uint32{1, 2, 5, 100}[c.rnd.IntN(4)]})
	case 2:
		_ = c.WritePriority(c.rnd.Uint32N(100)*2+1, http2.PriorityParam{StreamDep: 3, Weight: 7})
	case 3:
		_ = c.WriteRawFrame(0xbe, 0, c.rnd.Uint32N(50), []byte("unknown"))
	}
}

// content answers in pieces. wrong says how the stated length differs from the true one.
func (c *wildConn) content(id uint32, s *wildStream, wrong string) {
	c.act(s)
	body := wildAnswer(s.tag, s.body, s.size)
	head := []string{":status", "200", "x-tag", s.tag}
	switch {
	case wrong == "more":
		head = append(head, "content-length", strconv.Itoa(len(body)-1))
	case wrong == "less":
		head = append(head, "content-length", strconv.Itoa(len(body)+1))
	case c.rnd.IntN(2) == 0:
		head = append(head, "content-length", strconv.Itoa(len(body)))
	}
	c.fields(id, false, head...)
	trailers := wrong == "" && c.rnd.IntN(4) == 0
	for left := []byte(body); len(left) > 0; {
		n := min(len(left), 1+c.rnd.IntN(6000))
		ends := n == len(left) && !trailers
		switch c.rnd.IntN(4) {
		case 0:
			_ = c.WriteDataPadded(id, ends, left[:n], make([]byte, c.rnd.IntN(256)))
		case 1:
			for range c.rnd.IntN(20) {
				_ = c.WriteData(id, false, nil)
			}
			fallthrough
		default:
			_ = c.WriteData(id, ends, left[:n])
		}
		left = left[n:]
	}
	if trailers {
		c.fields(id, true, "x-end", s.tag)
	}
}

// wildRequest sends a request and checks what comes. An error is no failure, as long as nothing wrong is taken for an answer.
func wildRequest(t *testing.T, client *http.Client, url, tag string, rnd *rand.Rand, tame bool) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	method, size := http.MethodGet, rnd.IntN(3)*rnd.IntN(20_000)
	var body []byte
	var sent io.Reader
	if rnd.IntN(2) == 0 {
		method, body = http.MethodPost, bytes.Repeat([]byte(tag), rnd.IntN(4)*rnd.IntN(4000)/len(tag))
		if sent = bytes.NewReader(body); rnd.IntN(2) == 0 {
			sent = io.MultiReader(sent) // without a length
		}
	}
	if !tame && rnd.IntN(10) == 0 {
		late := time.AfterFunc(time.Duration(rnd.IntN(5000))*time.Microsecond, cancel)
		defer late.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, method, url, sent)
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("X-Tag", tag)
	req.Header.Set("X-Size", strconv.Itoa(size))
	resp, err := client.Do(req)
	var got []byte
	if err == nil {
		defer resp.Body.Close()
		got, err = io.ReadAll(resp.Body)
	}
	want := wildAnswer(tag, body, size)
	switch {
	case ctx.Err() == context.DeadlineExceeded: //nolint:errorlint // as it is documented
		t.Errorf("%s: no end", tag)
	case err != nil:
		if tame {
			t.Errorf("%s: %v", tag, err)
		}
	case resp.Header.Get("X-Tag") != "" && resp.Header.Get("X-Tag") != tag:
		t.Errorf("%s got the answer to %s", tag, resp.Header.Get("X-Tag"))
	case resp.StatusCode == http.StatusOK && resp.Header.Get("X-Empty") != "":
		want = ""
		fallthrough
	case resp.StatusCode == http.StatusOK:
		if end := resp.Trailer.Get("X-End"); string(got) != want || end != "" && end != tag {
			t.Errorf("%s: %d bytes instead of %d, or others: %.80q; trailer %q", tag, len(got), len(want), got, end)
		}
	case tame, resp.StatusCode == http.StatusForbidden && string(got) != tag:
		t.Errorf("%s: status %d, %.80q", tag, resp.StatusCode, got)
	}
}

// TestServersOfHTTP2GoWild: whatever servers do, each client gets the answer to its own request, whole, or an error; no POST
// that a server has acted on is sent again; and nothing is left behind, so that all is well once the servers behave.
func TestServersOfHTTP2GoWild(t *testing.T) {
	w := &wildServer{acts: make(map[string]int)}
	addr := serveFrames(t, w.serve)
	cfg := routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, addr))
	cfg.Listener.Logger = slog.New(slog.DiscardHandler)
	p := startProxy(t, cfg)
	clients := []*http.Client{clientFor(t, "HTTP/1.1"), clientFor(t, "HTTP/2.0"), clientFor(t, "HTTP/2.0")}
	round := func(name string, each int, tame bool) {
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), 11)) //nolint:gosec // for tests
				for j := range each {
					wildRequest(t, clients[i%len(clients)], p.url, fmt.Sprintf("%s-%d-%d", name, i, j), rnd, tame)
				}
			})
		}
		all.Wait()
	}
	stop := make(chan struct{})
	var reloads sync.WaitGroup
	reloads.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if err := p.Update(cfg); err != nil {
					t.Error(err)
				}
			}
		}
	})
	round("wild", wildRequests, false)
	close(stop)
	reloads.Wait()
	w.tame.Store(true)
	round("first", 5, false) // connections end on which GOAWAY has come
	round("tame", 20, true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.bad) > 0 {
		t.Errorf("%d POSTs were sent again: %v", len(w.bad), w.bad[:min(len(w.bad), 10)])
	}
}

// wildRequests is the number of requests of each client.
const wildRequests = 60

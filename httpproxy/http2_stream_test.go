package httpproxy_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/upstream"
)

// TestHTTP2ResetJustBeforeUse: a stream that was reset while its server connection was being leased releases that, and
// must not close it at its own end, when others use it.
func TestHTTP2ResetJustBeforeUse(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c, err := httppool.NewConn(t.Context(), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if httpproxy.HeldAfterReset(c) {
		t.Error("the stream still closes the connection")
	}
}

// moving is a connection to a server that calls moved when it is brought to another loop, and notes when it is closed meanwhile.
type moving struct {
	fiber.Stream
	moved    func()
	onTheWay atomic.Bool
	hit      atomic.Bool
}

func (c *moving) Adopt() {
	c.onTheWay.Store(true)
	fiber.Block(c.moved)
	c.onTheWay.Store(false)
}

func (c *moving) Close() error {
	if c.onTheWay.Load() {
		c.hit.Store(true)
	}
	return c.Stream.Close()
}

// TestHTTP2ResetWhileTheConnectionMoves: a client resets its request while the connection for it moves to the loop. The
// reset must not touch the connection: only the fiber that moves it may.
func TestHTTP2ResetWhileTheConnectionMoves(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	moves, moved := make(chan struct{}), make(chan struct{})
	var first sync.Once
	server := &moving{moved: func() {
		first.Do(func() {
			close(moves)
			<-moved
		})
	}}
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		conn, err := enginetest.Dial(ctx, endpoint)
		if err == nil {
			server.Stream = fiber.StreamOf(conn)
		}
		return server, err
	}
	one := pool.Limits{MaxSize: 1, AcquireTimeout: patience}
	p := startProxy(t, routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: dial, Settings: upstream.Settings{Limits: one}}, backend)))
	h := dialH2(t, p.addr)
	h.ask(1, true, plainGet...)
	<-moves
	h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel))
	h.do(0, h.WritePing(false, [8]byte{}))
	h.next(func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	close(moved)
	h.ask(3, true, plainGet...)
	if got := h.outcome(3); got != "200 ok" {
		t.Errorf("the next request: %q", got)
	}
	if server.hit.Load() {
		t.Error("the connection was closed on its way")
	}
}

// TestHTTP2SendingForOthers: a fiber that flushes frames for a client does not continue for as long as others have more to
// send; it may have a connection to release, or an upload to continue.
func TestHTTP2SendingForOthers(t *testing.T) {
	returned := make(chan struct{})
	kept := false
	err := httpproxy.FlushAmongOthers(1000, func(i int) {
		if i != 100 {
			return
		}
		select {
		case <-returned:
		case <-time.After(patience):
			kept = true
		}
	}, func() { close(returned) })
	if err != nil || kept {
		t.Errorf("%v, kept: %t", err, kept)
	}
}

// TestHTTP2AnswerToAnUpload: a client that is answered before it has sent its body may send the rest, which is dropped. It
// is not told to stop together with the answer.
func TestHTTP2AnswerToAnUpload(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		}
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/a", Upstream: newUpstream(t, backend)}}})
	h := dialH2(t, p.addr)
	for i, path := range []string{"/a", "/unknown"} {
		id := uint32(2*i + 1)
		answered := time.Now()
		h.ask(id, false, ":method", "POST", ":scheme", "http", ":path", path, ":authority", "a")
		if got := h.outcome(id)[:2]; got != "41" && got != "40" {
			t.Errorf("got %q", got)
		}
		for range 20 { // more than the windows
			h.do(0, h.WriteData(id, false, make([]byte, 10_000)))
			h.do(0, h.WritePing(false, [8]byte{}))
			h.next(func(f http2.Frame) bool {
				if f.Header().Type == http2.FrameRSTStream && time.Since(answered) < time.Second {
					t.Errorf("reset: %v", f)
				}
				return f.Header().Type == http2.FramePing
			})
		}
		h.do(0, h.WriteData(id, true, nil))
	}
}

// TestHTTP2HeadComesFirst: the head of an answer does not wait for content of which only part of the framing has arrived.
func TestHTTP2HeadComesFirst(t *testing.T) {
	for name, framing := range map[string]string{"nothing": "", "a part of a size": "0", "a size": "5\r\n"} {
		t.Run(name, func(t *testing.T) {
			read := make(chan struct{})
			backend := serveRaw(t, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+framing)
				<-read
				_, _ = io.WriteString(c, strings.TrimPrefix("5\r\nhello\r\n0\r\n\r\n", framing)) //nolint:gocritic // all that framing begins
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			h := dialH2(t, p.addr)
			h.ask(1, true, plainGet...)
			head := h.next(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok }).(*http2.MetaHeadersFrame)
			if head.PseudoValue("status") != "200" || head.StreamEnded() {
				t.Errorf("the head: %v", head)
			}
			close(read)
			if data := h.next(isData).(*http2.DataFrame); string(data.Data()) != "hello" {
				t.Errorf("the content: %q", data.Data())
			}
		})
	}
}

func isData(f http2.Frame) bool {
	_, ok := f.(*http2.DataFrame)
	return ok
}

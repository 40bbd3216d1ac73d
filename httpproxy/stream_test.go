package httpproxy_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
)

func routeTo(u *httpproxy.Upstream) httpproxy.Config {
	return httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u}}}
}

// TestStreamsInLockStep: each side waits for the other's part before it sends its next, in one exchange.
func TestStreamsInLockStep(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		buf := make([]byte, 1)
		for {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
				return
			}
			_, _ = w.Write(buf)
			_ = rc.Flush()
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	for name, tc := range map[string]struct{ proto, te string }{
		"HTTP/1.1": {"HTTP/1.1", ""}, "HTTP/2": {"HTTP/2.0", ""}, "HTTP/2 at the standard server": {"HTTP/2.0", "trailers"}, // as gRPC does
	} {
		t.Run(name, func(t *testing.T) { lockStep(t, clientFor(t, tc.proto), p.url, tc.te) })
	}
}

func lockStep(t *testing.T, client *http.Client, url, te string) {
	pr, pw := io.Pipe()
	req, err := http.NewRequest("POST", url, pr)
	if err != nil {
		t.Fatal(err)
	}
	if te != "" {
		req.Header.Set("Te", te)
	}
	go pw.Write([]byte("a"))
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 1)
	for _, c := range []byte("abc") {
		if c != 'a' {
			if _, err := pw.Write([]byte{c}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(resp.Body, buf); err != nil || buf[0] != c {
			t.Fatalf("read %q, %v, want %q", buf, err, c)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("read %q, %v at the end", rest, err)
	}
	if status := resp.Trailer.Get("Grpc-Status"); status != "0" {
		t.Errorf("the trailer says %q", status)
	}
}

// TestFlushesAtOnce checks that events arrive during the response.
func TestFlushesAtOnce(t *testing.T) {
	for name, header := range map[string]http.Header{
		"event stream":              {"Content-Type": {"text/event-stream"}},
		"event stream with length":  {"Content-Type": {"text/event-stream; charset=utf-8"}, "Content-Length": {"20"}},
		"unknown length":            {"Content-Type": {"application/json"}},
		"X-Accel-Buffering: no":     {"X-Accel-Buffering": {"no"}, "Content-Length": {"20"}},
		"X-Accel-Buffering without": {"X-Accel-Buffering": {"no"}},
	} {
		t.Run(name, func(t *testing.T) {
			proceed := make(chan struct{})
			backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range header {
					w.Header()[k] = v
				}
				for range 2 {
					_, _ = io.WriteString(w, "data: ab\n\n")
					_ = http.NewResponseController(w).Flush()
					<-proceed
				}
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			resp, err := http.Get(p.url)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			for range 2 {
				event := make([]byte, 10)
				if _, err := io.ReadFull(resp.Body, event); err != nil {
					t.Fatal(err)
				}
				proceed <- struct{}{}
			}
		})
	}
}

// TestLargeBodiesInBoundedMemory moves far more than it may keep, both ways.
func TestLargeBodiesInBoundedMemory(t *testing.T) {
	const size, limit = 256 << 20, 32 << 20
	var peak atomic.Uint64
	watch := func(n int) {
		if n > 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapInuse))
		}
	}
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		if err := copyWatched(sum, r.Body, watch); err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%x", sum.Sum(nil)))
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.Copy(w, io.LimitReader(newPattern(), size))
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	sent := sha256.New()
	req, err := http.NewRequest("POST", p.url, io.TeeReader(io.LimitReader(newPattern(), size), sent))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = size
	runtime.GC() // what other tests have left does not count
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	received := sha256.New()
	if err := copyWatched(received, resp.Body, watch); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%x", sent.Sum(nil))
	if got := resp.Header.Get("X-Sum"); got != want {
		t.Errorf("the server received %s, sent was %s", got, want)
	}
	if got := fmt.Sprintf("%x", received.Sum(nil)); got != want {
		t.Errorf("the client received %s, sent was %s", got, want)
	}
	if peak.Load() > limit {
		t.Errorf("the heap reached %d MiB, limit %d MiB", peak.Load()>>20, limit>>20)
	}
}

// copyWatched copies and calls watch every 16 MiB.
func copyWatched(dst hash.Hash, src io.Reader, watch func(int)) error {
	for n := 0; ; n++ {
		_, err := io.CopyN(dst, src, 16<<20)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		watch(n)
	}
}

// block is what a pattern repeats; its odd length shifts it against every buffer.
var block = func() []byte {
	b := make([]byte, 64<<10-1)
	_, _ = rand.Read(b)
	return b
}()

type pattern struct{ at int }

func newPattern() *pattern { return new(pattern) }

func (p *pattern) Read(b []byte) (int, error) {
	n := copy(b, block[p.at:])
	p.at = (p.at + n) % len(block)
	return n, nil
}

// TestBackendGoneInMidResponse: received bytes are delivered, and the end is not clean.
func TestBackendGoneInMidResponse(t *testing.T) {
	for name, head := range map[string]string{
		"length": "Content-Length: 100\r\n\r\nhello",
		"chunks": "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				leave := make(chan struct{})
				backend := serveRaw(t, func(c net.Conn) {
					if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Accel-Buffering: no\r\n"+head)
						<-leave
					}
				})
				p := startProxy(t, routeTo(newUpstream(t, backend)))
				resp, err := clientFor(t, proto).Get(p.url)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.Proto != proto {
					t.Fatalf("the client speaks %s", resp.Proto)
				}
				if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				close(leave)
				if rest, err := io.ReadAll(resp.Body); err == nil {
					t.Errorf("a clean end after %q", rest)
				}
				eventually(t, "the error is counted", func() bool { return p.Stats().Errors["backend_gone"] == 1 })
			})
		}
	}
}

// clientFor returns a client of one protocol without TLS.
func clientFor(t testing.TB, proto string) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(proto == "HTTP/1.1")
	tr.Protocols.SetUnencryptedHTTP2(proto == "HTTP/2.0")
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// TestClientGoneCancelsTheServer in every phase of an exchange.
func TestClientGoneCancelsTheServer(t *testing.T) {
	for name, raw := range map[string]string{
		"waiting for an answer": "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"sending its body":      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			arrived, left := make(chan struct{}), make(chan error, 1)
			backend := serveRaw(t, func(c net.Conn) {
				br := bufio.NewReader(c)
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				_, _ = io.ReadFull(req.Body, make([]byte, min(5, req.ContentLength)))
				close(arrived)
				_, err = br.ReadByte()
				left <- err
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			c, err := net.Dial("tcp", p.addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, raw)
			<-arrived
			c.Close()
			if err := <-left; err == nil {
				t.Error("the server's connection continues")
			}
			eventually(t, "the error is counted", func() bool { return p.Stats().Errors["client_gone"] == 1 })
		})
	}
}

// TestClientGoneFromAPausingStream: a server that pauses learns that the client has gone.
func TestClientGoneFromAPausingStream(t *testing.T) {
	for name, head := range map[string]string{"chunked": "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", "length": "Content-Length: 3\r\n\r\nhi", "unframed": "\r\nhi"} {
		t.Run(name, func(t *testing.T) {
			left := make(chan error, 1)
			backend := serveRaw(t, func(c net.Conn) {
				br := bufio.NewReader(c)
				if _, err := http.ReadRequest(br); err != nil {
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+head)
				_, err := br.ReadByte()
				left <- err
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			c, br := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, getRoot)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 2)); err != nil {
				t.Fatal(err)
			}
			c.Close()
			if err := <-left; errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the server's connection continues")
			}
			eventually(t, "the error is counted", func() bool { return p.Stats().Errors["client_gone"] == 1 })
		})
	}
}

// TestEarlyAnswerToASlowUpload: the answer arrives although the client has not sent its whole body, and the server's
// connection, on which a request is half sent, is not used again.
func TestEarlyAnswerToASlowUpload(t *testing.T) {
	var conns atomic.Int64
	backend := serveRaw(t, func(c net.Conn) {
		conns.Add(1)
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
			_, _ = io.Copy(io.Discard, c)
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	for range 2 {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(suspendAfter))
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello")
		answer, err := io.ReadAll(c) // to the end: the proxy closes
		if err != nil && !errors.Is(err, io.EOF) || !strings.HasPrefix(string(answer), "HTTP/1.1 413 ") {
			t.Errorf("got %q, %v", answer, err)
		}
		if !strings.Contains(string(answer), "Connection: close\r\n") {
			t.Errorf("the client does not see the end of the connection: %q", answer)
		}
		c.Close()
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections to the server, want 2", n)
	}
}

// TestServerThatHangsUpAtOnce is not dialled again and again for one request.
func TestServerThatHangsUpAtOnce(t *testing.T) {
	var dialled atomic.Int64
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		dialled.Add(1)
		c, err := enginetest.Dial(ctx, endpoint)
		if err == nil {
			_, _ = c.Read(make([]byte, 1)) // the end
		}
		return c, err
	}
	up := newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: dial}, serveRaw(t, func(net.Conn) {}))
	p := startProxy(t, routeTo(up))
	c, br := dialRaw(t, p.addr)
	if resp, _ := roundTrip(t, c, br, getRoot); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("the status is %d", resp.StatusCode)
	}
	if n := dialled.Load(); n > 3 {
		t.Errorf("dialled %d times for one request", n)
	}
}

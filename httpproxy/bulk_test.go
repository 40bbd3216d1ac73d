package httpproxy_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// Bodies that are moved in bulk: within the kernel between two sockets, by large buffers elsewhere.

// bulkSize is many pieces of every kind, and no multiple of any.
const bulkSize = 2<<20 + 12345

// content returns n bytes that differ by tag.
func content(tag byte, n int) []byte {
	b := make([]byte, n)
	for i := range min(n, contentPeriod) {
		b[i] = byte(i>>8) ^ byte(i*7) ^ tag
	}
	for made := contentPeriod; made < n; made *= 2 {
		copy(b[made:], b[:made])
	}
	return b
}

// contentPeriod is the length after which content repeats itself. Larger contents are copies: the race detector makes each
// byte that a loop writes expensive.
const contentPeriod = 64 << 10

// framed is a body with its framing fields.
func framed(framing string, body []byte) string {
	switch framing {
	case "length":
		return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	case "one chunk":
		return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	default: // chunks of all sizes around those at which something changes
		var b bytes.Buffer
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for i := 0; len(body) > 0; i++ {
			n := min([]int{1, 16<<10 - 1, 32<<10 - 1, 32 << 10, 200_000, 64 << 10, 3, 1 << 20}[i%8], len(body))
			fmt.Fprintf(&b, "%x;x=y\r\n%s\r\n", n, body[:n])
			body = body[n:]
		}
		b.WriteString("0\r\nX-Sum: 1\r\n\r\n")
		return b.String()
	}
}

var framings = []string{"length", "one chunk", "chunks"}

// TestBulkKeepsItsBounds pipelines requests with large bodies and answers them with large bodies: no byte of one gets into
// another, in either direction and in every framing.
func TestBulkKeepsItsBounds(t *testing.T) {
	for _, up := range framings {
		for _, down := range framings {
			t.Run(up+" up, "+down+" down", func(t *testing.T) {
				backend := serveRaw(t, func(c net.Conn) {
					br := bufio.NewReader(c)
					for {
						r, err := http.ReadRequest(br)
						if err != nil {
							return
						}
						body, err := io.ReadAll(r.Body)
						if err != nil {
							t.Errorf("the server: %v", err)
							return
						}
						tag := body[0]
						if !bytes.Equal(body, content(tag, len(body))) {
							t.Errorf("the body of request %d is not as it was sent", tag)
						}
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+framed(down, content(^tag, len(body))))
					}
				})
				u := newUpstream(t, backend)
				cfg := routeTo(u)
				cfg.ReadHeaderTimeout = patience // a head may arrive in two parts, with a body to be read by somebody else between them
				p := startProxy(t, cfg)
				c, br := dialRaw(t, p.addr)
				const requests = 6
				size := func(i int) int { return []int{bulkSize, 1, 64 << 10}[i%3] }
				go func() {
					var all strings.Builder // pipelined, without a pause
					for i := range requests {
						all.WriteString("POST / HTTP/1.1\r\nHost: a\r\n" + framed(up, content(byte(i), size(i))))
					}
					_, _ = io.WriteString(c, all.String())
				}()
				for i := range requests {
					_, body := readAnswer(t, br)
					if body != string(content(^byte(i), size(i))) {
						t.Errorf("answer %d is another one", i)
					}
				}
				if opened := u.Status().Endpoints[0].Pool.Opened; opened != 1 {
					t.Errorf("%d connections to the server", opened)
				}
			})
		}
	}
}

// endless is a body without an end, and the length it claims.
const endless = 1 << 40

// bulkHead is the framing of such a body.
func bulkHead(framing string) string {
	if framing == "length" {
		return fmt.Sprintf("Content-Length: %d\r\n\r\n", int64(endless))
	}
	return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", int64(endless))
}

// pour writes without end; it returns why it ended.
func pour(w io.Writer) error {
	for piece := make([]byte, 256<<10); ; {
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
}

// TestBulkClientGone: the server notices that the client has gone in the middle of a large body, in either direction.
func TestBulkClientGone(t *testing.T) {
	for _, framing := range framings[:2] {
		t.Run("sending, "+framing, func(t *testing.T) {
			left := make(chan error, 1)
			backend := serveRaw(t, func(c net.Conn) {
				_, err := io.Copy(io.Discard, c)
				left <- err
			})
			u := newUpstream(t, backend)
			p := startProxy(t, routeTo(u))
			c, _ := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"+bulkHead(framing))
			_, _ = c.Write(make([]byte, 3<<20))
			_ = c.Close()
			wantEnded(t, <-left)
			eventually(t, "the error is counted", func() bool { return p.Stats().Errors["client_gone"] == 1 })
			if e := u.Status().Endpoints[0]; e.Failures != 0 {
				t.Errorf("the endpoint is blamed: %+v", e)
			}
		})
		t.Run("receiving, "+framing, func(t *testing.T) {
			left := make(chan error, 1)
			backend := serveRaw(t, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+bulkHead(framing))
					left <- pour(c)
				}
			})
			u := newUpstream(t, backend)
			p := startProxy(t, routeTo(u))
			c, br := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, getRoot)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.CopyN(io.Discard, resp.Body, 3<<20)
			_ = c.Close()
			wantEnded(t, <-left)
			eventually(t, "the error is counted", func() bool { return p.Stats().Errors["client_gone"] == 1 })
			if e := u.Status().Endpoints[0]; e.Failures != 0 {
				t.Errorf("the endpoint is blamed: %+v", e)
			}
		})
	}
}

// wantEnded fails if a server waited until its own time-out.
func wantEnded(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the server's connection continues")
	}
}

// TestBulkBackendGone: the client learns that a large body is incomplete, or is not taken, and the failure counts
// against the server.
func TestBulkBackendGone(t *testing.T) {
	for _, framing := range framings[:2] {
		t.Run("sending, "+framing, func(t *testing.T) {
			backend := serveRaw(t, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+bulkHead(framing)+string(content(1, bulkSize)))
				}
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			c, br := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, getRoot)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err == nil || !bytes.Equal(body, content(1, bulkSize)) {
				t.Errorf("%d bytes and %v; want the %d that were sent, and an error", len(body), err, bulkSize)
			}
			eventually(t, "the error is counted", func() bool { return p.Stats().Errors["backend_gone"] == 1 })
		})
		t.Run("receiving, "+framing, func(t *testing.T) {
			backend := serveRaw(t, func(c net.Conn) { _, _ = io.CopyN(io.Discard, c, 3<<20) })
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			c, br := dialRaw(t, p.addr)
			go func() {
				_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"+bulkHead(framing))
				_ = pour(c)
			}()
			if resp, _ := readAnswer(t, br); resp.StatusCode != http.StatusBadGateway || !resp.Close {
				t.Errorf("%s, close %v", resp.Status, resp.Close)
			}
			eventually(t, "the error is counted", func() bool { return p.Stats().Errors["backend_gone"] == 1 })
		})
	}
}

// TestBulkEarlyAnswer: a server answers in the middle of a large body and reads no more: the client has the answer, and both connections end.
func TestBulkEarlyAnswer(t *testing.T) {
	for _, framing := range framings[:2] {
		t.Run(framing, func(t *testing.T) {
			ended := make(chan struct{})
			backend := serveRaw(t, func(c net.Conn) {
				_, _ = io.CopyN(io.Discard, c, 3<<20)
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
				<-ended
			})
			u := newUpstream(t, backend)
			p := startProxy(t, routeTo(u))
			c, br := dialRaw(t, p.addr)
			sent := make(chan error, 1)
			go func() {
				_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"+bulkHead(framing))
				sent <- pour(c)
			}()
			resp, body := readAnswer(t, br)
			if resp.StatusCode != http.StatusRequestEntityTooLarge || body != "no" || !resp.Close {
				t.Errorf("%s %q, close %v", resp.Status, body, resp.Close)
			}
			eventually(t, "the server's connection is given up", func() bool { p := u.Status().Endpoints[0].Pool; return p.InUse+p.Idle == 0 })
			close(ended)
			<-sent // the proxy reads for a while and closes
			if e := u.Status().Endpoints[0]; e.Failures != 0 {
				t.Errorf("the endpoint is blamed: %+v", e)
			}
		})
	}
}

// TestBulkStalls: a client that reads nothing of a large body, and a server that takes nothing of one, end with the
// idle time-out; a slow but steady reader does not.
func TestBulkStalls(t *testing.T) {
	t.Run("client", func(t *testing.T) { paced(t, clientStalls) })
	t.Run("server", func(t *testing.T) { paced(t, serverStalls) })
	t.Run("slow client", func(t *testing.T) { paced(t, slowReader) })
}

func clientStalls(t testing.TB, unit time.Duration) {
	left := make(chan error, 1)
	backend := serveRaw(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+bulkHead("length"))
			left <- pour(c)
		}
	})
	u := newUpstream(t, backend)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, IdleTimeout: unit}}})
	c, _ := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, getRoot)
	wantEnded(t, <-left)
	wantError(t, p, "client_gone")
	if e := u.Status().Endpoints[0]; e.Failures != 0 {
		t.Errorf("the endpoint is blamed: %+v", e)
	}
}

func serverStalls(t testing.TB, unit time.Duration) {
	ended := make(chan struct{})
	backend := serveRaw(t, func(net.Conn) { <-ended })
	t.Cleanup(func() { close(ended) })
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), IdleTimeout: unit}}})
	c, br := dialRaw(t, p.addr)
	go func() {
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"+bulkHead("length"))
		_ = pour(c)
	}()
	if resp, _ := readAnswer(t, br); resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("%s", resp.Status)
	}
	wantError(t, p, "timeout")
}

// wantError waits until an error is counted, which must be one for the reason.
func wantError(t testing.TB, p running, reason string) {
	t.Helper()
	eventually(t, "an error is counted", func() bool { return len(p.Stats().Errors) > 0 })
	if e := p.Stats().Errors; e[reason] != 1 || len(e) != 1 {
		t.Errorf("errors: %v, want one %s", e, reason)
	}
}

// slowReader takes longer for a body than the idle time-out, but always makes progress.
func slowReader(t testing.TB, unit time.Duration) {
	const size = 24 << 20
	backend := serveRaw(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+framed("length", content(1, size)))
		}
	})
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), IdleTimeout: 3 * unit}}})
	c, br := dialRaw(t, p.addr)
	_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
	_, _ = io.WriteString(c, getRoot)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for n := int64(0); n < size; n += 2 << 20 {
		<-time.After(unit)
		if _, err := io.CopyN(sum, resp.Body, 2<<20); err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
	if want := sha256.Sum256(content(1, size)); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("other bytes arrived than were sent")
	}
}

// TestBulkCounts: every byte of large bodies is counted, once.
func TestBulkCounts(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		if readRequest(br) == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+framed("length", content(2, bulkSize)))
		}
	})
	var log conntest.Log
	cfg := routeTo(newUpstream(t, backend))
	cfg.Listener = listener.Config{Name: "web", AccessLog: true, Logger: log.Logger()}
	p := startProxy(t, cfg)
	c, _ := dialRaw(t, p.addr)
	request := "POST / HTTP/1.1\r\nHost: a\r\n" + framed("length", content(1, bulkSize))
	go func() { _, _ = io.WriteString(c, request) }()
	counted := &counter{r: c}
	if _, body := readAnswer(t, bufio.NewReader(counted)); len(body) != bulkSize {
		t.Fatalf("%d bytes", len(body))
	}
	eventually(t, "all is counted", func() bool {
		s := p.Stats()
		return s.BytesIn == uint64(len(request)) && s.BytesOut == uint64(counted.n)
	})
	bytes := fmt.Sprintf("bytes_in=%d bytes_out=%d", bulkSize, bulkSize)
	eventually(t, "the access log says so", func() bool { return log.Line(bytes) != "" })
}

// counter counts read bytes.
type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

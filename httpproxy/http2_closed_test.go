package httpproxy_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// expect reads the outcome of stream 1.
func (h *h2Client) expect(outcomes ...string) {
	for _, want := range outcomes {
		if got := h.outcome(1); got != want {
			h.t.Errorf("the request: %q, want %q", got, want)
		}
	}
}

// h2Steps are what a client may do on stream 1, if not said otherwise.
var h2Steps = map[string]func(*h2Client){
	"answered": func(h *h2Client) {
		h.ask(1, true, plainGet...)
		h.expect("200 ok")
	},
	"given up": func(h *h2Client) {
		h.ask(1, false, plainPost...)
		h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel))
	},
	"early": func(h *h2Client) {
		h.ask(1, false, ":method", "POST", ":scheme", "http", ":path", "/early", ":authority", "a")
		h.expect("413", "reset NO_ERROR")
	},
	"malformed": func(h *h2Client) {
		h.ask(1, false, append(plainPost, "connection", "x")...)
		h.expect("reset PROTOCOL_ERROR")
	},
	"third": func(h *h2Client) {
		h.ask(5, true, plainGet...)
		h.outcome(5)
	},
	"data":     func(h *h2Client) { h.do(0, h.WriteData(1, false, []byte("hi"))) },
	"end":      func(h *h2Client) { h.do(0, h.WriteData(1, true, nil)) },
	"head":     func(h *h2Client) { h.ask(1, true, plainGet...) },
	"trailers": func(h *h2Client) { h.ask(1, true, "a", "b") },
	"reset":    func(h *h2Client) { h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel)) },
	"window":   func(h *h2Client) { h.do(0, h.WriteWindowUpdate(1, 1)) },
	"priority": func(h *h2Client) { h.do(0, h.WritePriority(1, http2.PriorityParam{StreamDep: 3})) },
}

// TestHTTP2ClosedStreams: on a stream that the client has ended only frames about its answer may arrive; on one that ended
// here first, frames in flight are no error (RFC 9113, section 5.1).
func TestHTTP2ClosedStreams(t *testing.T) {
	const closed, protocol, fine = "goaway STREAM_CLOSED", "goaway PROTOCOL_ERROR", "200 ok"
	for steps, want := range map[string]string{ // of a request after that
		"answered,data":     closed,
		"answered,head":     closed,
		"answered,trailers": closed,
		"given up,data":     closed,
		"given up,head":     closed,
		"third,head":        protocol, // on one that never began
		"third,data":        protocol,
		"answered,window,priority,reset,priority,window":  fine,
		"given up,window,reset,priority":                  fine,
		"early,data,window,priority,data,trailers,window": fine,
		"malformed,data,window,priority,trailers":         fine,
		"early,data,reset,window":                         fine,
		"early,end,window,reset":                          fine,
		"early,end,end":                                   closed,
		"early,data,end,data":                             closed,
		"early,reset,data":                                closed,
		"malformed,trailers,trailers":                     closed,
	} {
		t.Run(steps, func(t *testing.T) {
			backend := serveRaw(t, func(c net.Conn) {
				b := make([]byte, 4096)
				for {
					n, err := c.Read(b)
					switch {
					case err != nil:
						return
					case strings.HasPrefix(string(b[:n]), "POST /early"):
						_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
						return
					case strings.HasPrefix(string(b[:n]), "GET "):
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					}
				}
			})
			p := startProxy(t, routeTo(newUpstream(t, backend)))
			h := dialH2(t, p.addr)
			for step := range strings.SplitSeq(steps, ",") {
				h2Steps[step](h)
			}
			_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, BlockFragment: h.fields(plainGet...), EndStream: true, EndHeaders: true}) // it may be over
			if got := h.outcome(7); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestHTTP2RefusedUpload: frames on refused streams, even very many, are no error.
func TestHTTP2RefusedUpload(t *testing.T) {
	hold, asked := make(chan struct{}), make(chan struct{})
	backend := serveHTTP(t, func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-hold
	})
	cfg := routeTo(newUpstream(t, backend))
	cfg.MaxStreams = 1
	cfg.Routes[0].ResponseTimeout = -1 // the many streams take long on a slow machine
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	h.ask(1, true, plainGet...)
	<-asked
	const last = 2*900 + 1
	for id := uint32(3); id <= last; id += 2 {
		h.ask(id, false, plainPost...)
		if got := h.outcome(id); got != "reset REFUSED_STREAM" {
			t.Fatalf("%d: %q", id, got)
		}
	}
	for id := uint32(3); id <= last; id += 2 {
		h.do(0, h.WriteData(id, true, []byte("hi")))
	}
	close(hold)
	if got := h.outcome(1); got != "200" {
		t.Errorf("got %q", got)
	}
}

// TestHTTP2ClientThatDoesNotRead: it gets as much time as a client of HTTP/1.1, and counts alike.
func TestHTTP2ClientThatDoesNotRead(t *testing.T) {
	piece := make([]byte, 1<<20)
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 64 {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	for name, ask := range map[string]func(t testing.TB, addr string){
		"HTTP/1.1": func(t testing.TB, addr string) {
			c, _ := dialRaw(t, addr)
			if _, err := io.WriteString(c, getRoot); err != nil {
				t.Fatal(err)
			}
		},
		"HTTP/2": func(t testing.TB, addr string) {
			h := dialDeaf(t, addr)
			h.ask(1, true, plainGet...)
			h.ask(3, true, plainGet...)
		},
		"HTTP/2 without a window": func(t testing.TB, addr string) {
			h := dialH2(t, addr)
			h.ask(1, true, plainGet...)
		},
	} {
		for what, timeout := range map[string]time.Duration{"here": 0, "at the standard server": time.Hour} {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				paced(t, func(t testing.TB, unit time.Duration) {
					p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
						Upstream: newUpstream(t, backend), IdleTimeout: 5 * unit, Timeout: timeout,
					}}})
					ask(t, p.addr)
					eventually(t, "it is counted", func() bool { return len(p.Stats().Errors) > 0 })
					if e := p.Stats().Errors; e["client_gone"] == 0 {
						t.Errorf("errors: %v, want client_gone", e)
					}
					if name != "HTTP/2 without a window" { // whose connection is as good as before
						eventually(t, "the connection ends", func() bool { return p.Stats().Active == 0 })
					}
				})
			})
		}
	}
}

// TestHTTP2RestOfAClosedUpload: the rest of a frame whose stream has ended is dropped, and not the next request's.
func TestHTTP2RestOfAClosedUpload(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Path: "/echo", Upstream: newUpstream(t, backend)}}})
	h := dialH2(t, p.addr)
	const size = 99
	for id := uint32(1); id < 10; id += 4 {
		h.ask(id, false, ":method", "POST", ":scheme", "http", ":path", "/nowhere", ":authority", "a", "content-length", strconv.Itoa(size+1))
		h.do(h.c.Write([]byte{0, 0, size + 1, 0, 0, 0, 0, 0, byte(id), 'x'})) // a frame of DATA that ends nothing, and the first byte of it
		if got := h.outcome(id); !strings.HasPrefix(got, "404") {
			t.Fatalf("got %q", got)
		}
		if got := h.outcome(id); got != "reset NO_ERROR" {
			t.Fatalf("then %q", got)
		}
		h.do(h.c.Write(bytes.Repeat([]byte("x"), size)))
		h.ask(id+2, false, ":method", "POST", ":scheme", "http", ":path", "/echo", ":authority", "a", "content-length", strconv.Itoa(size))
		h.do(0, h.WriteData(id+2, true, bytes.Repeat([]byte("y"), size)))
		if got := h.outcome(id + 2); strings.ReplaceAll(got, " ", "") != "200"+strings.Repeat("y", size) {
			t.Errorf("got %q", got)
		}
	}
}

package httpproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// What follows is asked by net/http's own client of HTTP/2.

// TestHTTP2InterimAnswers reach the client before the final one, with their fields.
func TestHTTP2InterimAnswers(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, link := range []string{"</a>", "</b>"} {
			w.Header().Set("Link", link)
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.Header().Del("Link")
		_, _ = io.WriteString(w, "ok")
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	var got []string
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		got = append(got, fmt.Sprint(code, " ", h.Get("Link")))
		return nil
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := clientFor(t, "HTTP/2.0").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" || resp.Header.Get("Link") != "" {
		t.Errorf("%q %v, %v", body, resp.Header, err)
	}
	if want := "[103 </a> 103 </b>]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestHTTP2ExpectContinue: the client sends its body when the server wants it, and not before.
func TestHTTP2ExpectContinue(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	client := clientFor(t, "HTTP/2.0")
	client.Transport.(*http.Transport).ExpectContinueTimeout = patience
	for path, want := range map[string]string{"/yes": "200 hi", "/no": "417 "} {
		body := &watched{Reader: strings.NewReader("hi")}
		continued := false
		trace := &httptrace.ClientTrace{Got100Continue: func() { continued = body.reads.Load() == 0 }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, p.url+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Expect", "100-continue")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := fmt.Sprintf("%d %s", resp.StatusCode, answer); err != nil || got != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
		if continued != (path == "/yes") || path == "/no" && body.reads.Load() > 0 {
			t.Errorf("%s: continued: %t, %d reads of the body", path, continued, body.reads.Load())
		}
	}
}

// watched counts its reads.
type watched struct {
	io.Reader
	reads atomic.Int64
}

func (w *watched) Read(p []byte) (int, error) {
	w.reads.Add(1)
	return w.Reader.Read(p)
}

// TestHTTP2LengthsWithoutBody: an answer that announces a body it does not have ends with its head.
func TestHTTP2LengthsWithoutBody(t *testing.T) {
	backend := serveRaw(t, func(c net.Conn) {
		b := make([]byte, 4096)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			_, path, _ := strings.Cut(string(b[:n]), " /")
			path, _, _ = strings.Cut(path, " ")
			_, _ = io.WriteString(c, "HTTP/1.1 "+path+" X\r\nContent-Length: 5\r\nEtag: \"e\"\r\n\r\n")
			if path == "204" {
				return // who says so may send a body
			}
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	client := clientFor(t, "HTTP/2.0")
	for _, tc := range []struct {
		method, path string
		length       int64
	}{{"HEAD", "200", 5}, {"GET", "204", 0}, {"GET", "304", 5}, {"HEAD", "304", 5}, {"HEAD", "404", 5}} {
		req, err := http.NewRequest(tc.method, p.url+"/"+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", tc.method, tc.path, err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if tc.method == "GET" && tc.path == "304" {
			err = nil // the client takes a body for missing, in spite of RFC 9113, section 8.1.1
		}
		if got := fmt.Sprint(resp.StatusCode); err != nil || got != tc.path || len(body) > 0 || resp.Header.Get("Etag") != `"e"` {
			t.Errorf("%s %s: %s %v %q, %v", tc.method, tc.path, got, resp.Header, body, err)
		}
		if resp.ContentLength != tc.length {
			t.Errorf("%s %s: a length of %d, want %d", tc.method, tc.path, resp.ContentLength, tc.length)
		}
	}
}

// TestHTTP2LargeHeads, both ways, in many frames.
func TestHTTP2LargeHeads(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		for i := range 8 {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("r", 25<<10))
		}
		fmt.Fprint(w, len(r.Header.Get("X-Long")))
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	client := clientFor(t, "HTTP/2.0")
	for _, size := range []int{10, 15 << 10, 17 << 10, 60 << 10} {
		req, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Long", strings.Repeat("q", size))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != fmt.Sprint(size) || len(resp.Header.Get("X-7")) != 25<<10 {
			t.Errorf("%d: %s %q, %v", size, resp.Status, body, err)
		}
	}
}

// TestHTTP2DrainLosesNothing: while one proxy drains and another takes its place, each request is served, once.
func TestHTTP2DrainLosesNothing(t *testing.T) {
	var served sync.Map
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if _, again := served.LoadOrStore(r.URL.Path, true); again {
			t.Errorf("%s is served again", r.URL.Path)
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	up := newUpstream(t, backend)
	first, second := startProxy(t, routeTo(up)), startProxy(t, routeTo(up))
	var addr atomic.Pointer[string]
	addr.Store(&first.addr)
	client := clientFor(t, "HTTP/2.0")
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *addr.Load())
	}
	var all sync.WaitGroup
	begun, rest := make(chan struct{}, 1000), make(chan struct{})
	for i := range 20 {
		all.Go(func() {
			for j := range 50 {
				if begun <- struct{}{}; j == 10 {
					<-rest // of the requests meet the drain
				}
				path, want := fmt.Sprintf("/%d/%d", i, j), strings.Repeat("x", i*j*10)
				resp, err := client.Post("http://pond"+path, "text/plain", bytes.NewReader([]byte(want)))
				if err != nil {
					t.Errorf("%s: %v", path, err)
					continue
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || string(got) != want {
					t.Errorf("%s: %d bytes of %d, %v", path, len(got), len(want), err)
				}
			}
		})
	}
	for range 20 * 11 {
		<-begun
	}
	addr.Store(&second.addr)
	drained := make(chan error, 1)
	go func() { drained <- first.Drain(t.Context()) }()
	close(rest)
	all.Wait()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if n := second.Stats().Accepted; n == 0 {
		t.Error("the second proxy was not used")
	}
}

// TestHTTP2Priorities, of the old kind and the new, change nothing.
func TestHTTP2Priorities(t *testing.T) {
	rec := &recorder{}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveRaw(t, rec.serve))}}})
	h := dialH2(t, p.addr, http2.Setting{ID: 9, Val: 1}) // SETTINGS_NO_RFC7540_PRIORITIES
	for id := uint32(3); id < 12; id += 2 {              // groups of streams that are never begun
		h.do(0, h.WritePriority(id, http2.PriorityParam{StreamDep: id - 2, Weight: 200, Exclusive: true}))
	}
	h.do(0, h.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 13, BlockFragment: h.fields(append(plainGet, "priority", "u=1, i")...), EndStream: true, EndHeaders: true,
		Priority: http2.PriorityParam{StreamDep: 11, Weight: 255, Exclusive: true},
	}))
	h.do(0, h.WritePriority(13, http2.PriorityParam{StreamDep: 15}))
	h.do(0, h.WriteRawFrame(0x10, 0, 0, []byte("\x00\x00\x00\x0du=0"))) // PRIORITY_UPDATE (RFC 9218)
	if got := h.outcome(13); got != "200 ok" {
		t.Errorf("got %q", got)
	}
	h.do(0, h.WritePriority(13, http2.PriorityParam{StreamDep: 3})) // of a stream that is over
	h.ask(15, true, plainGet...)
	if got := h.outcome(15); got != "200 ok" {
		t.Errorf("got %q", got)
	}
}

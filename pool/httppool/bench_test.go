package httppool_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool/httppool"
)

// benchAnswers are a small answer and two large ones, of which one is chunked.
var benchAnswers = []struct{ name, text string }{
	{"get", "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: Sat, 21 Nov 2026 00:00:00 GMT\r\nContent-Length: 128\r\n\r\n" + strings.Repeat("x", 128)},
	{"1MiB", "HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat("x", 1<<20)},
	{"1MiB chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1000\r\n"+strings.Repeat("x", 4096)+"\r\n", 256) + "0\r\n\r\n"},
}

// answering returns the URL of a server that answers each request, which must come in one piece, with text.
func answering(b *testing.B, text string) string {
	return "http://" + conntest.Serve(b, func(c *net.TCPConn) {
		answer := []byte(text)
		for buf := make([]byte, 4<<10); ; {
			if _, err := c.Read(buf); err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
}

func BenchmarkTransport(b *testing.B) {
	for _, answer := range benchAnswers {
		b.Run(answer.name, func(b *testing.B) {
			tr := newTransport(b, httppool.Config{})
			req := newRequest(b, http.MethodGet, answering(b, answer.text), nil)
			buf := make([]byte, 64<<10)
			b.ReportAllocs()
			for b.Loop() {
				resp, err := tr.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = resp.Body.Read(buf)
				}
				if err != io.EOF {
					b.Fatal(err)
				}
			}
		})
	}
}

// sink is an http.ResponseWriter that drops the answer.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header           { return s.header }
func (*sink) WriteHeader(int)                 {}
func (*sink) Write(p []byte) (int, error)     { return len(p), nil }
func (*sink) FlushError() error               { return nil }
func (*sink) EnableFullDuplex() error         { return nil }
func (*sink) SetReadDeadline(time.Time) error { return nil }

func BenchmarkHandler(b *testing.B) {
	for _, answer := range benchAnswers {
		b.Run(answer.name, func(b *testing.B) {
			h, err := httppool.Forward(answering(b, answer.text))
			if err != nil {
				b.Fatal(err)
			}
			defer h.Close()
			r := httptest.NewRequest(http.MethodGet, "http://example.com/path?query=1", nil)
			for i := range 8 {
				r.Header["X-Field-"+strconv.Itoa(i)] = []string{"value"}
			}
			w := &sink{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				h.ServeHTTP(w, r)
			}
		})
	}
	b.Run("post 1MiB", func(b *testing.B) {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		defer server.Close()
		h, err := httppool.Forward(server.URL)
		if err != nil {
			b.Fatal(err)
		}
		defer h.Close()
		body, w := make([]byte, 1<<20), &sink{http.Header{}}
		b.ReportAllocs()
		for b.Loop() {
			clear(w.header)
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
		}
	})
}

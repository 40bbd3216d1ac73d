package httpproxy_test

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// serveFixed answers every request head with the same response, without allocating, so that what a benchmark counts
// is the proxy's.
func serveFixed(t testing.TB, response string) string {
	return serveRaw(t, func(c net.Conn) {
		answer := []byte(response)
		br := bufio.NewReaderSize(c, 16<<10)
		for {
			for line := []byte("any"); len(line) > 2; {
				var err error
				if line, err = br.ReadSlice('\n'); err != nil {
					return
				}
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
}

// BenchmarkProxy is one request after the other through the proxy. Its allocations are those of the proxy: client and
// server make none.
func BenchmarkProxy(b *testing.B) {
	backend := serveFixed(b, "HTTP/1.1 200 OK\r\nContent-Length: 128\r\nDate: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n"+strings.Repeat("x", 128))
	chunked := serveFixed(b, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n"+strings.Repeat("x", 128)+"\r\n0\r\n\r\n")
	for name, tc := range map[string]struct{ backend, request, end string }{
		"get":     {backend, "GET /a/b?c HTTP/1.1\r\nHost: app.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", strings.Repeat("x", 128)},
		"chunked": {chunked, "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n", "0\r\n\r\n"},
	} {
		b.Run(name, func(b *testing.B) {
			p := startProxy(b, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(b, tc.backend)}}})
			c, err := net.Dial("tcp", p.addr)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			request, buf := []byte(tc.request), make([]byte, 16<<10)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(request); err != nil {
					b.Fatal(err)
				}
				for n := 0; n < len(tc.end) || string(buf[n-len(tc.end):n]) != tc.end; {
					k, err := c.Read(buf[n:])
					if err != nil {
						b.Fatal(err)
					}
					n += k
				}
			}
		})
	}
}

package httpproxy_test

import (
	"bufio"
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// serveFixed answers every request head with the same response, without allocating, so that a benchmark counts only the
// proxy's allocations.
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

// exchanges are common exchanges of HTTP/1.1: the server's answer, the request, and how the answer ends.
var exchanges = map[string][3]string{
	"get": {
		"HTTP/1.1 200 OK\r\nContent-Length: 128\r\nDate: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n" + strings.Repeat("x", 128),
		"GET /a/b?c HTTP/1.1\r\nHost: app.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", strings.Repeat("x", 128),
	},
	"chunked": {
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" + strings.Repeat("x", 128) + "\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: app.example\r\n\r\n", "0\r\n\r\n",
	},
}

// startExchange returns a function that makes one request through a proxy and reads the answer, without allocating.
func startExchange(t testing.TB, kind string, logs *httpproxy.AccessLog) (once func()) {
	t.Helper()
	answer, end := exchanges[kind][0], exchanges[kind][2]
	p := startProxy(t, httpproxy.Config{AccessLog: logs, Tracer: &traces{t: t, none: true}, Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveFixed(t, answer))}}})
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	request, buf := []byte(exchanges[kind][1]), make([]byte, 16<<10)
	return func() {
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < len(end) || string(buf[n-len(end):n]) != end; {
			k, err := c.Read(buf[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
}

// BenchmarkProxy is one request after the other through the proxy. All allocations are the proxy's: client and server
// make none.
func BenchmarkProxy(b *testing.B) {
	for kind := range exchanges {
		b.Run(kind, func(b *testing.B) {
			once := startExchange(b, kind, nil)
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
		})
	}
}

// BenchmarkAccessLog is BenchmarkProxy's "get" with an access log, without its file.
func BenchmarkAccessLog(b *testing.B) {
	for name, logs := range logsOff {
		b.Run(name, func(b *testing.B) {
			once := startExchange(b, "get", logs)
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
		})
	}
}

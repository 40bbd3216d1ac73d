package tcpproxy_test

import (
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// startBench runs a proxy before one backend, both ended with the benchmark.
func startBench(b *testing.B, minIdle int, handle func(*net.TCPConn)) (direct, proxied string) {
	b.Helper()
	return startBenchRoutes(b, minIdle, handle, "")
}

// startBenchRoutes is startBench with a route for a name, unless it is "".
func startBenchRoutes(b *testing.B, minIdle int, handle func(*net.TCPConn), name string) (direct, proxied string) {
	b.Helper()
	direct = conntest.Serve(b, handle)
	up, err := tcpproxy.NewUpstream("bench", tcpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(direct), Limits: pool.Limits{MinIdle: minIdle}}, Logger: quiet, Dial: enginetest.Dial, Go: fiber.Go})
	if err != nil {
		b.Fatal(err)
	}
	cfg := tcpproxy.Config{Listener: listener.Config{Logger: quiet}, Upstream: up}
	if name != "" {
		cfg.Routes = []tcpproxy.Route{{SNI: []string{name}, Upstream: up}}
	}
	p, err := tcpproxy.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	l := enginetest.Listen(b)
	go p.Serve(l)
	b.Cleanup(func() { p.Close(); up.Close() })
	return direct, l.Addr().String()
}

// both runs f against the backend itself and through the proxy.
func both(b *testing.B, minIdle int, handle func(*net.TCPConn), f func(b *testing.B, addr string)) {
	direct, proxied := startBench(b, minIdle, handle)
	b.Run("direct", func(b *testing.B) { f(b, direct) })
	b.Run("proxied", func(b *testing.B) { f(b, proxied) })
}

// BenchmarkRoundTrip is one byte there and back on a connection that stays.
func BenchmarkRoundTrip(b *testing.B) {
	both(b, 0, conntest.Echo, func(b *testing.B, addr string) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, 1)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkConnect is a new client with one byte there and back.
func BenchmarkConnect(b *testing.B) {
	for name, minIdle := range map[string]int{"cold": 0, "warm": 32} {
		b.Run(name, func(b *testing.B) {
			both(b, minIdle, conntest.Echo, func(b *testing.B, addr string) {
				buf := make([]byte, 1)
				for b.Loop() {
					c, err := net.Dial("tcp", addr)
					if err != nil {
						b.Fatal(err)
					}
					c.Write(buf)
					if _, err := io.ReadFull(c, buf); err != nil {
						b.Fatal(err)
					}
					c.Close()
				}
			})
		})
	}
}

// BenchmarkHello is a new client that sends a ClientHello and gets a byte, with routes and without.
func BenchmarkHello(b *testing.B) {
	for arm, name := range map[string]string{"routes": "a.test", "none": ""} {
		b.Run(arm, func(b *testing.B) {
			_, addr := startBenchRoutes(b, 32, conntest.Echo, name)
			hello, buf := helloOf(b, "a.test"), make([]byte, 1)
			b.ReportAllocs()
			for b.Loop() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					b.Fatal(err)
				}
				c.Write(hello)
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
	}
}

// BenchmarkBulk is a download; on Linux the proxy splices it.
func BenchmarkBulk(b *testing.B) {
	const chunk = 1 << 20
	endless := func(c *net.TCPConn) {
		buf := make([]byte, chunk)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}
	both(b, 0, endless, func(b *testing.B, addr string) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, chunk)
		b.SetBytes(chunk)
		for b.Loop() {
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkIdleSession reports the memory of a session in which nothing moves, with routes and without: heap and
// stacks, of the proxy and of the echo server's and client's ends.
func BenchmarkIdleSession(b *testing.B) {
	b.Run("none", func(b *testing.B) { idleSessions(b, "", []byte{1}) })
	b.Run("routes", func(b *testing.B) { idleSessions(b, "a.test", helloOf(b, "a.test")) })
}

func idleSessions(b *testing.B, name string, first []byte) {
	const sessions = 2000
	_, addr := startBenchRoutes(b, 0, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, len(first)))
		c.Write([]byte{1})
		c.Read(make([]byte, 1))
	}, name)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	conns := make([]net.Conn, sessions)
	for i := range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		c.Write(first)
		io.ReadFull(c, make([]byte, 1))
		conns[i] = c
	}
	runtime.GC()
	runtime.GC() // empties the buffer pool
	runtime.ReadMemStats(&after)
	used := after.HeapInuse + after.StackInuse - before.HeapInuse - before.StackInuse
	b.ReportMetric(float64(used)/sessions, "B/session")
	b.ReportMetric(0, "ns/op")
	runtime.KeepAlive(conns)
}

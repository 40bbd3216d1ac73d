//go:build unix

package tcppool_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/tcppool"
)

// noSessions is a cache that keeps nothing.
type noSessions struct{}

func (noSessions) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (noSessions) Put(string, *tls.ClientSessionState)        {}

// BenchmarkTLS measures the time until a request to a TLS server is answered: on a connection with a full handshake,
// with a resumed session, on one that was opened ahead of demand, and on one that was kept.
func BenchmarkTLS(b *testing.B) {
	arms := []struct {
		name    string
		change  func(*tcppool.Config)
		release bool
	}{
		{"full", func(c *tcppool.Config) { c.TLS.ClientSessionCache = noSessions{} }, false},
		{"resumed", func(*tcppool.Config) {}, false},
		{"warm", func(c *tcppool.Config) { c.Limits = &pool.Limits{MinIdle: 1, MaxSize: 2} }, false},
		{"kept", func(*tcppool.Config) {}, true},
	}
	for _, arm := range arms {
		b.Run(arm.name, func(b *testing.B) {
			s := listenTLS(b, tls.VersionTLS13)
			go func() { // ends with the server
				for c := range s.ready {
					go func() {
						defer c.Close()
						buf := make([]byte, 64)
						for {
							n, err := c.Read(buf)
							if err != nil {
								return
							}
							_, _ = c.Write(buf[:n])
						}
					}()
				}
			}()
			cfg := tcppool.Config{TLS: s.client}
			arm.change(&cfg)
			d := dialer(b, cfg)
			buf := make([]byte, 5)
			b.ReportAllocs()
			for b.Loop() {
				if arm.name == "warm" {
					b.StopTimer()
					for st := d.Stats(); len(st) > 0 && st[0].Idle == 0; st = d.Stats() {
						runtime.Gosched()
					}
					b.StartTimer()
				}
				c, err := d.Get(context.Background(), "tcp", s.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				_, _ = c.Write([]byte("ping\n"))
				if _, err := c.Read(buf); err != nil {
					b.Fatal(err)
				}
				if !arm.release {
					c.Close()
				} else if !c.Release() {
					b.Fatal("not kept")
				}
			}
		})
	}
}

// BenchmarkGet lends a connection and releases it, without an exchange and with one. The floor is a mutex and a slice
// by address, without a look at the connection.
func BenchmarkGet(b *testing.B) {
	for _, exchanges := range []bool{false, true} {
		name := "unused"
		if exchanges {
			name = "exchange"
		}
		s := listen(b)
		go func() { // ends with the server
			for c := range s.conns {
				go func() { _, _ = io.Copy(c, c) }()
			}
		}()
		line := []byte("ping\n")
		use := func(c net.Conn) {
			if exchanges {
				_, _ = c.Write(line)
				_, _ = io.ReadFull(c, line)
			}
		}
		b.Run(name+"/tcppool", func(b *testing.B) {
			d, address := dialer(b, tcppool.Config{}), s.Addr().String()
			b.ReportAllocs()
			for b.Loop() {
				c, err := d.Get(ctx, "tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				use(c)
				if !c.Release() {
					b.Fatal("not kept")
				}
			}
		})
		b.Run(name+"/floor", func(b *testing.B) {
			var mu sync.Mutex
			idle, address := map[string][]net.Conn{}, s.Addr().String()
			first, err := net.Dial("tcp", address)
			if err != nil {
				b.Fatal(err)
			}
			defer first.Close()
			idle[address] = append(idle[address], first)
			b.ReportAllocs()
			for b.Loop() {
				mu.Lock()
				list := idle[address]
				c := list[len(list)-1]
				idle[address] = list[:len(list)-1]
				mu.Unlock()
				use(c)
				mu.Lock()
				idle[address] = append(idle[address], c)
				mu.Unlock()
			}
		})
	}
}

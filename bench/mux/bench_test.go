package mux

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/bench/internal/cpu"
	"github.com/headpond/headpond/mux"
)

// each runs fn once per arm, on n logical connections over some sockets.
func each(b *testing.B, n, sockets int, fn func(b *testing.B, here, there []port)) {
	for _, a := range arms {
		b.Run(a.name, func(b *testing.B) { measure(b, a, n, sockets, fn) })
	}
}

// measure runs fn for one arm.
func measure(b *testing.B, a arm, n, sockets int, fn func(b *testing.B, here, there []port)) {
	here, there, stop := a.open(b, n, sockets)
	b.ReportAllocs()
	before := cpu.Time()
	fn(b, here, there)
	b.StopTimer()
	// Both sides and the runtime: steadier than time on a shared machine.
	b.ReportMetric(float64(cpu.Time()-before)/float64(b.N), "cpu-ns/op")
	stop()
}

// roundTrip sends size bytes there and back, one at a time.
func roundTrip(b *testing.B, size int) {
	each(b, 1, 1, func(b *testing.B, here, there []port) { pingPong(b, here[0], there[0], size) })
}

// pingPong sends size bytes to there, which sends them back. It leaves there waiting.
func pingPong(b *testing.B, here, there port, size int) {
	go func() {
		buf := make([]byte, size)
		for {
			m, err := there.recv(buf)
			if err != nil || there.send(m) != nil {
				return
			}
		}
	}()
	out, in := make([]byte, size), make([]byte, size)
	b.SetBytes(int64(2 * size))
	for b.Loop() {
		if err := here.send(out); err != nil {
			b.Fatal(err)
		}
		if m, err := here.recv(in); err != nil || len(m) != size {
			b.Fatal(len(m), err)
		}
	}
}

func BenchmarkRoundTrip100B(b *testing.B)   { roundTrip(b, 100) }
func BenchmarkRoundTrip1KiB(b *testing.B)   { roundTrip(b, 1<<10) }
func BenchmarkRoundTrip200KiB(b *testing.B) { roundTrip(b, 200<<10) }
func BenchmarkRoundTrip1MiB(b *testing.B)   { roundTrip(b, 1<<20) }

// BenchmarkSend1KiB times the sender while the other side receives as fast as it can.
func BenchmarkSend1KiB(b *testing.B) {
	each(b, 1, 1, func(b *testing.B, here, there []port) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for buf := make([]byte, 1<<10); ; {
				if m, err := there[0].recv(buf); err != nil || len(m) == 0 {
					return
				}
			}
		}()
		p := make([]byte, 1<<10)
		b.SetBytes(1 << 10)
		for b.Loop() {
			if err := here[0].send(p); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		here[0].send(nil)
		<-done
	})
}

// BenchmarkRecv1KiB times the receiver while the other side sends as fast as it can.
func BenchmarkRecv1KiB(b *testing.B) {
	each(b, 1, 1, func(b *testing.B, here, there []port) {
		go func() {
			for p := make([]byte, 1<<10); here[0].send(p) == nil; {
			}
		}()
		buf := make([]byte, 1<<10)
		b.SetBytes(1 << 10)
		for b.Loop() {
			if m, err := there[0].recv(buf); err != nil || len(m) != len(buf) {
				b.Fatal(len(m), err)
			}
		}
	})
}

// BenchmarkStalled is W4g: 1 KiB messages on 63 connections over one socket,
// beside a 64th that is idle (none) or whose receiver never reads (one).
func BenchmarkStalled(b *testing.B) {
	for _, stalled := range []string{"none", "one"} {
		b.Run(stalled, func(b *testing.B) {
			each(b, 64, 1, func(b *testing.B, here, there []port) {
				if stalled == "one" {
					go func() { // until the benchmark closes everything
						for p := make([]byte, 1<<10); here[0].send(p) == nil; {
						}
					}()
				}
				exchange(b, here[1:], there[1:])
			})
		})
	}
}

// BenchmarkReconnect is W4h: an operation is a connection lost in mid-stream and
// the session resumed with another, while 1 KiB messages flow. Messages lost,
// doubled or out of order fail it.
func BenchmarkReconnect(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	resume, made := &mux.Resume{}, make(chan *mux.Session, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if s, err := mux.Server(bg, conn, mux.Config{Resume: resume}); err == nil {
					made <- s
				}
			}()
		}
	}()
	var conn atomic.Pointer[net.TCPConn]
	dial := func(context.Context) (net.Conn, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		conn.Store(c.(*net.TCPConn))
		return c, nil
	}
	first, err := dial(bg)
	must(b, err)
	c, err := mux.Client(bg, first, mux.Config{Resume: &mux.Resume{Dial: dial}})
	must(b, err)
	s := <-made
	here, err := c.Open(bg, "bench")
	must(b, err)
	there, err := s.Accept(bg)
	must(b, err)
	go func() {
		p := make([]byte, 1<<10)
		for i := uint64(0); ; i++ {
			binary.BigEndian.PutUint64(p, i)
			if here.Send(bg, p) != nil {
				return
			}
		}
	}()
	buf, next, again := make([]byte, 1<<10), uint64(0), uint64(0)
	receive := func() {
		if _, err := there.ReceiveInto(bg, buf); err != nil || binary.BigEndian.Uint64(buf) != next {
			b.Fatalf("message %d where %d belongs, %v", binary.BigEndian.Uint64(buf), next, err)
		}
		next++
	}
	for b.Loop() {
		for range 100 {
			receive()
		}
		conn.Load().Close()
		for again++; s.Stats().Resumed < again; {
			receive()
		}
	}
	b.ReportMetric(float64(next)/float64(b.N), "messages/op")
	go c.Close()
	s.Close()
}

// channelsBench sends 1 KiB messages on n logical connections at once; an
// operation is one message received.
func channelsBench(b *testing.B, n, sockets int) {
	each(b, n, sockets, func(b *testing.B, here, there []port) {
		if name := b.Name(); strings.HasSuffix(name, "/raw") || strings.HasSuffix(name, "/study") {
			b.Log("one socket for each of", n)
		}
		exchange(b, here, there)
	})
}

// exchange moves b.N messages of 1 KiB, shared out to the connections.
func exchange(b *testing.B, here, there []port) {
	b.SetBytes(1 << 10)
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range here {
		n := len(here)
		count := b.N / n
		if i < b.N%n {
			count++
		}
		wg.Go(func() {
			p := make([]byte, 1<<10)
			for range count {
				if here[i].send(p) != nil {
					return
				}
			}
		})
		wg.Go(func() {
			buf := make([]byte, 1<<10)
			for range count {
				if m, err := there[i].recv(buf); err != nil || len(m) != len(buf) {
					b.Error(len(m), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkChannels256(b *testing.B) { channelsBench(b, 256, 4) }

func BenchmarkChannels(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		for _, sockets := range []int{1, 4} {
			if sockets > n {
				continue
			}
			b.Run(fmt.Sprintf("channels=%d/sockets=%d", n, sockets), func(b *testing.B) { channelsBench(b, n, sockets) })
		}
	}
}

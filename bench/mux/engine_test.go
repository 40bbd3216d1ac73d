package mux

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/mux"
)

// BenchmarkEngine runs a session over connections of each engine, which it takes
// from their loops; "direct" is a plain socket. "fiber" calls a stream over
// a plain socket from fibers, as a listener's session does with one of a tunnel.
func BenchmarkEngine(b *testing.B) {
	b.Run("direct", func(b *testing.B) { engineRounds(b, openHeadpond) })
	for _, kind := range []fiber.Kind{fiber.Goroutine, fiber.Epoll, fiber.Uring} {
		b.Run(string(kind), func(b *testing.B) {
			e, err := fiber.New(fiber.Config{Engine: kind, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Log(err) // this system does not have it
				return
			}
			defer e.Close()
			engineRounds(b, func(b *testing.B, n, _ int) (here, there []port, stop func()) {
				cc, sc := enginePair(b, e)
				return openOver(b, n, [][2]net.Conn{{cc, sc}}, mux.Config{})
			})
			b.Run("fiber", func(b *testing.B) { fiberRounds(b, e) })
		})
	}
}

// engineRounds measures the small and the large message on one connection.
func engineRounds(b *testing.B, open func(b *testing.B, n, sockets int) (here, there []port, stop func())) {
	for _, size := range []int{1 << 10, 200 << 10} {
		b.Run(fmt.Sprint("RoundTrip", size>>10, "KiB"), func(b *testing.B) {
			here, there, stop := open(b, 1, 1)
			defer stop()
			pingPong(b, here[0], there[0], size)
		})
	}
	b.Run("Send1KiB", func(b *testing.B) {
		here, there, stop := open(b, 1, 1)
		defer stop()
		exchange(b, here, there)
	})
}

// fiberRounds sends 1 KiB there and back on a stream whose ends fibers use.
func fiberRounds(b *testing.B, e *fiber.Engine) {
	cc, sc := socketPair(b)
	c, s := join(b, cc, sc, mux.Config{})
	near, err := c.OpenStream(bg, "bench")
	must(b, err)
	far, err := s.AcceptStream(bg)
	must(b, err)
	b.ReportAllocs()
	b.SetBytes(2 << 10)
	done := make(chan error, 2)
	e.Go(func() {
		st := fiber.StreamOf(far)
		_, err := io.CopyBuffer(st, struct{ io.Reader }{st}, make([]byte, 1<<10))
		done <- err
	})
	e.Go(func() {
		st := fiber.StreamOf(near)
		p := make([]byte, 1<<10)
		for b.Loop() {
			if _, err := st.Write(p); err != nil {
				done <- err
				return
			}
			if _, err := io.ReadFull(st, p); err != nil {
				done <- err
				return
			}
		}
		done <- near.CloseWrite()
	})
	for range 2 {
		must(b, <-done)
	}
	closeBoth(c, s)
}

// enginePair is a connection of e's, both ends.
func enginePair(b *testing.B, e *fiber.Engine) (client, server net.Conn) {
	b.Helper()
	l, err := e.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	client, err = e.DialContext(bg, "tcp", l.Addr().String())
	must(b, err)
	server, err = l.Accept()
	must(b, err)
	return client, server
}

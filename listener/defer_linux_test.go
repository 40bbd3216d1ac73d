package listener_test

import (
	"context"
	"io"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// TestSilentClientComesLater: where clients send first, one that has sent something is accepted before one that connected
// earlier and is silent. The silent one is accepted, too. An Update may change who sends first.
func TestSilentClientComesLater(t *testing.T) {
	for _, kind := range []fiber.Kind{fiber.Auto, fiber.Epoll} {
		t.Run(string(kind), func(t *testing.T) {
			e, err := fiber.New(fiber.Config{Engine: kind, Loops: 1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			if e.Kind() == fiber.Goroutine {
				t.Skip("no loops here")
			}
			l, err := e.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			accepted := make(chan string, 2)
			cfg := listener.Config{Name: "test", Protocol: "tcp", Logger: quiet}
			s, err := listener.New(cfg, listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
				accepted <- c.RemoteAddr().String()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}))
			if err != nil {
				t.Fatal(err)
			}
			conntest.Run(t, l, s.Serve, s.Close)
			silentFirst := func() bool {
				silent := conntest.Dial(t, l.Addr().String())
				defer silent.Close()
				speaker := conntest.Dial(t, l.Addr().String())
				defer speaker.Close()
				if _, err := io.WriteString(speaker, "x"); err != nil {
					t.Fatal(err)
				}
				first := <-accepted
				<-accepted
				return first == silent.LocalAddr().String()
			}
			if !silentFirst() {
				t.Error("a client was accepted before an earlier one although the server may send first")
			}
			cfg.ClientFirst = true
			if err := s.Update(cfg); err != nil {
				t.Fatal(err)
			}
			for range 20 { // on a busy machine a second may pass before the other client has sent its byte
				if !silentFirst() {
					return
				}
			}
			t.Error("a silent client is always accepted first although clients send first")
		})
	}
}

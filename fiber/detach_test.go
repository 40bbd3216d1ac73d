package fiber_test

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// Detach loses nothing: neither received data that was not read, nor data written just before, nor
// the end.
func TestDetach(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, network := range []string{"tcp", "unix"} {
			for _, onLoop := range []bool{true, false} {
				run := func(_ net.Conn, fn func()) { fn() }
				if onLoop {
					run = on
				}
				c, s := pair(t, e, network)
				on(c, func() {
					_, _ = c.Write([]byte("one two three"))
					_ = c.(interface{ CloseWrite() error }).CloseWrite()
				})
				big := random(t, 300<<10)
				var plain net.Conn
				var ahead []byte
				run(s, func() {
					_, err := io.ReadFull(s, make([]byte, 4))
					if err == nil {
						_, err = s.Write(big[:100])
					}
					if err == nil {
						plain, ahead, err = s.(fiber.Stream).Detach()
					}
					if err != nil {
						t.Error(err)
					}
				})
				if t.Failed() {
					return
				}
				if _, err := s.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
					t.Errorf("the connection of before: %v", err)
				}
				_ = s.Close() // means nothing any more
				if got, want := s.LocalAddr().String(), plain.LocalAddr().String(); got != want {
					t.Errorf("its address: %q, want %q", got, want)
				}
				rest, err := io.ReadAll(plain)
				if got := string(ahead) + string(rest); got != "two three" || err != nil {
					t.Errorf("%q and %q, %v", ahead, rest, err)
				}
				sent := make(chan error, 1)
				go func() {
					_, err := plain.Write(big[100:])
					sent <- errors.Join(err, plain.Close())
				}()
				on(c, func() {
					if got, err := io.ReadAll(c); string(got) != string(big) || err != nil {
						t.Errorf("%d bytes, %v", len(got), err)
					}
				})
				if err := <-sent; err != nil {
					t.Error(err)
				}
				_ = c.Close()
			}
		}
		for e.Stats().Conns > 0 {
			fiber.Sleep(1e6)
		}
	})
}

// Detach waits while a Read does; Close ends both.
func TestDetachWaits(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		read, detached := make(chan error, 1), make(chan error, 1)
		fiber.Spawn(s, func() {
			fiber.Spawn(s, func() {
				_, _, err := s.(fiber.Stream).Detach()
				detached <- err
			})
			_, err := s.Read(make([]byte, 1))
			read <- err
		})
		_ = s.Close()
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if err := <-detached; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		_ = c.Close()
	})
}

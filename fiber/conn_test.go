package fiber_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// on runs fn as a fiber of c's loop (or a goroutine) and waits for it.
func on(c net.Conn, fn func()) {
	done := make(chan struct{})
	fiber.Spawn(c, func() {
		defer close(done)
		fn()
	})
	<-done
}

func random(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestReadInSmallPieces(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		want := random(t, 100_000)
		fiber.Spawn(c, func() {
			if _, err := c.Write(want); err != nil {
				t.Error(err)
			}
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		})
		on(s, func() {
			var got []byte
			b := make([]byte, 7)
			for {
				n, err := s.Read(b)
				got = append(got, b[:n]...)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got %d bytes that differ from the %d sent", len(got), len(want))
			}
			if n, err := s.Read(b); n != 0 || err != io.EOF {
				t.Errorf("after the end Read = %d, %v, want 0, EOF again", n, err)
			}
		})
	})
}

// A writer that is far ahead of its reader waits, and loses nothing.
func TestWriteWaitsForTheReader(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		want := random(t, 16<<20)
		fiber.Spawn(c, func() {
			defer c.Close() // right after: written data must arrive
			for p := want; len(p) > 0; {
				n, err := c.Write(p[:min(len(p), 300_000)])
				if err != nil {
					t.Error(err)
					return
				}
				p = p[n:]
			}
		})
		on(s, func() {
			got, err := io.ReadAll(s)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, %v; want the %d that were sent", len(got), err, len(want))
			}
		})
	})
}

func TestHalfClose(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, network := range []string{"tcp", "unix"} {
			c, s := pair(t, e, network)
			on(c, func() {
				_, _ = c.Write([]byte("question"))
				if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Error(err)
				}
				if _, err := c.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
					t.Errorf("Write after CloseWrite: %v, want EPIPE", err)
				}
			})
			on(s, func() {
				if b, err := io.ReadAll(s); string(b) != "question" || err != nil {
					t.Errorf("got %q, %v", b, err)
				}
				if _, err := s.Write([]byte("answer")); err != nil {
					t.Error(err)
				}
				_ = s.Close()
			})
			on(c, func() {
				if b, err := io.ReadAll(c); string(b) != "answer" || err != nil {
					t.Errorf("got %q, %v", b, err)
				}
				_ = c.Close()
			})
		}
	})
}

func TestReset(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		on(c, func() {
			_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = c.Close()
		})
		on(s, func() {
			if _, err := s.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Read from a peer that reset: %v, want ECONNRESET", err)
			}
			var err error
			for err == nil { // the first may still be taken
				_, err = s.Write(make([]byte, 1<<20))
			}
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Write to a peer that reset: %v, want EPIPE or ECONNRESET", err)
			}
		})
	})
}

// A reset ends a Write that waits for room.
func TestResetWhileWriting(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		ended := make(chan error, 1)
		fiber.Spawn(c, func() {
			var err error
			for err == nil {
				_, err = c.Write(make([]byte, 1<<20))
			}
			ended <- err
		})
		on(s, func() {
			_, _ = s.Read(make([]byte, 1))
			_ = s.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = s.Close()
		})
		if err := <-ended; !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want EPIPE or ECONNRESET", err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		expired := func(what string, err error) {
			if ne, ok := errors.AsType[net.Error](err); !errors.Is(err, os.ErrDeadlineExceeded) || !ok || !ne.Timeout() {
				t.Errorf("%s: %v, want a deadline error", what, err)
			}
		}
		on(s, func() {
			b := make([]byte, 8)
			_ = s.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := s.Read(b)
			expired("a deadline that comes", err)
			_, err = s.Read(b)
			expired("a deadline that has passed", err)
			_ = s.SetReadDeadline(time.Unix(1, 0))
			_, err = s.Read(b)
			expired("a deadline long ago", err)
			_ = s.SetReadDeadline(time.Time{})
			_, _ = c.Write([]byte("x"))
			if n, err := s.Read(b); n != 1 || err != nil {
				t.Errorf("without deadline Read = %d, %v", n, err)
			}
		})
		moved := func(what string, first, second time.Time) {
			_ = s.SetReadDeadline(first)
			read := make(chan error, 1)
			fiber.Spawn(s, func() {
				_, err := s.Read(make([]byte, 8))
				read <- err
			})
			_ = s.SetReadDeadline(second)
			expired(what, <-read)
		}
		moved("a deadline moved into the past", time.Now().Add(time.Hour), time.Unix(1, 0))
		moved("a deadline moved forward", time.Now().Add(time.Hour), time.Now().Add(time.Millisecond))
		moved("a deadline moved back", time.Now().Add(time.Millisecond), time.Now().Add(5*time.Millisecond))
		moved("a deadline set late", time.Time{}, time.Now().Add(time.Millisecond))
	})
}

// A deadline that was read from somewhere, and so knows the time of day only, is as far away as it says, though the clock was set
// after the loops began (see export_linux_test.go).
func TestDeadlineByTimeOfDay(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		on(s, func() {
			_ = s.SetReadDeadline(time.Now().Add(time.Minute).Round(0))
			_, _ = c.Write([]byte("x"))
			if n, err := s.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Errorf("a minute before its deadline Read = %d, %v", n, err)
			}
			_ = s.SetReadDeadline(time.Now().Add(-time.Minute).Round(0))
			if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a minute after its deadline: %v", err)
			}
		})
	})
}

func TestWriteDeadline(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		on(c, func() {
			_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			var err error
			for err == nil {
				_, err = c.Write(make([]byte, 1<<20))
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Write to a peer that does not read: %v, want a deadline error", err)
			}
			_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = c.Close()
		})
	})
}

// Close ends whatever waits on the connection, from wherever it is called.
func TestCloseWhileWaiting(t *testing.T) {
	ops := map[string]func(c net.Conn) error{
		"read": func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err },
		"write": func(c net.Conn) (err error) {
			for err == nil {
				_, err = c.Write(make([]byte, 1<<20))
			}
			return err
		},
	}
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for name, op := range ops {
			for _, from := range []string{"fiber", "goroutine"} {
				c, s := pair(t, e, "tcp")
				started := make(chan struct{})
				ended := make(chan error, 1)
				fiber.Spawn(c, func() {
					close(started)
					ended <- op(c)
				})
				<-started
				if from == "fiber" {
					on(c, func() { _ = c.Close() })
				} else {
					_ = c.Close()
				}
				if err := <-ended; !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s, closed by a %s: %v, want net.ErrClosed", name, from, err)
				}
				if err := op(c); !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s after Close: %v, want net.ErrClosed", name, err)
				}
				_ = s.Close()
			}
		}
	})
}

func TestCloseWhileAccepting(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- fiber.Serve(l, func(c net.Conn) { _ = c.Close() }) }()
		c, err := e.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Read(make([]byte, 1)) // so it was accepted
		_ = c.Close()
		_ = l.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve returned %v, want net.ErrClosed", err)
		}
		if c, err := e.DialContext(t.Context(), "tcp", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			if err == nil {
				_ = c.Close()
			}
			t.Errorf("dial to a closed listener: %v, want ECONNREFUSED", err)
		}
	})
}

func TestManySessions(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = fiber.Serve(l, func(c net.Conn) {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}()
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				c, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				want := bytes.Repeat([]byte{byte(i)}, 1000+i)
				got := make([]byte, len(want))
				for range 20 {
					_, _ = c.Write(want)
					if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
						t.Errorf("session %d: %v, or bytes of another", i, err)
						return
					}
				}
			})
		}
		all.Wait()
		_ = l.Close()
	})
}

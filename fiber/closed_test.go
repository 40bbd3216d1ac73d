package fiber_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// bystanders are connections opened right after others were closed, so that some of them have got
// their descriptors.
type bystanders [][2]net.Conn

func newBystanders(t *testing.T, e *fiber.Engine, network string) (b bystanders) {
	t.Helper()
	for range 8 {
		c, s := pair(t, e, network)
		b.add(t, c, s)
	}
	return b
}

func (b *bystanders) add(t *testing.T, c, s net.Conn) {
	*b = append(*b, [2]net.Conn{c, s})
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	_, _ = c.Write([]byte("my own"))
	_, _ = s.Write([]byte("my own"))
}

// untouched checks that each end gets what the other sends and nothing else.
func (b bystanders) untouched(t *testing.T) {
	t.Helper()
	for _, ends := range b {
		for i, to := range ends {
			_ = to.SetReadDeadline(time.Now().Add(time.Minute))
			_ = ends[1-i].(interface{ CloseWrite() error }).CloseWrite()
			if got, err := io.ReadAll(to); err != nil || string(got) != "my own" {
				t.Errorf("an unrelated connection got %q, %v", got, err)
			}
		}
	}
}

// gone waits until the loop has closed everything that was to be closed.
func gone(c net.Conn) {
	done := make(chan struct{})
	go func() { // a goroutine's trips make the loop tick
		defer close(done)
		for range 20 {
			on(c, func() { fiber.Sleep(time.Microsecond) })
		}
	}()
	<-done
}

// A destination that is closed while CopyTo waits for its source gets nothing more, and neither
// does a later owner of its descriptor.
func TestCopyToAClosedDestination(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, network := range []string{"tcp", "unix"} {
			client, in, out, _ := chain(t, e, network)
			ended := make(chan [2]error, 1)
			fiber.Spawn(in, func() {
				readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(int) {}, nil)
				ended <- [2]error{readErr, writeErr}
			})
			gone(in)
			_ = out.Close()
			gone(in)
			others := newBystanders(t, e, network)
			_, _ = client.Write([]byte("secret"))
			if err := <-ended; err[0] != nil || !errors.Is(err[1], net.ErrClosed) {
				t.Errorf("%s: CopyTo to a closed connection: %v, want net.ErrClosed from writing", network, err)
			}
			others.untouched(t)
		}
	})
}

// A source that is closed while CopyTo waits for room in its destination is not read any more.
func TestCopyToFromAClosedSource(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, network := range []string{"tcp", "unix"} {
			client, in, out, server := chain(t, e, network)
			ended := make(chan [2]error, 1)
			fiber.Spawn(in, func() {
				readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(int) {}, nil)
				ended <- [2]error{readErr, writeErr}
			})
			_ = client.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)) // until nothing has room any more
			for err := error(nil); err == nil; {
				_, err = client.Write(make([]byte, 1<<20))
			}
			_ = in.Close()
			gone(in)
			others := newBystanders(t, e, network)
			go func() { _, _ = io.Copy(io.Discard, server) }()
			if err := <-ended; !errors.Is(err[0], net.ErrClosed) || err[1] != nil {
				t.Errorf("%s: CopyTo from a closed connection: %v, want net.ErrClosed from reading", network, err)
			}
			others.untouched(t)
		}
	})
}

// Close ends CopyTo in the middle of bulk that the kernel moves, whether it waits for more or for room.
func TestCloseWhileSplicing(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, source := range []bool{true, false} {
			for _, byFiber := range []bool{true, false} {
				client, in, out, server := chain(t, e, "tcp")
				var spliced atomic.Int64
				ended := make(chan [2]error, 1)
				fiber.Spawn(in, func() {
					readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(int) {}, func(n int) { spliced.Add(int64(n)) })
					ended <- [2]error{readErr, writeErr}
				})
				closed := out
				if source {
					closed = in
					go func() { _, _ = io.Copy(io.Discard, server) }()
					for spliced.Load() == 0 {
						_, _ = client.Write(make([]byte, 4<<20))
					}
				} else {
					stuff(t, client, stream{})
				}
				if spliced.Load() == 0 {
					t.Error("nothing was spliced")
				}
				gone(in)
				if byFiber {
					on(closed, func() { _ = closed.Close() })
				} else {
					_ = closed.Close()
				}
				gone(in)
				others := newBystanders(t, e, "tcp")
				if err := <-ended; errors.Is(err[0], net.ErrClosed) != source || errors.Is(err[1], net.ErrClosed) == source {
					t.Errorf("source %v: %v, want net.ErrClosed from reading or from writing", source, err)
				}
				others.untouched(t)
			}
		}
	})
}

// A connection that is closed while its writer lets others run gets nothing more.
func TestWriteToAClosedConnection(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		l := conntest.Listen(t)
		defer l.Close()
		const almost = 63 // operations; after one more the fiber lets others run
		on(s, func() { _, _ = s.Write(make([]byte, almost)) })
		ended := make(chan error, 1)
		var others bystanders
		fiber.Spawn(c, func() {
			for i := range almost {
				_, _ = c.Read(make([]byte, 1))
				if i == 0 {
					fiber.Sleep(time.Millisecond) // all has come
				}
			}
			fiber.Go(func() {
				_ = c.Close()
				others = openHere(t, l)
			})
			_, err := c.Write(bytes.Repeat([]byte("secret"), 4<<20))
			ended <- err
		})
		go func() { _, _ = io.Copy(io.Discard, s) }()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write: %v, want net.ErrClosed", err)
		}
		gone(s)
		others.untouched(t)
	})
}

// openHere opens bystanders of package net without letting other fibers run.
func openHere(t *testing.T, l net.Listener) (b bystanders) {
	for range 4 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
			return b
		}
		s, err := l.Accept()
		if err != nil {
			t.Error(err)
			return b
		}
		b.add(t, c, s)
	}
	return b
}

// A connection that is closed while it waits with patience is not looked at any more.
func TestWaitReadableForOnAClosedConnection(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		l := conntest.Listen(t)
		defer l.Close()
		ended := make(chan error, 1)
		fiber.Spawn(c, func() {
			_, err := c.(interface {
				WaitReadableFor(patience time.Duration) (bool, error)
			}).WaitReadableFor(time.Hour)
			ended <- err
		})
		gone(c)
		var others bystanders
		on(c, func() {
			_ = c.Close()
			var opened fiber.Group
			opened.Go(func() { others = openHere(t, l) }) // in the tick in which the other looks again
			opened.Wait()
		})
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v, want net.ErrClosed", err)
		}
		gone(s)
		others.untouched(t)
	})
}

// The address of a listener that a goroutine has closed is free, also while its Accept was waiting.
func TestClosedListenerFreesItsAddress(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		address := conntest.FreeAddress(t) // no connection of another process takes it between two listeners
		for range 50 {
			l, err := e.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			accepted := make(chan error, 1)
			go func() {
				accepted <- fiber.Serve(l, func(c net.Conn) { _ = c.Close() })
			}()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-accepted; !errors.Is(err, net.ErrClosed) {
				t.Fatalf("Serve = %v", err)
			}
			if err := l.Close(); !errors.Is(err, net.ErrClosed) {
				t.Fatalf("the second Close = %v", err)
			}
		}
	})
}

// Ended reports a peer's end that nobody waits for: at once, after the first message, and after bulk.
func TestEndedWithoutARead(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, size := range []int{0, 1, 100 << 10} {
			c, peer := pair(t, e, "tcp")
			looker, ok := c.(interface{ Ended() bool })
			if !ok {
				return // the goroutine engine's
			}
			on(peer, func() { _, _ = peer.Write(make([]byte, size)) })
			on(c, func() {
				if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
					t.Error(err)
				}
				if looker.Ended() {
					t.Errorf("%d bytes: the peer is still there", size)
				}
			})
			on(peer, func() { _ = peer.Close() })
			on(c, func() {
				for !looker.Ended() {
					if t.Context().Err() != nil {
						t.Fatal("the end is not reported")
					}
					fiber.Sleep(time.Millisecond)
				}
			})
			_ = c.Close()
		}
	})
}

// PeerClosed reports a peer's end behind unread data, however it was received.
func TestPeerClosedBehindData(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, network := range []string{"tcp", "unix"} {
			for _, used := range []bool{false, true} {
				c, peer := pair(t, e, network)
				looker, ok := c.(interface {
					Ended() bool
					PeerClosed() bool
				})
				if !ok {
					return // the goroutine engine's
				}
				if used { // it knows other things about itself after a Read
					on(peer, func() { _, _ = peer.Write(make([]byte, 1)) })
					on(c, func() { _, _ = c.Read(make([]byte, 1)) })
				}
				if on(peer, func() { _, _ = peer.Write([]byte("220 ready")) }); looker.PeerClosed() {
					t.Errorf("%s, used=%v: the peer is still there", network, used)
				}
				on(peer, func() { _ = peer.Close() })
				for _, where := range []func(func()){func(fn func()) { on(c, fn) }, func(fn func()) { fn() }} {
					where(func() {
						for !looker.PeerClosed() {
							fiber.Sleep(time.Millisecond)
						}
						if looker.Ended() {
							t.Errorf("%s, used=%v: there is something to read before the end", network, used)
						}
					})
				}
				on(c, func() {
					if got, err := io.ReadAll(c); string(got) != "220 ready" || err != nil {
						t.Errorf("%s, used=%v: read %q, %v", network, used, got, err)
					}
					if !looker.PeerClosed() || !looker.Ended() {
						t.Errorf("%s, used=%v: the end is forgotten", network, used)
					}
				})
				_ = c.Close()
			}
		}
	})
}

// Exactly one of many concurrent Close calls returns nil; later calls return net.ErrClosed.
func TestCloseOnce(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for range 20 {
			c, s := pair(t, e, "tcp")
			var closed atomic.Int64
			var all fiber.Group
			closing := func() {
				defer all.Done()
				if err := c.Close(); err == nil {
					closed.Add(1)
				} else if !errors.Is(err, net.ErrClosed) {
					t.Errorf("%v, want net.ErrClosed", err)
				}
			}
			all.Add(4)
			for range 2 {
				go closing()
				fiber.Spawn(c, closing)
			}
			all.Wait()
			if n := closed.Load(); n != 1 {
				t.Errorf("%d of 4 have closed it", n)
			}
			for what, err := range map[string]error{
				"Close":       c.Close(),
				"CloseWrite":  c.(interface{ CloseWrite() error }).CloseWrite(),
				"SetDeadline": c.SetDeadline(time.Now()),
			} {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s after Close: %v, want net.ErrClosed", what, err)
				}
			}
			_ = s.Close()
		}
	})
}

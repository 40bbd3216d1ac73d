package fiber_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// A fiber that writes all the time does not starve other writers of the same connection.
func TestWritersAlternate(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		defer c.Close()
		go func() { _, _ = io.Copy(io.Discard, s) }()
		const most = 100_000
		wrote, n := make(chan struct{}), 0
		on(c, func() {
			fiber.Go(func() {
				defer close(wrote)
				if _, err := c.Write([]byte("me, too")); err != nil {
					t.Error(err)
				}
			})
			for ; n < most; n++ {
				select {
				case <-wrote:
					return
				default:
				}
				if _, err := c.Write([]byte("x")); err != nil {
					t.Error(err)
				}
			}
		})
		<-wrote
		if n == most {
			t.Errorf("another wrote after %d writes only", n)
		}
	})
}

// A Write is in one piece, however large, also where many write to one connection, with TLS or without.
func TestWritesAreInOnePiece(t *testing.T) {
	const size, writers = 300_000, 4
	cfg := serverConfig()
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, secure := range []bool{false, true} {
			var c, s, home net.Conn
			if secure {
				client, server := tlsPair(t, e, cfg)
				c, s, home = client, server, client.NetConn()
			} else {
				c, s = pair(t, e, "tcp")
				home = c
			}
			var all sync.WaitGroup
			for i := range writers {
				all.Add(1)
				write := func() {
					defer all.Done()
					if n, err := c.Write(bytes.Repeat([]byte{byte(i)}, size)); n != size || err != nil {
						t.Errorf("Write: %d, %v", n, err)
					}
				}
				if i%2 == 0 || secure { // crypto/tls is not for goroutines and fibers at once
					fiber.Spawn(home, write)
				} else {
					go write()
				}
			}
			piece := make([]byte, size)
			for range writers {
				if _, err := io.ReadFull(s, piece); err != nil || !bytes.Equal(piece, bytes.Repeat(piece[:1], size)) {
					t.Errorf("TLS %v: a Write arrived in pieces, %v", secure, err)
				}
			}
			all.Wait()
			_, _ = c.Close(), s.Close()
		}
	})
}

// A fiber that writes while another is in the handshake, be it by a Read, waits and does not hold the loop.
func TestTLSHandshakeByTwo(t *testing.T) {
	cfg := serverConfig()
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		client, server := fiber.TLSClient(c, &tls.Config{InsecureSkipVerify: true}), fiber.TLSServer(s, cfg)
		var both fiber.Group
		both.Add(2)
		fiber.Spawn(s, func() {
			defer both.Done()
			got := make([]byte, 4)
			if _, err := io.ReadFull(server, got); string(got) != "ping" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
		fiber.Spawn(s, func() {
			defer both.Done()
			if _, err := server.Write([]byte("pong")); err != nil {
				t.Error(err)
			}
		})
		on(s, func() {}) // the loop still runs
		on(c, func() {
			got := make([]byte, 4)
			_, err := client.Write([]byte("ping"))
			if err == nil {
				_, err = io.ReadFull(client, got)
			}
			if string(got) != "pong" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
		both.Wait()
		on(s, func() { _ = server.Close() })
		on(c, func() { _ = client.Close() })
	})
}

// strange is a context that cannot be compared with another.
type strange struct {
	context.Context
	_ []int
}

func TestParkWithAStrangeContext(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		panicked := e.Stats().Panics
		on(c, func() {
			p := fiber.NewParker()
			for range 3 {
				go p.Unpark()
				if err := p.Park(strange{Context: ctx}); err != nil {
					t.Error(err)
				}
			}
			go cancel()
			if err := p.Park(strange{Context: ctx}); err == nil {
				t.Error("no error although the context has ended")
			}
		})
		if e.Stats().Panics > panicked {
			t.Error("Park panicked")
		}
	})
}

// A woken fiber runs in the same tick, before fibers that became ready after the one that woke it. A fiber that the woken one
// wakes runs in the next tick.
func TestWokenFiberRunsNext(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, _ := pair(t, e, "tcp")
		var order []string
		var all fiber.Group
		parkers := make([]*fiber.Parker, 2)
		waitFor := func(i int, then func()) {
			all.Add(1)
			fiber.Go(func() {
				defer all.Done()
				parkers[i] = fiber.NewParker()
				if err := parkers[i].Park(context.Background()); err != nil {
					t.Error(err)
				}
				then()
			})
		}
		on(c, func() {
			waitFor(0, func() { order = append(order, "second"); parkers[1].Unpark() })
			waitFor(1, func() { order = append(order, "fourth") })
		})
		on(c, func() {}) // they wait
		on(c, func() {
			all.Add(2)
			fiber.Go(func() { defer all.Done(); order = append(order, "first"); parkers[0].Unpark() })
			fiber.Go(func() { defer all.Done(); order = append(order, "third") })
		})
		all.Wait()
		if want := []string{"first", "second", "third", "fourth"}; !slices.Equal(order, want) {
			t.Errorf("continued as %v, want %v", order, want)
		}
	})
}

// Two fibers that wake each other all the time do not keep the loop from reading received data.
func TestWakingEachOtherDoesNotStarveTheKernel(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		var parkers [2]*fiber.Parker
		over := false // all of them are on one loop
		var all fiber.Group
		all.Add(2)
		on(s, func() {
			for i := range parkers {
				fiber.Go(func() {
					defer all.Done()
					parkers[i] = fiber.NewParker()
					for !over {
						if other := parkers[1-i]; other != nil {
							other.Unpark()
						}
						if err := parkers[i].Park(context.Background()); err != nil {
							t.Error(err)
						}
					}
					parkers[1-i].Unpark()
				})
			}
		})
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		on(s, func() {
			if _, err := s.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			over = true
			parkers[0].Unpark()
		})
		all.Wait()
	})
}

// A fiber that ends by runtime.Goexit does not delay the fibers that were woken with it.
func TestGoexitLeavesTheOthersThatWereWoken(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, _ := pair(t, e, "tcp")
		const n = 5
		var parkers [n]*fiber.Parker
		var all fiber.Group
		all.Add(n)
		on(c, func() {
			for i := range n {
				fiber.Go(func() {
					defer all.Done()
					parkers[i] = fiber.NewParker()
					if err := parkers[i].Park(context.Background()); err != nil {
						t.Error(err)
					}
					if i%2 == 0 {
						runtime.Goexit()
					}
				})
			}
		})
		on(c, func() {}) // they wait
		on(c, func() {
			for _, p := range parkers {
				p.Unpark()
			}
		})
		all.Wait()
	})
}

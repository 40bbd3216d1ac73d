package listener_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
)

var _ pool.Parker = (*fiber.Parker)(nil)

// Sessions of every loop wait for one pool that is much too small.
func TestPoolAcrossLoops(t *testing.T) {
	for _, kind := range []fiber.Kind{fiber.Auto, fiber.Epoll, fiber.Goroutine} {
		e, err := fiber.New(fiber.Config{Engine: kind, Loops: 3})
		if err != nil {
			t.Logf("without %s: %v", kind, err) // epoll is Linux's
			continue
		}
		p, err := pool.New(pool.Config[int]{
			Open: func(context.Context) (int, error) { return 0, nil }, Close: func(int) {},
			Limits: pool.Limits{MaxSize: 2},
		})
		if err != nil {
			t.Fatal(err)
		}
		var all fiber.Group
		at := everyLoop(t, e)
		for i := range 60 {
			all.Add(1)
			fiber.Spawn(at[i%len(at)], func() {
				defer all.Done()
				ctx := context.Background()
				if p := fiber.NewParker(); p != nil {
					ctx = pool.WithParker(ctx, p)
				}
				for range 50 {
					l, err := p.Acquire(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					fiber.Sleep(time.Microsecond)
					l.Release()
				}
			})
		}
		all.Wait()
		p.Close()
		_ = e.Close()
	}
}

// Sessions of several loops do not take connections from each other while each loop has some.
func TestPooledConnsStayOnTheirLoops(t *testing.T) {
	const loops, rounds = 3, 20
	for _, kind := range []fiber.Kind{fiber.Uring, fiber.Epoll} {
		e, err := fiber.New(fiber.Config{Engine: kind, Loops: loops})
		if err != nil {
			t.Logf("without %s: %v", kind, err)
			continue
		}
		backend, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p, err := pool.New(pool.Config[net.Conn]{
			Open:     func(ctx context.Context) (net.Conn, error) { return e.DialContext(ctx, "tcp", backend.Addr().String()) },
			Close:    func(c net.Conn) { _ = c.Close() },
			Affinity: fiber.LoopOf,
			Limits:   pool.Limits{MaxSize: 2 * loops},
		})
		if err != nil {
			t.Fatal(err)
		}
		at := everyLoop(t, e)
		var leased, all fiber.Group
		leased.Add(len(at))
		turn := make([]chan struct{}, len(at)+1) // one session after the other
		for i := range turn {
			turn[i] = make(chan struct{}, 1)
		}
		for i, client := range at {
			all.Add(1)
			fiber.Spawn(client, func() {
				defer all.Done()
				ctx := pool.WithParker(context.Background(), fiber.NewParker())
				l, err := p.Acquire(ctx)
				leased.Done()
				if err != nil {
					t.Error(err)
					return
				}
				fiber.StreamOf(l.Value()).Adopt()
				leased.Wait()
				l.Release()
				for range rounds {
					fiber.Block(func() { <-turn[i] })
					l, err := p.Acquire(ctx)
					if err != nil {
						t.Error(err)
					} else {
						if got, want := fiber.LoopOf(l.Value()), fiber.LoopOf(client); got != want {
							t.Errorf("%s: a connection of loop %d for a client of loop %d", kind, got, want)
						}
						l.Release()
					}
					turn[i+1] <- struct{}{}
				}
			})
		}
		for range rounds {
			turn[0] <- struct{}{}
			<-turn[len(at)]
		}
		all.Wait()
		p.Close()
		_ = backend.Close()
		_ = e.Close()
	}
}

// everyLoop returns connections that live on every loop, for the loops share evenly.
func everyLoop(t *testing.T, e *fiber.Engine) (conns []net.Conn) {
	t.Helper()
	l, err := e.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range max(1, e.Stats().Loops) {
		c, err := e.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = c.Close(), s.Close() })
		conns = append(conns, c, s)
	}
	return conns
}

// TestListenerDoesNotHoldTheLoop: connections of an engine wait for Accept, and the engine's loop
// does not.
func TestListenerDoesNotHoldTheLoop(t *testing.T) {
	e, err := fiber.New(fiber.Config{Loops: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	srv, err := listener.New(listener.Config{Logger: quiet}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	raw, err := e.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := srv.Listener(raw)
	for range 2 {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	c, err := l.Accept() // the other one waits
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for srv.Stats().Active < 2 {
	}
	for range 100 {
		ran := make(chan struct{})
		e.Go(func() { close(ran) })
		select {
		case <-ran:
		case <-time.After(conntest.Patience):
			t.Fatal("the loop stands still")
		}
	}
}

package fiber_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// loops runs a test on the engines that have loops.
func loops(t *testing.T, run func(t *testing.T, e *fiber.Engine)) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		if e.Kind() != fiber.Goroutine {
			run(t, e)
		}
	})
}

// chain returns the ends of client → (in, out) → server, which a test joins by CopyTo.
func chain(t *testing.T, e *fiber.Engine, network string) (client, in, out, server net.Conn) {
	t.Helper()
	client, in = pair(t, e, network)
	out, server = pair(t, e, network)
	t.Cleanup(func() {
		for _, c := range []net.Conn{client, in, out, server} {
			_ = c.Close()
		}
	})
	return client, in, out, server
}

func TestCopyTo(t *testing.T) {
	for range 100 { // a user without privileges has few pipes, and those of package net last until they are collected
		if fiber.CanSplice() {
			break
		}
		runtime.GC()
	}
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		for _, network := range []string{"tcp", "unix"} {
			for _, size := range []int{1, 1000, 16 << 10, 100_000, 8 << 20} {
				client, in, out, server := chain(t, e, network)
				want := random(t, size)
				var moved, spliced int
				copied := make(chan error, 1) // a send that waits would hold the loop
				fiber.Spawn(in, func() {
					readErr, writeErr := copyTo(in, out, func(n int) { moved += n }, func(n int) { spliced += n })
					if writeErr != nil {
						t.Error(writeErr)
					}
					_ = out.Close()
					copied <- readErr
				})
				go func() {
					_, _ = client.Write(want)
					_ = client.(interface{ CloseWrite() error }).CloseWrite()
				}()
				got, err := io.ReadAll(server)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: got %d bytes, %v; want the %d that were sent", network, len(got), err, size)
				}
				if err := <-copied; err != io.EOF || moved != size {
					t.Errorf("%s: CopyTo ended with %v after %d bytes, want EOF after %d", network, err, moved, size)
				}
				if bulk, small := size > 1<<20, size <= 16<<10; network == "tcp" && (bulk && spliced == 0 || small && spliced > 0) {
					t.Errorf("%s: %d of %d bytes were spliced", network, spliced, size)
				}
			}
		}
	})
}

// CopyTo also moves everything between connections of two loops, and reports which of them has failed.
func TestCopyToAcrossLoops(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		client, in, out, server := chain(t, e, "tcp")
		if fiber.SameLoop(in, out) {
			t.Fatal("both live on one loop")
		}
		want := random(t, 1<<20)
		moved := 0
		ended := make(chan [2]error, 1)
		fiber.Spawn(in, func() {
			readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(n int) { moved += n }, nil)
			ended <- [2]error{readErr, writeErr}
		})
		go func() { _, _ = client.Write(want) }()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes than were sent, %v", kind, err)
		}
		_ = out.Close()
		_, _ = client.Write([]byte("too late"))
		if err := <-ended; err[0] != nil || !errors.Is(err[1], net.ErrClosed) || moved != len(want) {
			t.Errorf("%s: %v after %d bytes; want net.ErrClosed from writing after %d", kind, err, moved, len(want))
		}
	}
}

// Bulk in one direction, small pieces in the other, of the same two connections.
func TestCopyToBothWays(t *testing.T) {
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		client, in, out, server := chain(t, e, "tcp")
		join := func(from, to net.Conn) {
			fiber.Spawn(from, func() {
				if _, err := copyTo(from, to, func(int) {}, nil); err != nil {
					t.Error(err)
				}
				_ = to.(interface{ CloseWrite() error }).CloseWrite()
			})
		}
		join(in, out)
		join(out, in)
		want := random(t, 8<<20)
		go func() { // the server answers each piece with its length
			buf := make([]byte, 100_000)
			for {
				n, err := server.Read(buf)
				if err != nil {
					break
				}
				_, _ = server.Write(buf[:n/100])
			}
			_ = server.(interface{ CloseWrite() error }).CloseWrite()
		}()
		go func() {
			_, _ = client.Write(want)
			_ = client.(interface{ CloseWrite() error }).CloseWrite()
		}()
		n, err := io.Copy(io.Discard, client)
		if err != nil || n == 0 || n > int64(len(want))/100 {
			t.Errorf("%d bytes came back, %v", n, err)
		}
	})
}

func TestCopyToFails(t *testing.T) {
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		_, in, out, server := chain(t, e, "tcp")
		client2, in2 := pair(t, e, "tcp")
		defer in2.Close()
		ended := make(chan [2]error, 1)
		start := func(from, to net.Conn) {
			fiber.Spawn(from, func() {
				readErr, writeErr := copyTo(from, to, func(int) {}, nil)
				ended <- [2]error{readErr, writeErr}
			})
		}
		start(in, out)
		_ = in.Close()
		if err := <-ended; !errors.Is(err[0], net.ErrClosed) || err[1] != nil {
			t.Errorf("closed source: %v, want net.ErrClosed from reading", err)
		}
		_ = server.(interface{ SetLinger(int) error }).SetLinger(0)
		_ = server.Close()
		on(out, func() { _, _ = out.Read(make([]byte, 1)) }) // the reset has come
		start(in2, out)
		go func() {
			for err := error(nil); err == nil; {
				_, err = client2.Write(make([]byte, 1000))
			}
		}()
		if err := <-ended; err[0] != nil || !errors.Is(err[1], syscall.EPIPE) && !errors.Is(err[1], syscall.ECONNRESET) {
			t.Errorf("reset destination: %v, want EPIPE or ECONNRESET from writing", err)
		}
		_ = client2.Close()
	})
}

// A receiver that stops reading in the middle of bulk delays only its own stream, and nothing is
// lost when it continues.
func TestCopyToSlowReceiver(t *testing.T) {
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		client, in, out, server := chain(t, e, "tcp")
		fiber.Spawn(in, func() {
			_, _ = copyTo(in, out, func(int) {}, nil)
			_ = out.Close()
		})
		want := random(t, 32<<20)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = client.Write(want)
			_ = client.(interface{ CloseWrite() error }).CloseWrite()
		}()
		first := make([]byte, 1000)
		if _, err := io.ReadFull(server, first); err != nil {
			t.Fatal(err)
		}
		other, echo := pair(t, e, "tcp") // the loop still serves others
		on(other, func() { _, _ = other.Write([]byte("x")) })
		on(echo, func() {
			if _, err := echo.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
		})
		_, _ = other.Close(), echo.Close()
		rest, err := io.ReadAll(server)
		if err != nil || !bytes.Equal(append(first, rest...), want) {
			t.Errorf("got %d bytes, %v; want the %d that were sent", len(first)+len(rest), err, len(want))
		}
		<-sent
	})
}

// A deadline ends a CopyTo that waits for more bulk, and another CopyTo begins. The old readiness is worthless then,
// and the loop must not wait for more.
func TestCopyToAgainAfterADeadline(t *testing.T) {
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		client, in, out, server := chain(t, e, "tcp")
		var spliced atomic.Int64
		ended := make(chan error, 1)
		start := func() {
			fiber.Spawn(in, func() {
				readErr, writeErr := copyTo(in, out, func(int) {}, func(int) { spliced.Add(1) })
				if writeErr != nil {
					t.Error(writeErr)
				}
				ended <- readErr
			})
		}
		bulk := func(n int) { // arrives at once
			go func() { _, _ = client.Write(bytes.Repeat([]byte("x"), n)) }()
			if _, err := io.ReadFull(server, make([]byte, n)); err != nil {
				t.Error(err)
			}
		}
		start()
		for spliced.Load() == 0 {
			bulk(4 << 20)
		}
		for range 5 {
			_ = in.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("CopyTo: %v, want a deadline error", err)
			}
			_ = in.SetReadDeadline(time.Time{})
			start()
			bulk(16 << 10) // one receive's worth, and no more
			_ = in.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("CopyTo: %v, want a deadline error", err)
			}
			_ = in.SetReadDeadline(time.Time{})
			start()
			for n := spliced.Load(); spliced.Load() == n; {
				bulk(4 << 20)
			}
		}
		_ = in.Close()
		<-ended
	})
}

// A deadline ends CopyTo also where there is always more to move.
func TestCopyToDeadlineInBulk(t *testing.T) {
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		client, in := plainPair(t, e)
		server, out := plainPair(t, e)
		_ = client.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		for err := error(nil); err == nil; { // as much as there is room for
			_, err = client.Write(make([]byte, 1<<20))
		}
		moved, late := 0, -1 // in all, and after the deadline
		ended := make(chan struct{})
		fiber.Spawn(in, func() {
			defer close(ended)
			defer out.Close()
			readErr, writeErr := copyTo(in, out, func(n int) {
				if moved += n; late >= 0 {
					late += n
				}
			}, func(int) {
				if late < 0 {
					late = 0
					_ = in.SetReadDeadline(time.Unix(1, 0))
				}
			})
			if !errors.Is(readErr, os.ErrDeadlineExceeded) || writeErr != nil {
				t.Errorf("CopyTo: %v, %v; want a deadline error from reading", readErr, writeErr)
			}
		})
		n, err := io.Copy(io.Discard, server)
		if <-ended; err != nil || n != int64(moved) {
			t.Errorf("%d bytes came, %v; %d were moved", n, err, moved)
		}
		if late < 0 || late > 1<<20 {
			t.Errorf("%d bytes were moved after the deadline, %d in all", late, moved)
		}
	})
}

// A panic of moved is raised in the caller of CopyTo, also where the loop has called moved.
func TestCopyToPanics(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		client, in, out, server := chain(t, e, "tcp")
		pieces, panicked := 0, make(chan any, 1)
		fiber.Spawn(in, func() {
			defer func() { panicked <- recover() }()
			_, _ = in.(fiber.Stream).CopyTo(out, func(int) {
				if pieces++; pieces == 3 {
					panic("third")
				}
			}, nil)
		})
		for range 3 { // each is there before the next is sent
			_, err := client.Write([]byte("piece"))
			if _, err2 := io.ReadFull(server, make([]byte, 5)); err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
		}
		if got := <-panicked; got != "third" {
			t.Errorf("CopyTo ended with the panic %v, want that of moved", got)
		}
	})
}

// Bulk that arrives as fast as it is copied leaves other fibers their ticks.
func TestCopyToHoldsNobodyUp(t *testing.T) {
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		client, in := plainPair(t, e)
		server, out := plainPair(t, e)
		moved, most := 0, 0 // in all, and between two runs of another fiber
		ended := make(chan struct{})
		var both fiber.Group
		both.Add(2)
		fiber.Spawn(in, func() {
			defer both.Done()
			defer close(ended)
			defer out.Close()
			if readErr, writeErr := copyTo(in, out, func(n int) { moved += n }, nil); readErr != io.EOF || writeErr != nil {
				t.Errorf("CopyTo: %v, %v", readErr, writeErr)
			}
		})
		fiber.Spawn(in, func() {
			defer both.Done()
			for last := 0; ; fiber.Sleep(0) {
				most = max(most, moved-last)
				last = moved
				select {
				case <-ended:
					return
				default:
				}
			}
		})
		go func() {
			for range 64 {
				_, _ = client.Write(make([]byte, 1<<20))
			}
			_ = client.Close()
		}()
		if n, err := io.Copy(io.Discard, server); n != 64<<20 || err != nil {
			t.Errorf("%d bytes came, %v", n, err)
		}
		if both.Wait(); most > 8<<20 {
			t.Errorf("%d bytes were moved in one go", most)
		}
	})
}

// The same holds for many bulk connections at once: bulk is moved for at most a millisecond in a tick, and here each piece takes that long.
func TestManyCopyToHoldNobodyUp(t *testing.T) {
	ways(t, func(t *testing.T, e *fiber.Engine, copyTo copier) {
		var ins, outs [32]net.Conn
		var sent, came, ended atomic.Int64
		var readers sync.WaitGroup
		for i := range ins {
			client, in := plainPair(t, e)
			server, out := plainPair(t, e)
			_ = client.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			for err := error(nil); err == nil; { // as much as there is room for
				var n int
				n, err = client.Write(make([]byte, 1<<20))
				sent.Add(int64(n))
			}
			_ = client.Close()
			readers.Go(func() {
				n, _ := io.Copy(io.Discard, server)
				came.Add(n)
			})
			ins[i], outs[i] = in, out
		}
		since, most := map[int]bool{}, 0 // the connections whose data was spliced since another fiber has run, and most of them
		copyOne := func(i int) {
			defer ended.Add(1)
			defer outs[i].Close()
			readErr, writeErr := copyTo(ins[i], outs[i], func(int) {}, func(int) {
				since[i] = true
				for begin := time.Now(); time.Since(begin) < time.Millisecond; { // keep the loop busy, as a piece does on a slow machine
				}
			})
			if readErr != io.EOF || writeErr != nil {
				t.Errorf("CopyTo: %v, %v", readErr, writeErr)
			}
		}
		on(ins[0], func() {
			for i, in := range ins {
				fiber.Spawn(in, func() { copyOne(i) })
			}
			for over := false; !over; fiber.Sleep(0) {
				over = ended.Load() == int64(len(ins))
				most = max(most, len(since))
				clear(since)
			}
		})
		if readers.Wait(); most > len(ins)/4 {
			t.Errorf("%d of %d connections were served in one go", most, len(ins))
		}
		if came.Load() != sent.Load() {
			t.Errorf("%d bytes of %d came", came.Load(), sent.Load())
		}
	})
}

// plainPair returns a connection of package net and its other end, which is the engine's.
func plainPair(t *testing.T, e *fiber.Engine) (plain, other net.Conn) {
	t.Helper()
	return pairOf(t, e, false)
}

// pairOf is plainPair, by MPTCP if the system has it: package net's listeners leave that to clients.
func pairOf(t *testing.T, e *fiber.Engine, multipath bool) (plain, other net.Conn) {
	t.Helper()
	l, err := e.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d net.Dialer
	d.SetMultipathTCP(multipath)
	if plain, err = d.DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if other, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = plain.Close(), other.Close() })
	return plain, other
}

package fiber_test

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// exchange sends n bytes from one end to the other.
func exchange(t *testing.T, from, to net.Conn, n int) {
	t.Helper()
	fiber.Spawn(from, func() { _, _ = from.Write(make([]byte, n)) })
	on(to, func() {
		if _, err := io.ReadFull(to, make([]byte, n)); err != nil {
			t.Error(err)
		}
	})
}

// idlers are connections that have done something and wait now, in all the ways there are, for an hour at most.
func idlers(t *testing.T, e *fiber.Engine) {
	t.Helper()
	for i := range 60 {
		c, s := pair(t, e, []string{"tcp", "unix"}[i%2])
		t.Cleanup(func() { _, _ = c.Close(), s.Close() })
		for _, n := range []int{1, 1000, 20_000, 300_000}[i%4:] {
			exchange(t, c, s, n)
			exchange(t, s, c, n)
		}
		for j, end := range []net.Conn{c, s} {
			_ = end.SetReadDeadline(time.Now().Add(time.Hour))
			switch (i + j) % 4 {
			case 0:
				fiber.Spawn(end, func() { _, _ = end.Read(make([]byte, 1)) })
			case 1:
				fiber.Spawn(end, func() { _, _ = end.(fiber.Stream).WaitReadableFor(time.Hour) })
			case 2:
				on(end, func() { end.(fiber.Stream).OnReadable(func() {}) })
			}
		}
	}
}

// Connections that wait hold no buffers of the loop, whatever went through them before.
func TestIdleHoldsNoBuffer(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		idlers(t, e)
		awaitNoBuffers(t, e)
	})
}

// Unread data, on however many connections, does not keep the loop's buffers from other connections.
func TestUnreadDataKeepsNoBuffers(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		const many = 150 // more than a loop has buffers
		for range many {
			c, s := pair(t, e, "tcp")
			t.Cleanup(func() { _, _ = c.Close(), s.Close() })
			exchange(t, c, s, 1)
			on(s, func() { _, _ = s.(fiber.Stream).WaitReadableFor(0) }) // its receives are multishot from now on
			on(c, func() { _, _ = c.Write([]byte("unread")) })
			on(s, func() { _, _ = s.(fiber.Stream).WaitReadableFor(time.Hour) })
		}
		c, s := pair(t, e, "tcp")
		_ = s.SetReadDeadline(time.Now().Add(time.Minute))
		exchange(t, c, s, 100_000)
		_, _ = c.Close(), s.Close()
	})
}

// A loop whose connections all wait does nothing, not even periodically.
func TestIdleLoopDoesNothing(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		idlers(t, e)
		for !e.WatchdogSleeps() {
			runtime.Gosched()
		}
		before := e.Stats().Ticks
		<-time.After(500 * time.Millisecond) // a slow machine makes fewer ticks
		if n := e.Stats().Ticks - before; n > 10 {
			t.Errorf("%d ticks in half a second of silence", n)
		}
	})
}

// A loop with bulk for a peer that has sent its FIN and does not read does nothing either; the bulk arrives once the peer reads.
func TestLoopIsIdleBeforeAHalfClosedPeer(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		client, in := plainPair(t, e)
		server, out := plainPair(t, e)
		if err := server.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		fiber.Spawn(in, func() {
			if readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(int) {}, nil); readErr != io.EOF || writeErr != nil {
				t.Errorf("CopyTo: %v, %v", readErr, writeErr)
			}
			_ = out.Close()
		})
		_ = client.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		sent := int64(0)
		for err := error(nil); err == nil; { // until nothing has room any more
			var n int
			n, err = client.Write(make([]byte, 1<<20))
			sent += int64(n)
		}
		_ = client.Close()
		conntest.Eventually(t, "the watchdog sleeps", e.WatchdogSleeps)
		before := e.Stats().Ticks
		<-time.After(500 * time.Millisecond) // a slow machine makes fewer ticks
		if n := e.Stats().Ticks - before; n > 10 {
			t.Errorf("%d ticks in half a second in which nothing can be moved", n)
		}
		if n, err := io.Copy(io.Discard, server); n != sent || err != nil {
			t.Errorf("%d bytes of %d came, %v", n, sent, err)
		}
	})
}

// The world is stopped in less than a millisecond while a loop waits, even if the loop was just busy and waits unknown
// to the scheduler. Once in a while is enough here: stopping the world also waits for the machine.
func TestStopTheWorld(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		for _, busy := range []bool{true, false} {
			for until := time.Now().Add(time.Minute); ; {
				if busy {
					exchange(t, c, s, 100)
				}
				var m runtime.MemStats
				start := time.Now()
				runtime.ReadMemStats(&m)
				if time.Since(start) < time.Millisecond {
					break
				}
				if time.Now().After(until) {
					t.Fatalf("busy %v: it took more than a millisecond each time", busy)
				}
			}
		}
	})
}

// An unread byte takes next to no memory, on any number of connections.
func TestUnreadTakesLittleMemory(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		const many, most = 100, 10 << 10
		var conns [many][2]net.Conn
		for i := range conns {
			c, s := pair(t, e, "tcp")
			t.Cleanup(func() { _, _ = c.Close(), s.Close() })
			exchange(t, c, s, 1)
			on(s, func() { _, _ = s.(fiber.Stream).WaitReadableFor(0) }) // its receives are multishot from now on
			conns[i] = [2]net.Conn{c, s}
		}
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		for _, c := range conns {
			on(c[0], func() { _, _ = c[0].Write([]byte("x")) })
		}
		for _, c := range conns {
			on(c[1], func() { _, _ = c[1].(fiber.Stream).WaitReadableFor(time.Hour) })
			gone(c[1])
		}
		if each := (heap() - before) / many; each > most {
			t.Errorf("%d bytes for an unread byte, want at most %d", each, most)
		}
	})
}

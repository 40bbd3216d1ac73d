package fiber_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// A pipe has no descriptor for a loop to wait for: its other end is read by a fiber of the same
// loop, which the first must not block.
func TestStreamOfWaitsElsewhere(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		near, far := net.Pipe()
		a, b := fiber.StreamOf(near), fiber.StreamOf(far)
		fiber.Spawn(c, func() {
			_, _ = io.Copy(a, a)
			_ = a.Close()
		})
		on(c, func() {
			if _, err := b.Write([]byte("over there")); err != nil {
				t.Error(err)
			}
			got := make([]byte, 10)
			if _, err := io.ReadFull(b, got); err != nil || string(got) != "over there" {
				t.Errorf("read %q, %v", got, err)
			}
			if err := b.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("half close of a pipe: %v", err)
			}
			_ = b.Close()
		})
	})
}

// TestStreamOfClosesWithoutWaiting: a fiber may hold a lock while it closes a connection.
func TestStreamOfClosesWithoutWaiting(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		if e.Kind() == fiber.Goroutine {
			return // others run meanwhile anyway
		}
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		near, far := net.Pipe()
		on(c, func() {
			others := false
			fiber.Spawn(c, func() { others = true })
			if _ = fiber.StreamOf(near).Close(); others {
				t.Error("another fiber has run meanwhile")
			}
		})
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the other end reads %v", err)
		}
	})
}

// closedLate is a connection whose Close waits until the engine has closed another one, and then fails or panics.
type closedLate struct {
	net.Conn
	other  net.Conn
	fault  any // a panic, unless nil
	closed bool
}

func (c *closedLate) Close() error {
	_, _ = c.other.Read(make([]byte, 1))
	c.closed = true
	if c.fault != nil {
		panic(c.fault)
	}
	return errors.New("the other end has gone")
}

// TestEngineWaitsForClose: the goroutine that closes a connection for a fiber ends with the engine, and the log has
// errors and panics that no caller gets. The race detector sees closed if nothing waits for it.
func TestEngineWaitsForClose(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue // there the caller waits, and gets the error
		}
		for _, fault := range []any{nil, "out of luck"} {
			log := conntest.Log{}
			e := newEngine(t, fiber.Config{Engine: kind, Loops: 1, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			c, s := pair(t, e, "tcp")
			near, far := net.Pipe()
			late := &closedLate{Conn: near, other: s, fault: fault}
			on(c, func() {
				if err := fiber.StreamOf(late).Close(); err != nil {
					t.Errorf("%s: Close in a fiber: %v", kind, err)
				}
			})
			_ = e.Close()
			want := `level=DEBUG msg="closing a connection has failed" error="the other end has gone"`
			if fault != nil {
				want = `level=ERROR msg="closing a connection panicked" panic="out of luck"`
			}
			if !late.closed || !strings.Contains(log.String(), want) {
				t.Errorf("%s: after the engine's Close the connection's has ended: %v; the log, without %s:\n%s", kind, late.closed, want, &log)
			}
			_, _ = near.Close(), far.Close()
		}
	}
}

// neverClosed is a connection whose Close does not return until the test is over.
type neverClosed struct {
	net.Conn
	over chan struct{}
}

func (c neverClosed) Close() error {
	<-c.over
	return c.Conn.Close()
}

// TestEngineEndsWithoutClose: a connection whose Close hangs does not keep the engine, and the program, from ending.
func TestEngineEndsWithoutClose(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue // there the caller waits
		}
		log := conntest.Log{}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		c, _ := pair(t, e, "tcp")
		near, far := net.Pipe()
		hangs := neverClosed{Conn: near, over: make(chan struct{})}
		on(c, func() { _ = fiber.StreamOf(hangs).Close() })
		before := fiber.ClosersGrace(1)
		_ = e.Close()
		fiber.ClosersGrace(before)
		close(hangs.over)
		_, _ = far.Read(make([]byte, 1)) // until it is closed
		if want := "are still not closed"; !strings.Contains(log.String(), want) {
			t.Errorf("%s: the log, without %q:\n%s", kind, want, &log)
		}
	}
}

func TestStreamOfLeavesTheEnginesOwn(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		if e.Kind() != fiber.Goroutine && fiber.StreamOf(c) != c {
			t.Error("an engine's connection was wrapped")
		}
		if w := fiber.StreamOf(c); fiber.StreamOf(w) != w {
			t.Error("a wrapped connection was wrapped again")
		}
	})
}

// parkable is a pipe whose fibers wait by a Parker.
type parkable struct {
	net.Conn
	rd, wr fiber.ParkerSlot
}

func (p *parkable) Read(b []byte) (int, error)  { return elsewhere(&p.rd, p.Conn.Read, b) }
func (p *parkable) Write(b []byte) (int, error) { return elsewhere(&p.wr, p.Conn.Write, b) }

// elsewhere runs op on a goroutine for a fiber.
func elsewhere(slot *fiber.ParkerSlot, op func([]byte) (int, error), b []byte) (n int, err error) {
	by := slot.Take()
	if by == nil {
		return op(b)
	}
	defer slot.Keep(by)
	done := make(chan struct{})
	go func() {
		n, err = op(b)
		close(done)
		by.Unpark()
	}()
	for {
		select {
		case <-done:
			return n, err
		default:
			_ = by.Park(context.Background())
		}
	}
}

// A ParkerSlot gives each fiber its own Parker, also when several use a connection at a time, and none on goroutines.
func TestParkerSlot(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		near, far := net.Pipe()
		a, b := &parkable{Conn: near}, &parkable{Conn: far}
		var all fiber.Group
		for range 4 {
			fiber.Spawn(c, func() { _, _ = io.Copy(a, struct{ io.Reader }{a}) })
			all.Add(1)
			fiber.Spawn(s, func() {
				defer all.Done()
				for range 50 {
					if _, err := b.Write([]byte("x")); err != nil {
						t.Error(err)
					}
					if _, err := b.Read(make([]byte, 1)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if _, err := b.Write([]byte("y")); err != nil { // here no fiber
			t.Error(err)
		}
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		_, _ = a.Close(), b.Close()
	})
}

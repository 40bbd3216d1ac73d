package fiber_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// until collects the data of TryRead until it is over, and the error of Read then.
func until(c fiber.Stream, patience time.Duration, got chan<- string) (calls int, err error) {
	if !c.Attend(func() bool {
		for calls++; ; {
			b, over := c.TryRead(patience)
			if len(b) == 0 {
				return over
			}
			got <- string(b)
		}
	}) {
		return 0, errors.New("Attend returned false")
	}
	_, err = c.Read(make([]byte, 1))
	return calls, err
}

// Each way in which reading can be over is an error of Read.
func TestAttendEnds(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, c := range map[string]struct {
			end  func(peer, c net.Conn)
			want error
		}{
			"end":           {func(peer, _ net.Conn) { _ = peer.(*net.TCPConn).CloseWrite() }, io.EOF},
			"reset":         {func(peer, _ net.Conn) { _ = peer.(*net.TCPConn).SetLinger(0); _ = peer.Close() }, syscall.ECONNRESET},
			"closed":        {func(_, c net.Conn) { _ = c.Close() }, net.ErrClosed},
			"past deadline": {func(_, c net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
			"deadline":      {func(_, c net.Conn) { _ = c.SetReadDeadline(time.Now().Add(time.Millisecond)) }, os.ErrDeadlineExceeded},
		} {
			peer, conn := plainPair(t, e)
			a := conn.(fiber.Stream)
			got, err := make(chan string), make(chan error, 1)
			fiber.Spawn(conn, func() {
				_, failed := until(a, 0, got)
				err <- failed
			})
			for _, piece := range []string{"one", "two", strings.Repeat("long", 10000)} {
				if _, err := peer.Write([]byte(piece)); err != nil {
					t.Fatal(err)
				}
				for left := piece; left != ""; {
					b := <-got
					if !strings.HasPrefix(left, b) {
						t.Fatalf("%s: got %.20q, want %.20q", name, b, left)
					}
					left = left[len(b):]
				}
			}
			c.end(peer, conn)
			if got := <-err; !errors.Is(got, c.want) {
				t.Errorf("%s: after it Read says %v, want %v", name, got, c.want)
			}
			_, _ = conn.Close(), peer.Close()
		}
	})
}

// Every wait has the whole time-out again, and data that arrives before its end is read.
func TestAttendTimeout(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		peer, conn := plainPair(t, e)
		defer peer.Close()
		defer conn.Close()
		a := conn.(fiber.Stream)
		on(conn, func() {
			var heard []string
			impatient := 0
			for impatient < 2 {
				a.Attend(func() bool {
					b, over := a.TryRead(time.Millisecond)
					if len(b) > 0 {
						heard = append(heard, string(b))
					}
					return over || len(b) > 0
				})
				if len(heard) == 0 {
					if impatient++; impatient == 1 {
						_, _ = peer.Write([]byte("late"))
					}
				} else {
					break
				}
			}
			if len(heard) != 1 || heard[0] != "late" {
				t.Errorf("heard %q", heard)
			}
			over := false
			a.Attend(func() bool {
				_, over = a.TryRead(time.Millisecond)
				return over
			})
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond)) // nothing has ended
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("after patience was over Read says %v", err)
			}
		})
	})
}

// Write sends what TryWrite has not taken, and nothing between is lost.
func TestAttendWrites(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		peer, conn := plainPair(t, e)
		defer peer.Close()
		defer conn.Close()
		a := conn.(fiber.Stream)
		data := random(t, 16<<20)
		sent := make(chan int, 1)
		fiber.Spawn(conn, func() {
			n := 0
			a.Attend(func() bool {
				n = a.TryWrite(data)
				return true
			})
			m, err := a.Write(data[n:])
			if err != nil {
				t.Error(err)
			}
			if n == len(data) {
				t.Error("everything was taken at once")
			}
			sent <- n + m
			_ = conn.Close()
		})
		got, err := io.ReadAll(peer)
		if err != nil || string(got) != string(data) || <-sent != len(data) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
		on(conn, func() {
			if n := a.TryWrite([]byte("x")); n != 0 {
				t.Errorf("%d bytes written after Close", n)
			}
		})
	})
}

// A step goes between connections of its loop and waits for one, then for another, and for a Parker.
func TestAttendTwo(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 1})
		client, in := plainPair(t, e)
		server, out := plainPair(t, e)
		defer client.Close()
		defer server.Close()
		parkers := make(chan *fiber.Parker, 1)
		done := make(chan struct{})
		fiber.Spawn(in, func() {
			defer close(done)
			defer in.Close()
			defer out.Close()
			from, to := in.(fiber.Stream), out.(fiber.Stream)
			if from.Loop() != fiber.LoopOf(out) {
				t.Error("not beside each other")
			}
			p := fiber.NewParker()
			parkers <- p
			stage := 0
			from.Attend(func() bool {
				for {
					switch stage {
					case 0, 2:
						b, over := from.TryRead(0)
						if len(b) == 0 {
							return over
						}
						if to.TryWrite(b) != len(b) {
							t.Error("no room")
						}
					case 1:
						b, over := to.TryRead(0)
						if len(b) == 0 {
							return over
						}
						if from.TryWrite(b) != len(b) {
							t.Error("no room")
						}
					case 3:
						if !p.TryPark() {
							return false
						}
						from.TryWrite([]byte("unparked"))
					default:
						return true
					}
					stage++
				}
			})
		})
		pass(t, client, server, "question")
		pass(t, server, client, "answer")
		pass(t, client, server, "thanks")
		p := <-parkers
		p.Nudge() // it looks again, and waits
		p.Unpark()
		b := make([]byte, 8)
		if _, err := io.ReadFull(client, b); err != nil || string(b) != "unparked" {
			t.Errorf("%s: got %q, %v", kind, b, err)
		}
		<-done
	}
}

// pass sends a text and checks that it arrives.
func pass(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	_, err := from.Write([]byte(text))
	b := make([]byte, len(text))
	if _, err2 := io.ReadFull(to, b); err != nil || err2 != nil || string(b) != text {
		t.Fatalf("got %q, %v, %v", b, err, err2)
	}
}

// A panic of a step is the fiber's, with a line in the log that names the step; the loop lives.
func TestAttendPanics(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		log := newLines()
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 1, Logger: log.logger()})
		peer, conn := plainPair(t, e)
		a := conn.(fiber.Stream)
		panicked, waits := make(chan any, 1), make(chan struct{}, 9)
		fiber.Spawn(conn, func() {
			defer func() { panicked <- recover() }()
			a.Attend(func() bool {
				b, over := a.TryRead(0)
				waits <- struct{}{}
				if len(b) > 0 {
					panicsHere()
				}
				return over
			})
		})
		<-waits // so that it is not the fiber that calls it
		_, _ = peer.Write([]byte("x"))
		if got := <-panicked; got != "out of luck" {
			t.Errorf("%s: Attend ended with the panic %v", kind, got)
		}
		if got := log.String(); !strings.Contains(got, "panicsHere") {
			t.Errorf("%s: the log does not name the place: %s", kind, got)
		}
		_, _ = conn.Close(), peer.Close()
	}
}

// Attend returns false off the connection's loop.
func TestAttendElsewhere(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		peer, conn := plainPair(t, e)
		defer peer.Close()
		defer conn.Close()
		called := false
		if conn.(fiber.Stream).Attend(func() bool { called = true; return true }) || called {
			t.Error("a goroutine attends")
		}
	})
}

// A step that holds its loop is named, as a fiber is.
func TestWatchdogNamesAStep(t *testing.T) {
	watched(t, func(e *fiber.Engine, log *lines) {
		peer, conn := plainPair(t, e)
		defer peer.Close()
		defer conn.Close()
		a, waits, done := conn.(fiber.Stream), make(chan struct{}, 9), make(chan struct{})
		var over atomic.Bool
		fiber.Spawn(conn, func() {
			defer close(done)
			a.Attend(func() bool {
				if b, ended := a.TryRead(0); len(b) == 0 {
					waits <- struct{}{}
					return ended
				}
				computes(&over)
				return true
			})
		})
		<-waits // so that it is not the fiber that calls it
		_, _ = peer.Write([]byte("x"))
		<-log.on
		over.Store(true)
		if got := log.String(); !strings.Contains(got, "fiber_test.computes(") {
			t.Errorf("the step is not named:\n%s", got)
		}
		<-done
	})
}

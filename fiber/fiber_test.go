package fiber_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// lines is a log that tests read.
type lines struct {
	conntest.Log
	on chan struct{} // gets one for every line
}

func newLines() *lines { return &lines{on: make(chan struct{}, 1000)} }

func (l *lines) Write(p []byte) (int, error) {
	defer func() { l.on <- struct{}{} }()
	return l.Log.Write(p)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func panicsHere() { panic("out of luck") }

func TestPanicEndsOneFiber(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue // there it ends the program, as ever
		}
		log := newLines()
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 1, Logger: log.logger()})
		c, s := pair(t, e, "tcp")
		fiber.Spawn(c, panicsHere)
		<-log.on
		on(c, func() { _, _ = c.Write([]byte("still here")) })
		on(s, func() {
			b := make([]byte, 10)
			if _, err := io.ReadFull(s, b); err != nil {
				t.Error(err)
			}
		})
		if got := log.String(); !strings.Contains(got, "out of luck") || !strings.Contains(got, "panicsHere") {
			t.Errorf("%s: the log does not name panic and place: %s", kind, got)
		}
		if n := e.Stats().Panics; n != 1 {
			t.Errorf("%s: %d panics counted, want 1", kind, n)
		}
		_, _ = c.Close(), s.Close()
	}
}

// TestRunOnEndsAsItsFunctionDid: a caller that only sees RunOn return would take unfinished work for a result.
func TestRunOnEndsAsItsFunctionDid(t *testing.T) {
	for _, kind := range kinds(t) {
		log := newLines()
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 1, Logger: log.logger()})
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan any, 1)
		for name, fn := range map[string]func(){"out of luck": panicsHere, "": runtime.Goexit} {
			go func() {
				returned := false
				defer func() {
					p := recover()
					if returned {
						p = "RunOn returned"
					}
					ended <- p
				}()
				fiber.RunOn(l, fn)
				returned = true
			}()
			if p := <-ended; name == "" && p != nil || name != "" && p != name {
				t.Errorf("%s: ended with %v, want %q", kind, p, name)
			}
		}
		if kind != fiber.Goroutine {
			for <-log.on; !strings.Contains(log.String(), "panicsHere"); {
				<-log.on
			}
		}
		_ = l.Close()
	}
}

func TestBlockLetsOthersRun(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		goOn := make(chan struct{})
		ended := make(chan any, 1)
		fiber.Spawn(c, func() {
			defer func() { ended <- recover() }()
			fiber.Block(func() { <-goOn })
			fiber.Block(func() { panic("in Block") })
		})
		on(s, func() { close(goOn) }) // the same loop
		if p := <-ended; p != "in Block" {
			t.Errorf("recovered %v, want the panic of the blocked function", p)
		}
	})
}

func TestSleep(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		woken := make(chan time.Time, 3) // the time at which they were to wake
		var all fiber.Group
		for _, d := range []time.Duration{60 * time.Millisecond, 1, 30 * time.Millisecond} {
			all.Add(1)
			e.Go(func() {
				defer all.Done()
				due := time.Now().Add(d)
				fiber.Sleep(d)
				if early := time.Until(due); early > 0 {
					t.Errorf("woke %v before %v were over", early, d)
				}
				woken <- due
			})
		}
		all.Wait()
		if e.Kind() == fiber.Goroutine {
			return // the scheduler decides who wakes first
		}
		for last := <-woken; len(woken) > 0; {
			due := <-woken
			if due.Before(last) {
				t.Errorf("woke %v after one that was to wake later", last.Sub(due))
			}
			last = due
		}
	})
}

// Fibers of several loops and goroutines take turns with one Mutex, held across waiting.
func TestMutexAndGroupAcrossLoops(t *testing.T) {
	for _, kind := range kinds(t) {
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 3})
		at := connsOfLoops(t, e, 3)
		var mu fiber.Mutex
		var all fiber.Group
		inside, count := 0, 0
		turn := func() {
			defer all.Done()
			for i := range 100 {
				mu.Lock()
				inside++
				if i%10 == 0 {
					fiber.Sleep(time.Microsecond)
				}
				if inside != 1 {
					t.Error("two hold the lock")
				}
				inside--
				count++
				mu.Unlock()
			}
		}
		for i := range 30 {
			all.Add(1)
			if i%3 == 0 {
				go turn()
			} else {
				fiber.Spawn(at[i%len(at)], turn)
			}
		}
		all.Wait()
		if count != 3000 {
			t.Errorf("%s: %d turns, want 3000", kind, count)
		}
	}
}

func TestUnlockOfUnlockedPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	var mu fiber.Mutex
	mu.Unlock()
}

func TestParker(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		if fiber.NewParker() != nil {
			t.Error("a goroutine got a Parker")
		}
		cancelled, cancel := context.WithCancel(context.Background())
		on(c, func() {
			p := fiber.NewParker()
			p.Unpark()
			if err := p.Park(context.Background()); err != nil {
				t.Errorf("Park after Unpark: %v", err)
			}
			go p.Unpark()
			if err := p.Park(context.Background()); err != nil {
				t.Errorf("Park and Unpark by a goroutine: %v", err)
			}
			fiber.Go(p.Unpark)
			if err := p.Park(cancelled); err != nil {
				t.Errorf("Park and Unpark by a fiber: %v", err)
			}
			go cancel()
			if err := p.Park(cancelled); !errors.Is(err, context.Canceled) {
				t.Errorf("Park with a context that ends: %v", err)
			}
			if err := p.Park(cancelled); !errors.Is(err, context.Canceled) {
				t.Errorf("Park with a context that has ended: %v", err)
			}
			go p.Unpark()
			if err := p.Park(context.Background()); err != nil {
				t.Errorf("Park with another context: %v", err)
			}
			fiber.Block(func() { // a goroutine on the fiber's behalf
				go p.Unpark()
				if err := p.Park(context.Background()); err != nil {
					t.Errorf("Park by a goroutine: %v", err)
				}
			})
		})
	})
}

func TestIdleConnectionIsSilent(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		ends := map[string]func(c net.Conn){
			"data": func(c net.Conn) { _, _ = c.Write([]byte("x")) },
			"end":  func(c net.Conn) { _ = c.Close() },
			"reset": func(c net.Conn) {
				_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
				_ = c.Close()
			},
		}
		for name, end := range ends {
			for _, used := range []bool{false, true} {
				c, s := pair(t, e, "tcp")
				if used { // its state differs after a Read
					on(c, func() { _, _ = c.Write([]byte("y")) })
					on(s, func() { _, _ = s.Read(make([]byte, 1)) })
				}
				on(s, func() {
					if s.(fiber.Stream).State() != fiber.Silent {
						t.Errorf("%s, used %v: not quiet before anything arrived", name, used)
					}
				})
				on(c, func() { end(c) })
				on(s, func() { // the arrival is learnt within the loop's next ticks
					for s.(fiber.Stream).State() == fiber.Silent {
						fiber.Sleep(time.Millisecond)
					}
				})
				_ = s.Close()
				on(s, func() {
					if s.(fiber.Stream).State() == fiber.Silent {
						t.Errorf("%s: quiet after Close", name)
					}
				})
				_ = c.Close()
			}
		}
	})
}

func TestWaitReadable(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		wait := s.(fiber.Stream).WaitReadable
		on(c, func() { _, _ = c.Write([]byte("x")) })
		on(s, func() {
			for range 2 {
				if err := wait(); err != nil {
					t.Error(err)
				}
			}
			_, _ = s.Read(make([]byte, 1))
			_ = s.SetReadDeadline(time.Now().Add(time.Millisecond))
			if err := wait(); err == nil {
				t.Error("readable although nothing came")
			}
			_ = s.Close()
			if err := wait(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("after Close: %v, want net.ErrClosed", err)
			}
		})
	})
}

// A connection of one loop is used on another, with something unread, before and after it moved.
func TestAdopt(t *testing.T) {
	for _, kind := range kinds(t) {
		if kind == fiber.Goroutine {
			continue
		}
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		c, s := pair(t, e, "tcp") // each on its own, for the loops share evenly
		on(c, func() { _, _ = c.Write([]byte("one two")) })
		on(s, func() { _, _ = io.ReadFull(s, make([]byte, 4)) })
		on(c, func() {
			b := make([]byte, 1)
			if _, err := s.Read(b); err != nil || b[0] != 't' {
				t.Errorf("%s: from another loop: %q, %v", kind, b, err)
			}
			s.(fiber.Stream).Adopt()
			b = make([]byte, 2)
			if _, err := io.ReadFull(s, b); err != nil || string(b) != "wo" {
				t.Errorf("%s: after Adopt: %q, %v", kind, b, err)
			}
			if _, err := s.Write([]byte("back")); err != nil {
				t.Error(err)
			}
			if b = make([]byte, 4); true {
				if _, err := io.ReadFull(c, b); err != nil || string(b) != "back" {
					t.Errorf("%s: %q, %v", kind, b, err)
				}
			}
			_ = s.Close()
			if _, err := c.Read(b); err != io.EOF {
				t.Errorf("%s: %v, want EOF", kind, err)
			}
		})
		_ = c.Close()
	}
}

// Data and a reset that arrive together are both reported.
func TestResetBehindData(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, used := range []bool{false, true} {
			c, s := plainPair(t, e)
			if used {
				_, _ = c.Write([]byte("before"))
				on(s, func() { _, _ = io.ReadFull(s, make([]byte, 6)) })
			}
			on(s, func() {
				_, _ = c.Write([]byte("last words")) // a goroutine's connection: it holds the loop until
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close() // both have arrived
				b, err := io.ReadAll(s)
				if string(b) != "last words" || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("used %v: got %q, %v; want the last words and ECONNRESET", used, b, err)
				}
			})
			if s.RemoteAddr().String() != c.LocalAddr().String() {
				t.Errorf("RemoteAddr %v after the reset, want %v", s.RemoteAddr(), c.LocalAddr())
			}
			_ = s.Close()
		}
	})
}

// While connections keep coming, existing connections make progress.
func TestAcceptingLetsOthersRun(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		if e.Kind() == fiber.Goroutine {
			return // the scheduler sees to it
		}
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		const flood = 100
		for range flood {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		accepted, seen := 0, -1
		fiber.RunOn(l, func() {
			fiber.Go(func() { seen = accepted })
			for accepted < flood {
				c, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				accepted++
				_ = c.Close()
			}
		})
		if seen < 0 || seen >= flood/2 {
			t.Errorf("another fiber ran after %d of %d connections, want it to run early", seen, flood)
		}
	})
}

// Asking whether something has arrived does not consume a reset.
func TestLookingLeavesTheReset(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, look := range map[string]func(fiber.Stream){
			"State":        func(l fiber.Stream) { l.State() },
			"Ended":        func(l fiber.Stream) { l.Ended() },
			"WaitReadable": func(l fiber.Stream) { _ = l.WaitReadable() },
		} {
			for _, size := range []int{0, 1, 7} { // nothing read before; all there was; and more room than that
				c, s := pair(t, e, "tcp")
				if size > 0 {
					on(c, func() { _, _ = c.Write([]byte("x")) })
					on(s, func() { _, _ = s.Read(make([]byte, size)) })
				}
				on(c, func() {
					_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
					_ = c.Close()
				})
				on(s, func() {
					for range 3 {
						look(s.(fiber.Stream))
						fiber.Sleep(time.Millisecond)
					}
					if _, err := s.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("Read after %s, %d: %v, want ECONNRESET", name, size, err)
					}
				})
				_ = s.Close()
			}
		}
	})
}

// A fiber that writes without end, to a peer that takes everything, lets others run.
func TestWriterLetsOthersRun(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer s.Close()
		defer c.Close()
		go func() { _, _ = io.Copy(io.Discard, s) }()
		on(c, func() {
			written, seen := 0, -1
			fiber.Go(func() { seen = written })
			for ; written < 1000 && seen < 0; written++ {
				if _, err := c.Write([]byte("x")); err != nil {
					t.Error(err)
				}
			}
			if seen < 0 {
				t.Errorf("no other fiber ran during %d writes", written)
			}
		})
	})
}

// runtime.Goexit ends its fiber, as it does a goroutine, also out of Block; the loop lives.
func TestGoexitEndsOneFiber(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		for name, fn := range map[string]func(){
			"Goexit":          runtime.Goexit,
			"Goexit in Block": func() { fiber.Block(runtime.Goexit) },
		} {
			on(c, func() {
				fn()
				t.Errorf("%s: the fiber continued", name)
			})
			on(c, func() {}) // the loop still runs
		}
		if e.Kind() == fiber.Goroutine {
			return
		}
		for e.Stats().Fibers > 0 {
			fiber.Sleep(time.Millisecond)
		}
	})
}

// A coroutine within a fiber that waits for the fiber's loop would wait for itself.
func TestCoroutineWithinAFiber(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c, s := pair(t, e, "tcp")
		defer c.Close()
		defer s.Close()
		on(c, func() {
			next, stop := iter.Pull(func(func(int) bool) { _, _ = c.Read(make([]byte, 1)) })
			defer stop()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			next()
		})
		on(c, func() {})
	})
}

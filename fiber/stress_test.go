package fiber_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// stream is a reproducible sequence of bytes, another one for each seed.
type stream struct {
	seed, at uint64
}

func (s *stream) fill(b []byte) {
	for i := range b {
		x := (s.at + s.seed*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
		b[i] = byte(x >> 56)
		s.at++
	}
}

// stressed is a proxy under test: clients talk to an echo server through it.
type stressed struct {
	t    *testing.T
	e    *fiber.Engine
	echo net.Listener
	in   net.Listener
	wg   sync.WaitGroup
}

func startStressed(t *testing.T, e *fiber.Engine) *stressed {
	t.Helper()
	s := &stressed{t: t, e: e}
	for _, l := range []*net.Listener{&s.echo, &s.in} {
		var err error
		if *l, err = e.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	s.wg.Go(func() {
		_ = fiber.Serve(s.echo, func(c net.Conn) {
			defer c.Close()
			echo(c)
		})
	})
	s.wg.Go(func() { _ = fiber.Serve(s.in, s.session) })
	return s
}

// echo dies at a random point.
func echo(c net.Conn) {
	buf := make([]byte, 20_000)
	for left := rand.IntN(400_000); left > 0; {
		n, err := c.Read(buf)
		if err != nil {
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
	if rand.IntN(2) == 0 {
		_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
	}
}

// session proxies by CopyTo where there is one, or by Read and Write.
func (s *stressed) session(c net.Conn) {
	defer c.Close()
	d, err := s.e.DialContext(s.t.Context(), "tcp", s.echo.Addr().String())
	if err != nil {
		s.t.Error(err)
		return
	}
	defer d.Close()
	plain := rand.IntN(2) == 0
	move := func(from, to net.Conn) {
		if cp, ok := from.(fiber.Stream); ok && !plain {
			_, _ = cp.CopyTo(to, func(int) {}, nil)
		} else {
			_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 5000))
		}
		_ = to.(interface{ CloseWrite() error }).CloseWrite()
	}
	var other fiber.Group
	other.Go(func() { move(d, c) })
	move(c, d)
	other.Wait()
}

// client sends a stream in random pieces and checks that the echo is the same stream, up to the
// point where it ends. It dies at a random point.
func (s *stressed) client(seed uint64) error {
	c, err := net.Dial("tcp", s.in.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	var sent sync.WaitGroup
	sent.Go(func() {
		out := stream{seed: seed}
		buf := make([]byte, 70_000)
		for left := rand.IntN(500_000); left > 0; {
			b := buf[:1+rand.IntN(min(left, len(buf)))]
			out.fill(b)
			if _, err := c.Write(b); err != nil {
				return
			}
			left -= len(b)
		}
		_ = c.(*net.TCPConn).CloseWrite()
	})
	defer sent.Wait()
	if rand.IntN(3) == 0 {
		_ = c.(*net.TCPConn).SetLinger(0)
	}
	in := stream{seed: seed}
	got, want := make([]byte, 30_000), make([]byte, 30_000)
	for enough := rand.IntN(600_000); enough > 0; {
		n, err := c.Read(got)
		in.fill(want[:n])
		for i := range got[:n] {
			if got[i] != want[i] {
				return fmt.Errorf("stream %d: byte %d is %#x, want %#x", seed, in.at-uint64(n-i), got[i], want[i])
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("stream %d hangs: %w", seed, err)
		}
		if err != nil {
			break
		}
		enough -= n
	}
	return c.Close()
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // not Linux
	}
	return len(files) - fiber.PipeFiles()
}

// The kernel owns its memory alone: under a collector that runs all the time, with freed buffers
// poisoned and peers that die at any point, every byte that arrives is the right one, and no
// resource is left at the end.
func TestStress(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	fiber.PoisonFreed(true)
	defer fiber.PoisonFreed(false)
	before := openFiles(t)
	rounds := 6
	if testing.Short() { // under the collector's check mode, which takes many times as long
		rounds = 2
	}
	for _, kind := range kinds(t) {
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		s := startStressed(t, e)
		var clients sync.WaitGroup
		for i := range 16 {
			clients.Go(func() {
				for round := range rounds {
					e.Trim() // at any time
					if err := s.client(uint64(i*1000 + round)); err != nil && !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("%s: %v", kind, err)
						return
					}
				}
			})
		}
		clients.Wait()
		_, _ = s.in.Close(), s.echo.Close()
		s.wg.Wait()
		for kind != fiber.Goroutine { // the last sessions end by themselves
			st := e.Stats()
			recv, send := e.Buffers()
			if st.Conns == 0 && st.Fibers == 0 && recv == 0 && send == 0 && e.Timers() == 0 {
				break
			}
			if t.Failed() {
				t.Fatalf("%s: left over: %+v, %d receive and %d send buffers", kind, st, recv, send)
			}
			runtime.Gosched()
		}
		_ = e.Close()
	}
	// Goroutines' sessions end by themselves. The runtime opens its poller once.
	for until := time.Now().Add(2 * time.Minute); openFiles(t) > before+2; runtime.Gosched() {
		if time.Now().After(until) {
			t.Fatalf("%d files are open, %d were before", openFiles(t), before)
		}
	}
}

// The same under the collector's check mode, which marks everything a second time with the world
// stopped and reports what the first marking missed.
func TestStressCheckMark(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStress$", "-test.short")
	cmd.Env = append(os.Environ(), "GODEBUG=gccheckmark=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

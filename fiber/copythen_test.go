package fiber_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// copier is CopyTo, or CopyThen and a wait for its end.
type copier func(src, dst net.Conn, moved, spliced func(int)) (readErr, writeErr error)

// ways runs a test with both, on the engines that have loops.
func ways(t *testing.T, run func(t *testing.T, e *fiber.Engine, copyTo copier)) {
	for name, copyTo := range map[string]copier{
		"CopyTo": func(src, dst net.Conn, moved, spliced func(int)) (readErr, writeErr error) {
			return src.(fiber.Stream).CopyTo(dst, moved, spliced)
		},
		"CopyThen": copyThen,
	} {
		t.Run(name, func(t *testing.T) {
			loops(t, func(t *testing.T, e *fiber.Engine) { run(t, e, copyTo) })
		})
	}
}

// errNotTaken is when CopyThen has returned false.
var errNotTaken = errors.New("not taken")

// copyThen is CopyThen and a wait for its end.
func copyThen(src, dst net.Conn, moved, spliced func(int)) (readErr, writeErr error) {
	var over fiber.Group
	over.Add(1)
	if !fiber.CopyThen(src.(fiber.Stream), dst, moved, spliced, func(r, w error) {
		readErr, writeErr = r, w
		over.Done()
	}) {
		return errNotTaken, errNotTaken
	}
	over.Wait()
	return readErr, writeErr
}

// TestCopyThenHoldsNoStack: while nothing arrives there is no fiber; what comes later is copied, and the end arrives.
func TestCopyThenHoldsNoStack(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		client, in, out, server := chain(t, e, "tcp")
		started, over := make(chan bool, 1), make(chan error, 2)
		fiber.Spawn(in, func() {
			started <- fiber.CopyThen(fiber.Ahead(in.(fiber.Stream), []byte("before ")), out, func(int) {}, nil, func(readErr, writeErr error) {
				over <- writeErr
				over <- readErr
			})
		})
		if !<-started {
			t.Fatal("not taken")
		}
		want := "before "
		for _, piece := range []string{"one ", "two ", "three"} {
			if _, err := io.WriteString(client, piece); err != nil {
				t.Fatal(err)
			}
			want += piece
			got := make([]byte, len(want))
			if _, err := io.ReadFull(server, got); err != nil || string(got) != want {
				t.Fatalf("got %q, %v; want %q", got, err, want)
			}
			want = ""
			for e.Stats().Fibers > 0 && t.Context().Err() == nil {
				fiber.Sleep(1)
			}
		}
		_ = client.Close()
		if writeErr, readErr := <-over, <-over; writeErr != nil || readErr != io.EOF {
			t.Errorf("it ended with %v, %v; want EOF", readErr, writeErr)
		}
	})
}

// TestCopyThenAfterClose: the copying ends when its source is closed by another fiber, and with the next data when its destination is.
func TestCopyThenAfterClose(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for _, closed := range []string{"in", "out", "in before", "out before"} {
			client, in, out, _ := chain(t, e, "tcp")
			victim := in
			if strings.HasPrefix(closed, "out") {
				victim = out
			}
			if strings.HasSuffix(closed, "before") {
				_ = victim.Close()
			}
			started, over := make(chan bool, 1), make(chan error, 1)
			fiber.Spawn(in, func() {
				started <- fiber.CopyThen(in.(fiber.Stream), out, func(int) {}, nil, func(readErr, writeErr error) { over <- errors.Join(readErr, writeErr) })
			})
			if !<-started {
				t.Fatalf("%s: not taken", closed)
			}
			_ = victim.Close()
			var err error
			for waiting := true; waiting; {
				select {
				case err = <-over:
					waiting = false
				default: // data wakes the copying, which looks at both connections; the loop may close victim after the first data
					_, _ = client.Write([]byte("x"))
					fiber.Sleep(time.Millisecond)
				}
			}
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: it ended with %v", closed, err)
			}
		}
	})
}

// TestCopyThenPanics: a panic of moved or spliced ends the copying with an error, whether CopyThen's caller, the loop or the fiber that splices has
// called it. Then both sides may be copied again.
func TestCopyThenPanics(t *testing.T) {
	const never = 1 << 30
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, after := range map[string]int{"ahead": 6, "caller": 1, "loop": 10, "splicing": 4 << 20, "spliced": never} {
			client, in, out, server := chain(t, e, "tcp")
			go func() { _, _ = io.Copy(io.Discard, server) }()
			src, panics := in.(fiber.Stream), e.Stats().Panics
			if name == "ahead" {
				src = fiber.Ahead(src, []byte("before"))
			}
			if name == "caller" {
				_, _ = client.Write([]byte("x"))
				for in.(fiber.Stream).State() != fiber.Pending && t.Context().Err() == nil {
					fiber.Sleep(1)
				}
			}
			started, over, n := make(chan bool, 1), make(chan error, 1), 0
			moved := func(moved int) {
				if n += moved; n >= after {
					panic("enough")
				}
			}
			spliced := func(int) {
				if after == never {
					panic("enough")
				}
			}
			begin := func(src fiber.Stream, moved, spliced func(int)) {
				fiber.Spawn(in, func() {
					started <- fiber.CopyThen(src, out, moved, spliced, func(readErr, writeErr error) { over <- errors.Join(readErr, writeErr) })
				})
				if !<-started {
					t.Errorf("%s: not taken", name)
					over <- nil
				}
			}
			begin(src, moved, spliced)
			go func() { // until in is closed
				for piece := make([]byte, 1<<20); ; {
					if _, err := client.Write(piece); err != nil {
						return
					}
				}
			}()
			if err := <-over; !errors.Is(err, fiber.ErrPanicked) || !strings.Contains(err.Error(), "enough") {
				t.Errorf("%s: it ended with %v", name, err)
			}
			if n := e.Stats().Panics - panics; n != 1 {
				t.Errorf("%s: %d panics are counted", name, n)
			}
			begin(in.(fiber.Stream), func(int) {}, nil)
			_ = in.Close()
			if err := <-over; !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: the second copying ended with %v", name, err)
			}
		}
	})
}

// TestCopyThenNotTaken: it needs a fiber of the loop of both connections, and sides that nobody uses.
func TestCopyThenNotTaken(t *testing.T) {
	never := func(_, _ error) { t.Error("it has copied") }
	loops(t, func(t *testing.T, e *fiber.Engine) {
		client, in, out, _ := chain(t, e, "tcp")
		plain, other := net.Pipe()
		defer plain.Close()
		defer other.Close()
		src, moved := in.(fiber.Stream), func(int) {}
		if fiber.CopyThen(src, out, moved, nil, never) {
			t.Error("a goroutine's call was taken")
		}
		refused, reading := make(chan bool, 3), make(chan struct{})
		fiber.Spawn(in, func() {
			refused <- fiber.CopyThen(src, plain, moved, nil, never)
			refused <- fiber.CopyThen(fiber.StreamOf(plain), out, moved, nil, never)
			begun := false
			src.Go(func() {
				defer close(reading)
				begun = true
				_, _ = in.Read(make([]byte, 1))
			})
			for !begun { // then it is in Read, until there is data
				fiber.Sleep(1)
			}
			refused <- fiber.CopyThen(src, out, moved, nil, never)
		})
		for i := range 3 {
			if <-refused {
				t.Errorf("case %d was taken", i)
			}
		}
		_ = client.Close()
		<-reading
	})
}

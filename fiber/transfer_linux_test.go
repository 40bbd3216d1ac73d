//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
)

// TestTransferSplices: bulk between TCP connections does not enter the process, little does, and no pipe is held without bytes in it.
func TestTransferSplices(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, size := range []int{1000, 4 << 20} {
			client, in, out, server := chain(t, e, "tcp")
			go func() { _, _ = client.Write(make([]byte, size)) }()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			src, dst := fiber.StreamOf(in), fiber.StreamOf(out)
			spliced := 0
			var failed error
			on(in, func() {
				var tr fiber.Transfer
				defer tr.Drop()
				for left := int64(size); left > 0 && failed == nil; {
					if held := fiber.PipesHeld(); held != 0 {
						t.Errorf("%d pipes are held before bytes come", held)
					}
					var n int
					if n, failed = tr.Receive(src, dst, left); failed != nil {
						return
					}
					if tr.InPipe() {
						spliced += n
					}
					left -= int64(n)
					failed = tr.Send(dst, func(int) {})
				}
			})
			if failed != nil || (size > 1<<20) != (spliced > 0) || spliced < size/2 && size > 1<<20 {
				t.Errorf("%d of %d bytes were spliced, %v", spliced, size, failed)
			}
		}
	})
}

// TestTransferOfAReset: a source that is broken has not ended, also where a splice finds out.
func TestTransferOfAReset(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		client, in, out, server := chain(t, e, "tcp")
		go func() { _, _ = io.Copy(io.Discard, server) }()
		go func() {
			_, _ = client.Write(make([]byte, 1<<20))
			_ = client.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = client.Close()
		}()
		if _, _, readErr, writeErr := transferAll(in, out, 1<<40); !errors.Is(readErr, unix.ECONNRESET) || writeErr != nil {
			t.Errorf("%v, %v; want a reset", readErr, writeErr)
		}
	})
}

// TestTransferGivesPipesBack: also when the data in them is never sent.
func TestTransferGivesPipesBack(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		client, in, out, _ := chain(t, e, "tcp")
		go func() { _, _ = client.Write(make([]byte, 64<<20)) }()
		_ = out.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		if _, _, _, err := transferAll(in, out, 64<<20); err == nil {
			t.Fatal("everything was written, although nothing reads")
		}
		if held := fiber.PipesHeld(); held != 0 {
			t.Errorf("%d pipes are held", held)
		}
		src := fiber.StreamOf(in)
		on(in, func() {
			var tr fiber.Transfer
			if _, err := tr.Receive(src, out, 1<<20); err != nil {
				t.Error(err)
			}
			if !tr.InPipe() {
				t.Error("bulk was copied")
			}
			tr.Drop()
		})
		if held := fiber.PipesHeld(); held != 0 {
			t.Errorf("%d pipes are held after Drop", held)
		}
		panicsIn(t, e)
		if held := fiber.PipesHeld(); held != 0 {
			t.Errorf("%d pipes are held after a panic", held)
		}
	})
}

// panicsIn has moved panic when a piece in a pipe is sent.
func panicsIn(t *testing.T, e *fiber.Engine) {
	t.Helper()
	client, in, out, server := chain(t, e, "tcp")
	go func() { _, _ = client.Write(make([]byte, 1<<20)) }()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	on(in, func() {
		var tr fiber.Transfer
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		for range 2 { // the first piece may be small
			if _, err := tr.Receive(fiber.StreamOf(in), out, 1<<20); err != nil {
				t.Error(err)
			}
			_ = tr.Send(fiber.StreamOf(out), func(int) {
				if tr.InPipe() {
					panic("moved")
				}
			})
		}
	})
}

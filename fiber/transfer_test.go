package fiber_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// transferAll moves size bytes from one connection to another, as one of their fibers, and returns how many were received and
// moved, and the error of each step.
func transferAll(from, to net.Conn, size int64) (received, moved int64, readErr, writeErr error) {
	over := make(chan struct{})
	src, dst := fiber.StreamOf(from), fiber.StreamOf(to)
	src.Go(func() {
		defer close(over)
		var t fiber.Transfer
		defer t.Drop()
		for received < size {
			n := 0
			if n, readErr = t.Receive(src, dst, size-received); readErr != nil {
				return
			}
			received += int64(n)
			if writeErr = t.Send(dst, func(n int) { moved += int64(n) }); writeErr != nil {
				return
			}
		}
	})
	<-over
	return received, moved, readErr, writeErr
}

// TestTransfer moves exactly as much as it is asked to, however much has arrived, between all kinds of connections.
func TestTransfer(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, network := range []string{"tcp", "unix"} {
			for _, size := range []int{1, 1000, 16 << 10, 64 << 10, 100_000, 8 << 20} {
				client, in, out, server := chain(t, e, network)
				want := random(t, size+100)
				go func() { _, _ = client.Write(want) }()
				read := make(chan []byte)
				go func() {
					got, _ := io.ReadAll(server)
					read <- got
				}()
				received, moved, readErr, writeErr := transferAll(in, out, int64(size))
				if received != int64(size) || moved != received || readErr != nil || writeErr != nil {
					t.Errorf("%s: %d of %d bytes received, %d moved, %v, %v", network, received, size, moved, readErr, writeErr)
				}
				_ = out.Close()
				if got := <-read; !bytes.Equal(got, want[:size]) {
					t.Errorf("%s: other bytes than were sent, %d of %d", network, len(got), size)
				}
				rest := make([]byte, 100)
				var err error
				on(in, func() { _, err = io.ReadFull(in, rest) })
				if err != nil || !bytes.Equal(rest, want[size:]) {
					t.Errorf("%s: the data that follows is gone: %v", network, err)
				}
			}
		}
	})
}

// TestTransferOfTLS copies, in both directions.
func TestTransferOfTLS(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		const size = 1 << 20
		plain, in := pair(t, e, "tcp")
		client, server := tlsPair(t, e, serverConfig())
		defer plain.Close()
		defer in.Close()
		want := random(t, size)
		go func() { _, _ = plain.Write(want) }()
		back := make(chan []byte)
		go func() {
			got := make([]byte, size)
			on(client, func() {
				_, _ = io.ReadFull(client, got)
				client.Go(func() { _, _ = client.Write(got) })
			})
			back <- got
		}()
		if _, moved, readErr, writeErr := transferAll(in, server, size); moved != size || readErr != nil || writeErr != nil {
			t.Fatalf("%d bytes moved, %v, %v", moved, readErr, writeErr)
		}
		if got := <-back; !bytes.Equal(got, want) {
			t.Error("other bytes arrived than were sent")
		}
		go func() {
			got := make([]byte, size)
			_, _ = io.ReadFull(plain, got)
			back <- got
		}()
		if _, moved, readErr, writeErr := transferAll(server, in, size); moved != size || readErr != nil || writeErr != nil {
			t.Fatalf("%d bytes moved back, %v, %v", moved, readErr, writeErr)
		}
		if got := <-back; !bytes.Equal(got, want) {
			t.Error("the echoed bytes differ from those sent")
		}
	})
}

// TestTransferTellsWhichEnd: each step has errors of its own connection only, and a time-out is that of its step.
func TestTransferTellsWhichEnd(t *testing.T) {
	const size = 64 << 20 // more than sockets and a pipe take
	engines(t, func(t *testing.T, e *fiber.Engine) {
		t.Run("the source ends", func(t *testing.T) {
			client, in, out, _ := chain(t, e, "tcp")
			go func() {
				_, _ = client.Write(make([]byte, 100_000))
				_ = client.(interface{ CloseWrite() error }).CloseWrite()
			}()
			if n, _, readErr, writeErr := transferAll(in, out, size); n != 100_000 || readErr != io.EOF || writeErr != nil {
				t.Errorf("%v, %v after %d bytes", readErr, writeErr, n)
			}
		})
		t.Run("the source is late", func(t *testing.T) {
			_, in, out, _ := chain(t, e, "tcp")
			_ = in.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			for range 2 {
				if _, _, readErr, writeErr := transferAll(in, out, size); !errors.Is(readErr, os.ErrDeadlineExceeded) || writeErr != nil {
					t.Errorf("%v, %v", readErr, writeErr)
				}
			}
		})
		t.Run("the destination is late", func(t *testing.T) {
			client, in, out, _ := chain(t, e, "tcp")
			go func() { _, _ = client.Write(make([]byte, size)) }()
			_ = out.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			if _, _, readErr, writeErr := transferAll(in, out, size); readErr != nil || !errors.Is(writeErr, os.ErrDeadlineExceeded) {
				t.Errorf("%v, %v", readErr, writeErr)
			}
		})
		t.Run("the destination breaks", func(t *testing.T) {
			client, in, out, server := chain(t, e, "tcp")
			go func() { _, _ = client.Write(make([]byte, size)) }()
			go func() {
				_, _ = io.ReadFull(server, make([]byte, 1<<20))
				_ = server.Close()
			}()
			if _, _, readErr, writeErr := transferAll(in, out, size); readErr != nil || writeErr == nil {
				t.Errorf("%v, %v", readErr, writeErr)
			}
		})
		t.Run("the source is closed", func(t *testing.T) {
			_, in, out, _ := chain(t, e, "tcp")
			time.AfterFunc(10*time.Millisecond, func() { _ = in.Close() })
			if _, _, readErr, writeErr := transferAll(in, out, size); !errors.Is(readErr, net.ErrClosed) || writeErr != nil {
				t.Errorf("%v, %v", readErr, writeErr)
			}
		})
		t.Run("the destination is closed", func(t *testing.T) {
			client, in, out, server := chain(t, e, "tcp")
			go func() { _, _ = client.Write(make([]byte, size)) }()
			go func() {
				_, _ = io.ReadFull(server, make([]byte, 1<<20))
				_ = out.Close()
			}()
			if _, _, readErr, writeErr := transferAll(in, out, size); readErr != nil || !errors.Is(writeErr, net.ErrClosed) {
				t.Errorf("%v, %v", readErr, writeErr)
			}
		})
	})
}

// TestTransferTwice: a second Receive before Send is a defect of the caller.
func TestTransferTwice(t *testing.T) {
	client, in, out, _ := chain(t, newEngine(t, fiber.Config{Engine: fiber.Goroutine}), "tcp")
	_, _ = client.Write([]byte("x"))
	var tr fiber.Transfer
	if _, err := tr.Receive(fiber.StreamOf(in), out, 1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		tr.Drop()
	}()
	_, _ = tr.Receive(fiber.StreamOf(in), out, 1)
}

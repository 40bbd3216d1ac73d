package fiber_test

import (
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// TestBeforeWrite: on every engine, before is called for each piece before it can arrive, and bulk between sockets of
// package net is still moved within the kernel.
func TestBeforeWrite(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		client, in, out, server := chain(t, e, "tcp")
		const pieces, size = 10, 8 << 20
		calls, told, spliced := make(chan struct{}, 1<<16), 0, 0
		dst := fiber.BeforeWrite(fiber.StreamOf(out), func() { calls <- struct{}{} })
		ended := make(chan [2]error, 1)
		go func() {
			readErr, writeErr := fiber.StreamOf(in).CopyTo(dst, func(n int) { told += n }, func(n int) { spliced += n })
			_ = dst.CloseWrite()
			ended <- [2]error{readErr, writeErr}
		}()
		for i := range pieces {
			_, _ = client.Write([]byte{byte(i)})
			if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			select {
			case <-calls:
			default:
				t.Fatalf("piece %d arrived before the call", i)
			}
		}
		go func() {
			_, _ = client.Write(make([]byte, size))
			_ = client.(interface{ CloseWrite() error }).CloseWrite()
		}()
		n, err := io.Copy(io.Discard, server)
		errs := <-ended
		if n != size || err != nil || errs[0] != io.EOF || errs[1] != nil || told != pieces+size || len(calls) == 0 {
			t.Errorf("%d of %d bytes arrived, %v; %v after %d bytes and %d calls", n, size, err, errs, told, len(calls))
		}
		if _, plain := in.(*net.TCPConn); plain && runtime.GOOS == "linux" && spliced == 0 {
			t.Error("nothing was spliced")
		}
	})
}

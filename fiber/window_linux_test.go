//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// The more connections move bulk, the less data may wait in the socket of each. Otherwise the system lets each have
// many megabytes, until memory for TCP becomes short and it drops segments.
func TestBulkSharesMemory(t *testing.T) {
	const streams, memory, megabytes = 16, 8 << 20, 16
	defer fiber.BulkMemory(fiber.BulkMemory(memory))
	loops(t, func(t *testing.T, e *fiber.Engine) {
		var done sync.WaitGroup
		waits := make([]int, streams)
		for i := range streams {
			client, in := plainPair(t, e)
			server, out := plainPair(t, e)
			done.Go(func() {
				for range megabytes {
					_, _ = client.Write(make([]byte, 1<<20))
				}
				_ = client.(*net.TCPConn).CloseWrite()
			})
			done.Go(func() {
				if n, err := io.Copy(io.Discard, server); n != megabytes<<20 || err != nil {
					t.Errorf("%d bytes came, %v", n, err)
				}
			})
			done.Add(1)
			fiber.Spawn(in, func() {
				defer done.Done()
				if readErr, writeErr := in.(fiber.Stream).CopyTo(out, func(int) {}, nil); readErr != io.EOF || writeErr != nil {
					t.Errorf("CopyTo: %v, %v", readErr, writeErr)
				}
				waits[i] = in.(*fiber.Conn).ReceiveBuffer()
				_ = out.Close()
			})
		}
		done.Wait()
		all := 0
		for _, n := range waits {
			all += n
		}
		t.Log(all, waits)
		if all > 4*memory {
			t.Errorf("%d bytes may wait in the sockets of %d connections, %d is for all", all, streams, memory)
		}
	})
}

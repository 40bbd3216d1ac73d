//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// kernelThreads counts the threads that the kernel has started to wait in the process's stead.
func kernelThreads(t *testing.T) (n int) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if comm, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(comm), "iou-wrk") {
			n++
		}
	}
	return n
}

// A peer that does not read costs no thread, whatever it has sent before; it gets everything when it does read.
func TestNoThreadForWhoDoesNotRead(t *testing.T) {
	before := map[string]func(c net.Conn){
		"nothing":     func(net.Conn) {},
		"its end":     func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() },
		"urgent data": func(c net.Conn) { urgent(t, c) },
	}
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, first := range before {
			for _, closed := range []bool{false, true} {
				plain, c := plainPair(t, e)
				first(plain)
				out := stuff(t, c, stream{seed: 1})
				closing := c.(*fiber.Conn).CloseWrite
				if closed && name != "urgent data" { // a close with that unread is a reset
					closing = c.Close
				}
				if err := closing(); err != nil {
					t.Error(err)
				}
				gone(c)
				if n := kernelThreads(t); n > 0 {
					t.Errorf("%s: %d threads of the kernel", name, n)
				}
				in := stream{seed: 1}
				if n, err := in.check(t, plain); n != out.at || err != io.EOF {
					t.Errorf("%s: %d bytes of %d came, and then %v", name, n, out.at, err)
				}
				_ = c.Close()
			}
		}
		awaitNoBuffers(t, e)
	})
}

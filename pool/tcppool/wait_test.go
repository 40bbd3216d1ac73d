//go:build unix

package tcppool_test

import (
	"net"
	"syscall"
	"testing"
)

// readable returns a function that waits until something, or the end of the
// stream, can be read from c, without reading it. It outlives c's loan.
func readable(t *testing.T, c net.Conn) (await func()) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		err := raw.Read(func(fd uintptr) bool {
			_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
			return err != syscall.EAGAIN
		})
		if err != nil {
			t.Error(err)
		}
	}
}

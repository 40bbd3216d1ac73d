//go:build unix

package gateway

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileOf returns a non-blocking duplicate of a listener's socket. net.TCPListener.File would not do: whatever takes its file,
// such as net.FileListener and os/exec, sets it to blocking mode, which it shares with the socket from which clients are accepted.
func fileOf(l net.Listener) (f *os.File, err error) {
	var raw syscall.RawConn
	switch l := l.(type) {
	case *net.TCPListener:
		raw, err = l.SyscallConn()
	case *net.UnixListener:
		raw, err = l.SyscallConn()
	case interface{ File() (*os.File, error) }: // of the engine
		return l.File()
	default:
		return nil, fmt.Errorf("%T cannot be handed over", l)
	}
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		second, e := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		if failed = os.NewSyscallError("fcntl", e); e == nil {
			f = os.NewFile(uintptr(second), "listener "+l.Addr().String())
		}
	})
	if err == nil {
		err = failed
	}
	return f, err
}

//go:build linux && (amd64 || arm64)

package fiber

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bulkMemory bounds the data in the receive buffers of all bulk connections between two ends of this machine, in bytes,
// approximately. By default the system lets each socket hold up to 32 MiB, independently of others. A hundred such
// sockets bring the system's TCP under memory pressure, which begins at a sixteenth of the machine's memory: it drops
// segments, and streams stall for half a minute. bulkMemory is a sixteenth of that sixteenth.
var bulkMemory = func() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return maxBulkMemory
	}
	return int64(min(info.Totalram*uint64(info.Unit)/256, maxBulkMemory))
}()

const maxBulkMemory = 128 << 20

// windows counts the connections that share bulkMemory.
var windows atomic.Int64

// Receive window of a connection, in bytes: the system's for the first few connections, which costs the least, and a
// share of bulkMemory for others. A share above maxWindow is hardly faster; one below minWindow costs much more.
const (
	systemWindow = 16 << 20
	maxWindow    = 2 << 20
	minWindow    = 256 << 10
)

// window is the share of bulkMemory of a connection that moves bulk.
type window struct {
	conn   *Conn
	taken  bool
	shared bool // counted in windows
}

// take gives the connection its share, at the first call. A connection from another machine has a network to fill, and
// keeps the system's window.
func (w *window) take() {
	if w.taken {
		return
	}
	w.taken = true
	c := w.conn
	if from := (peer{ip4: c.peer, other: c.RemoteAddr()}); !from.isLoopback() {
		return
	}
	w.shared = true
	n := windows.Add(1)
	if n*systemWindow <= bulkMemory {
		return
	}
	size := int(max(min(bulkMemory/n, maxWindow), minWindow))
	if receiveBuffer(c.fd) >= size { // with a smaller window, data under way might be dropped
		setOption(c.fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, unix.SOCK_RCVBUF_LOCK) // Linux 5.14
		return
	}
	setOption(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size/2) // the system doubles the value
	setOption(c.fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, size)
}

// free gives the share back.
func (w *window) free() {
	if w.shared {
		windows.Add(-1)
	}
}

// receiveBuffer returns the size of a socket's receive buffer in bytes, including the system's own structures.
func receiveBuffer(fd int) int {
	var v int32
	size := uint32(unsafe.Sizeof(v))
	_, _, _ = syscall.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_RCVBUF,
		uintptr(unsafe.Pointer(&v)), uintptr(unsafe.Pointer(&size)), 0)
	return int(v)
}

//go:build linux && (amd64 || arm64)

package fiber

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bulkMemory is about what may wait to be read in the sockets of all connections between two ends of this machine that move
// bulk. Left to itself the system lets each socket hold up to 32 MiB, without regard to the others: a hundred of them bring all
// its TCP under memory pressure, which begins at a sixteenth of the machine's memory, so that it drops segments and streams
// stand still for half a minute. This is a sixteenth of that sixteenth.
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

// What one of them gets: the first few what the system gives, which costs the least, others a share. More than the largest
// share moves little faster, less than the smallest would cost much more.
const (
	systemWindow = 16 << 20
	maxWindow    = 2 << 20
	minWindow    = 256 << 10
)

// window is the share of a connection that moves bulk.
type window struct {
	conn   *Conn
	taken  bool
	shared bool // it is one of windows
}

// take gives the connection its share, at the first call. A connection from another machine has a network to fill, and is
// left to the system.
func (w *window) take() {
	if w.taken {
		return
	}
	w.taken = true
	c := w.conn
	if from := (peer{ip4: c.peer, other: c.RemoteAddr()}); !from.here() {
		return
	}
	w.shared = true
	n := windows.Add(1)
	if n*systemWindow <= bulkMemory {
		return
	}
	size := int(max(min(bulkMemory/n, maxWindow), minWindow))
	if receiveBuffer(c.fd) >= size { // with less what is on its way might be dropped
		setOption(c.fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, unix.SOCK_RCVBUF_LOCK) // Linux 5.14
		return
	}
	setOption(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size/2) // which the system doubles
	setOption(c.fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, size)
}

// free gives the share to others.
func (w *window) free() {
	if w.shared {
		windows.Add(-1)
	}
}

// receiveBuffer is what the system lets wait in a socket, its own structures included.
func receiveBuffer(fd int) int {
	var v int32
	size := uint32(unsafe.Sizeof(v))
	_, _, _ = syscall.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_RCVBUF,
		uintptr(unsafe.Pointer(&v)), uintptr(unsafe.Pointer(&size)), 0)
	return int(v)
}

package mux

import (
	"net"
	"syscall"
	"unsafe"
)

// rawWriter writes to a socket without ever waiting for it. One goroutine at a
// time may use it.
type rawWriter struct {
	conn syscall.RawConn
	iov  []syscall.Iovec
	try  func(fd uintptr) bool
	n    int
	err  error
}

// newRawWriter returns nil for connections that are not plain sockets.
func newRawWriter(conn net.Conn) *rawWriter {
	rc := plainSocket(conn)
	if rc == nil {
		return nil
	}
	w := &rawWriter{conn: rc}
	w.try = w.once
	return w
}

// plainSocket is the socket below conn if there is nothing in between, or nil.
func plainSocket(conn net.Conn) syscall.RawConn {
	var rc syscall.RawConn
	var err error
	switch c := conn.(type) {
	case *net.TCPConn:
		rc, err = c.SyscallConn()
	case *net.UnixConn:
		rc, err = c.SyscallConn()
	}
	if err != nil {
		return nil
	}
	return rc
}

// maxIovecs is the most that the kernel takes at once (IOV_MAX).
const maxIovecs = 1024

// write writes as much of the pieces, in order, as the socket takes at once.
func (w *rawWriter) write(pieces [][]byte) (int, error) {
	w.iov = w.iov[:0]
	for _, p := range pieces[:min(len(pieces), maxIovecs)] {
		v := syscall.Iovec{Base: &p[0]}
		v.SetLen(len(p))
		w.iov = append(w.iov, v)
	}
	w.n, w.err = 0, nil
	err := w.conn.Write(w.try)
	clear(w.iov)
	if w.err != nil {
		err = w.err
	}
	return w.n, err
}

func (w *rawWriter) once(fd uintptr) bool {
	for {
		var n uintptr
		var errno syscall.Errno
		if len(w.iov) == 1 {
			n, _, errno = syscall.Syscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(w.iov[0].Base)), uintptr(w.iov[0].Len))
		} else {
			n, _, errno = syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&w.iov[0])), uintptr(len(w.iov)))
		}
		switch errno {
		case 0:
			w.n = int(n)
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			w.err = errno
		}
		return true
	}
}

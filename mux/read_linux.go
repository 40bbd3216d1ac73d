package mux

import (
	"io"
	"net"
	"syscall"
	"unsafe"
)

// rawReader reads from a socket into two places with one system call. One
// goroutine at a time may use it.
type rawReader struct {
	conn    syscall.RawConn
	iov     [2]syscall.Iovec
	try     func(fd uintptr) bool
	n       int
	failure error
}

// newRawReader returns nil for connections that are not plain sockets.
func newRawReader(conn net.Conn) *rawReader {
	rc := plainSocket(conn)
	if rc == nil {
		return nil
	}
	r := &rawReader{conn: rc}
	r.try = r.once
	return r
}

// read waits for bytes, which go to first and then to more, neither of them empty.
func (r *rawReader) read(first, more []byte) (n int, err error) {
	for i, p := range [2][]byte{first, more} {
		r.iov[i].Base = &p[0]
		r.iov[i].SetLen(len(p))
	}
	r.n, r.failure = 0, nil
	if err = r.conn.Read(r.try); r.failure != nil {
		err = r.failure
	}
	clear(r.iov[:])
	return r.n, err
}

// once is called when the socket may have something, until it returns true.
func (r *rawReader) once(fd uintptr) bool {
	for {
		n, _, errno := syscall.Syscall(syscall.SYS_READV, fd, uintptr(unsafe.Pointer(&r.iov[0])), uintptr(len(r.iov)))
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			r.failure = errno
		case n == 0:
			r.failure = io.EOF
		default:
			r.n = int(n)
		}
		return true
	}
}

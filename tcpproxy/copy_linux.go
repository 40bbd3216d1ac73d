package tcpproxy

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// spliceMin is the least queued data worth a splice: below it, two splices
	// through a pipe cost more than a copy.
	spliceMin = bufferSize
	// spliceMax bounds one splice, so that slow destinations are seen to move.
	spliceMax = 256 << 10
)

// fastReader reads a socket without holding a buffer while it waits. It belongs
// to the goroutine of its direction. Its functions are made once, because a
// closure for each read would be an allocation for each read.
type fastReader struct {
	raw     syscall.RawConn
	tryRead func(fd uintptr) bool
	tryPeek func(fd uintptr)

	buf  *[bufferSize]byte // with n bytes; nil unless n > 0
	n    int
	err  error
	left int // what tryPeek found
}

// newFastReader returns nil for what is not a plain stream socket.
func newFastReader(c net.Conn) *fastReader {
	var s syscall.Conn
	switch c := c.(type) {
	case *net.TCPConn:
		s = c
	case *net.UnixConn:
		s = c
	default:
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	f := &fastReader{raw: raw}
	f.tryRead, f.tryPeek = f.readFD, f.peekFD
	return f
}

// read waits for data and returns it in a buffer from buffers, which the caller
// puts back; nil at the end of the stream (io.EOF) or on an error.
func (f *fastReader) read() (buf *[bufferSize]byte, n int, err error) {
	f.n, f.err = 0, nil
	waitErr := f.raw.Read(f.tryRead)
	buf, f.buf = f.buf, nil
	switch {
	case f.n > 0:
		return buf, f.n, nil
	case waitErr != nil:
		return nil, 0, waitErr
	case f.err != nil:
		return nil, 0, f.err
	}
	return nil, 0, io.EOF
}

// readFD reads once; false means that there is nothing to read yet.
func (f *fastReader) readFD(fd uintptr) bool {
	buf := buffers.Get().(*[bufferSize]byte)
	for {
		if f.n, f.err = unix.Read(int(fd), buf[:]); !errors.Is(f.err, unix.EINTR) {
			break
		}
	}
	if f.n > 0 {
		f.buf = buf
		return true
	}
	buffers.Put(buf)
	return !errors.Is(f.err, unix.EAGAIN)
}

// queued returns the number of bytes that can be read without waiting.
func (f *fastReader) queued() int {
	f.left = 0
	_ = f.raw.Control(f.tryPeek)
	return f.left
}

func (f *fastReader) peekFD(fd uintptr) {
	f.left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
}

// copyFast copies what comes in pieces through a buffer, and splices what has
// piled up. A splice takes no more than what is queued, so it never waits for
// the source: no pipe is held by an idle session.
func (r *relay) copyFast(src, dst *side, moved func(int)) (readErr, writeErr error) {
	to, canSplice := dst.conn.(*net.TCPConn)
	for {
		buf, n, err := src.fast.read()
		if err != nil {
			return err, nil
		}
		full := n == bufferSize
		m, err := dst.conn.Write(buf[:n])
		buffers.Put(buf)
		moved(m)
		if err != nil {
			return nil, err
		}
		if full && canSplice {
			if err := r.splice(src, to, moved); err != nil {
				return nil, err
			}
		}
	}
}

// splice moves data within the kernel as long as much is queued. Data that is
// queued can be read even after a reset, so an error is the destination's.
func (r *relay) splice(src *side, dst *net.TCPConn, moved func(int)) error {
	for {
		n := src.fast.queued()
		if n < spliceMin {
			return nil
		}
		m, err := dst.ReadFrom(&io.LimitedReader{R: src.conn, N: int64(min(n, spliceMax))})
		r.session.proxy.spliced.Add(uint64(m))
		moved(int(m))
		if err != nil {
			return err
		}
		if m == 0 {
			return nil
		}
	}
}

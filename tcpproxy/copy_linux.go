package tcpproxy

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/splice"
)

// spliceMin is the least that is worth a splice: below it, two splices through
// a pipe cost more than a copy.
const spliceMin = bufferSize

// fastReader reads a socket without holding a buffer or a pipe while it waits.
// It belongs to the goroutine of its direction. Its functions are made once,
// because a closure for each read would be an allocation for each read.
type fastReader struct {
	raw       syscall.RawConn
	tryRead   func(fd uintptr) bool
	trySplice func(fd uintptr) bool
	tryEmpty  func(fd uintptr) bool // called with the destination's

	buf  *[bufferSize]byte // with n bytes; nil unless n > 0
	pipe *splice.Pipe      // with n bytes; nil unless n > 0
	n    int
	err  error
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
	f.tryRead, f.trySplice, f.tryEmpty = f.readFD, f.spliceFD, f.emptyFD
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

// splice waits for data and moves it into a pipe, which then is f.pipe with f.n
// bytes. Without an error and a pipe there was no pipe to be had.
func (f *fastReader) splice() error {
	f.n, f.err = 0, nil
	if err := f.raw.Read(f.trySplice); err != nil && f.n == 0 {
		return err
	}
	return f.err
}

// spliceFD splices once; false means that there is nothing to read yet.
func (f *fastReader) spliceFD(fd uintptr) bool {
	if f.pipe = splice.Take(); f.pipe == nil {
		f.n, f.err = 0, nil // not of the try before the wait
		return true
	}
	f.n, f.err = splice.Once(int(fd), f.pipe.W, splice.PipeSize)
	if f.n > 0 {
		return true
	}
	splice.Put(f.pipe)
	f.pipe = nil
	if f.err == nil {
		f.err = io.EOF
	}
	return !errors.Is(f.err, unix.EAGAIN)
}

// empty moves what is in the pipe to dst, and gives the pipe back.
func (f *fastReader) empty(dst syscall.RawConn, moved func(int)) error {
	p := f.pipe
	for left := f.n; left > 0; left -= f.n {
		f.n = left
		err := dst.Write(f.tryEmpty)
		if err == nil {
			err = f.err
		}
		if err != nil {
			f.pipe = nil
			splice.Drop(p)
			return err
		}
		moved(f.n)
	}
	f.pipe = nil
	splice.Put(p)
	return nil
}

// emptyFD moves up to f.n bytes and says in f.n how many it did; false means
// that the destination takes nothing now.
func (f *fastReader) emptyFD(fd uintptr) bool {
	n, err := splice.Once(f.pipe.R, int(fd), f.n)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if n == 0 && err == nil {
		err = io.ErrUnexpectedEOF // not to happen: the pipe has something in it
	}
	f.n, f.err = n, err
	return true
}

// copyFast copies what comes in pieces through a buffer, and splices what comes
// in bulk.
func (r *relay) copyFast(src, dst *side, moved func(int)) (readErr, writeErr error) {
	_, canSplice := dst.conn.(*net.TCPConn)
	canSplice = canSplice && dst.fast != nil
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
			readErr, writeErr = r.splice(src, dst, moved)
			if splice.Unsupported(readErr) {
				readErr, canSplice = nil, false
			}
			if readErr != nil || writeErr != nil {
				return readErr, writeErr
			}
		}
	}
}

// splice moves data within the kernel as long as it comes in bulk; without an
// error the copying is to go on.
func (r *relay) splice(src, dst *side, moved func(int)) (readErr, writeErr error) {
	for {
		if err := src.fast.splice(); err != nil {
			return err, nil
		}
		n := src.fast.n
		if n == 0 {
			return nil, nil
		}
		r.session.proxy.spliced.Add(uint64(n))
		if err := src.fast.empty(dst.fast.raw, moved); err != nil {
			return nil, err
		}
		if n < spliceMin {
			return nil, nil
		}
	}
}

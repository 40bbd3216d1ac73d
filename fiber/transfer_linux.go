package fiber

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/splice"
)

// piped is the part of a Transfer that is in the kernel: n bytes in a pipe, which is held as long as it has bytes.
type piped struct{ pipe *splice.Pipe }

// splice receives by splicing if that is possible now; otherwise done is false and nothing has happened.
func (t *Transfer) splice(src Stream, dst net.Conn, limit int64) (n int, err error, done bool) {
	if n, err, done, known := t.spliceLoop(src, dst, limit); known {
		return n, err, done
	}
	from, to := socketOf(bare(src)), socketOf(dst)
	if from == nil || to == nil || onFiber() { // a fiber must not wait for a socket of package net
		t.next = transferCopied
		return 0, nil, false
	}
	return t.spliceSocket(from, int(min(limit, splice.PipeSize)))
}

// spliceSocket receives from a connection of package net.
func (t *Transfer) spliceSocket(from *net.TCPConn, limit int) (n int, err error, done bool) {
	raw, err := from.SyscallConn()
	if err != nil {
		return 0, nil, false // Read reports the error
	}
	var failed error
	looked := false
	err = raw.Read(func(fd uintptr) bool {
		n, failed = t.fill(int(fd), limit)
		if failed == unix.EAGAIN && !looked { //nolint:errorlint // made by the system call
			looked = true
			return false
		}
		return true
	})
	if err != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: from.LocalAddr(), Addr: from.RemoteAddr(), Err: netError(err)}, true
	}
	if n, failed, done = t.filled(n, failed); failed != nil {
		failed = &net.OpError{Op: "read", Net: "tcp", Source: from.LocalAddr(), Addr: from.RemoteAddr(), Err: os.NewSyscallError("splice", failed)}
	}
	return n, failed, done
}

// fill splices once into a pipe, which t keeps if the pipe has data then. If no pipe is available, n is 0 and err nil.
func (t *Transfer) fill(fd, limit int) (n int, err error) {
	pipe := splice.Take()
	if pipe == nil {
		return 0, nil
	}
	if n, err = splice.Once(fd, pipe.W, limit); n > 0 {
		t.pipe = pipe
		return n, nil
	}
	splice.Put(pipe)
	return 0, err
}

// filled interprets the result of the last fill. It leaves events that cannot be spliced, such as the end of the
// stream, to Read. A socket reports an error only once.
func (t *Transfer) filled(n int, err error) (int, error, bool) {
	switch {
	case n >= spliceLeast:
	case n > 0:
		t.next = transferLittle
	case err != nil && splice.Unsupported(err):
		t.next = transferCopied
	case err != nil && !errors.Is(err, unix.EAGAIN):
		return 0, err, true
	}
	return n, nil, n > 0
}

// netError returns an error of a RawConn without package net's wrapping.
func netError(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// empty sends the data in the pipe.
func (t *Transfer) empty(dst net.Conn, moved func(int)) error {
	if err, known := t.emptyLoop(dst, moved); known {
		return err
	}
	to := socketOf(dst)
	raw, err := to.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	for failed == nil && t.n > 0 && err == nil {
		err = raw.Write(func(fd uintptr) bool {
			var n int
			n, failed = splice.Once(t.pipe.R, int(fd), t.n)
			if n > 0 {
				t.n -= n
				failed = nil
				moved(n)
				return true
			}
			if failed == unix.EAGAIN { //nolint:errorlint // made by the system call
				failed = nil
				return false
			}
			return true
		})
	}
	if err = errors.Join(netError(err), failed); err != nil {
		return &net.OpError{Op: "write", Net: "tcp", Source: to.LocalAddr(), Addr: to.RemoteAddr(), Err: err}
	}
	return nil
}

// dropPipe gives back the pipe, in which left bytes remain.
func (t *Transfer) dropPipe(left int) {
	switch {
	case t.pipe == nil:
	case left == 0:
		splice.Put(t.pipe)
	default:
		splice.Drop(t.pipe)
	}
	t.pipe = nil
}

// waitForSocket is WaitReadable, and works for TCP connections of package net, too, unless the caller is a fiber.
func waitForSocket(src Stream) error {
	from := socketOf(bare(src))
	if from == nil || onFiber() {
		return src.WaitReadable()
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return nil // Read reports the error
	}
	looked := false
	err = raw.Read(func(fd uintptr) bool {
		if looked || peek(fd) != Silent {
			return true
		}
		looked = true
		return false
	})
	return err
}

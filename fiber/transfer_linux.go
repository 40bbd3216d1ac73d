package fiber

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/splice"
)

// piped is the part of a Transfer that is in the kernel: n bytes in a pipe, which is held as long as it has bytes.
type piped struct {
	pipe    *splice.Pipe
	sockets *sockets // nil until connections of package net are spliced
}

// sockets splices between two TCP connections of package net, for the goroutine that owns the Transfer. Its functions
// are made once, because a closure for each piece would be an allocation for each piece.
type sockets struct {
	from, to     *net.TCPConn
	source, sink syscall.RawConn // of from and to; nil = to be asked for

	fill, empty func(fd uintptr) bool
	limit       int          // bytes that the next call may move
	pipe        *splice.Pipe // has n bytes after a fill; to be emptied before empty is called
	n           int          // bytes that the last call has moved
	err         error        // of the last call
	waited      bool         // fill has waited for data
}

// between returns t's sockets for the given connections.
func (t *Transfer) between(from, to *net.TCPConn) *sockets {
	k := t.sockets
	if k == nil {
		k = &sockets{}
		k.fill, k.empty = k.fillFrom, k.emptyInto
		t.sockets = k
	}
	if k.from != from {
		k.from, k.source = from, nil
	}
	if k.to != to {
		k.to, k.sink = to, nil
	}
	return k
}

// fillFrom splices once into a pipe. False means that there is no data yet. It is false only once: a socket with urgent
// data, for example, is readable, and cannot be spliced.
func (k *sockets) fillFrom(fd uintptr) bool {
	k.pipe, k.n, k.err = fillPipe(int(fd), k.limit)
	if k.err == unix.EAGAIN && !k.waited { //nolint:errorlint // made by the system call
		k.waited = true
		return false
	}
	return true
}

// emptyInto splices once from the pipe. False means that there is no room yet.
func (k *sockets) emptyInto(fd uintptr) bool {
	k.n, k.err = splice.Once(k.pipe.R, int(fd), k.limit)
	if k.n > 0 {
		k.err = nil
	}
	return k.err != unix.EAGAIN //nolint:errorlint // made by the system call
}

// splice receives by splicing if that is possible now; otherwise done is false and nothing has happened.
func (t *Transfer) splice(src Stream, dst net.Conn, limit int64) (n int, err error, done bool) {
	if n, done, known, err := t.spliceLoop(src, dst, limit); known {
		return n, err, done
	}
	from, to := socketOf(unwrapAhead(src)), socketOf(dst)
	if from == nil || to == nil || onFiber() { // a fiber must not wait for a socket of package net
		t.next = transferCopied
		return 0, nil, false
	}
	return t.spliceSocket(from, to, int(min(limit, splice.PipeSize)))
}

// spliceSocket receives from a connection of package net.
func (t *Transfer) spliceSocket(from, to *net.TCPConn, limit int) (n int, err error, done bool) {
	k := t.between(from, to)
	if k.source == nil {
		if k.source, err = from.SyscallConn(); err != nil {
			k.source = nil
			return 0, nil, false //nolint:nilerr // Read reports the error
		}
	}
	k.limit, k.waited, k.pipe, k.n, k.err = limit, false, nil, 0, nil
	if err := k.source.Read(k.fill); err != nil {
		return 0, socketError("read", from, netError(err)), true
	}
	t.pipe, k.pipe = k.pipe, nil
	if n, err, done = t.filled(k.n, k.err); err != nil {
		err = socketError("read", from, os.NewSyscallError("splice", err))
	}
	return n, err, done
}

// socketError returns an error of c as package net's methods do.
func socketError(op string, c *net.TCPConn, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// fillPipe splices once into a pipe, and returns the pipe if it has data then. If no pipe is available, n is 0 and err nil.
func fillPipe(fd, limit int) (pipe *splice.Pipe, n int, err error) {
	pipe = splice.Take()
	if pipe == nil {
		return nil, 0, nil
	}
	if n, err = splice.Once(fd, pipe.W, limit); n > 0 {
		return pipe, n, nil
	}
	splice.Put(pipe)
	return nil, 0, err
}

// filled interprets the result of the last fill. It leaves events that cannot be spliced, such as the end of the
// stream, to Read. A socket reports an error only once.
func (t *Transfer) filled(n int, err error) (int, error, bool) {
	switch {
	case n >= minSplice:
	case n > 0:
		t.next = transferSmallPieces
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
	return t.emptySocket(moved)
}

// emptySocket is empty into the connection of package net of the last spliceSocket.
func (t *Transfer) emptySocket(moved func(int)) (err error) {
	k := t.sockets
	if k.sink == nil {
		if k.sink, err = k.to.SyscallConn(); err != nil {
			k.sink = nil
			return err
		}
	}
	for k.pipe = t.pipe; t.n > 0; {
		k.limit = t.n
		if err := k.sink.Write(k.empty); err != nil {
			return socketError("write", k.to, netError(err))
		}
		switch {
		case k.err != nil:
			return socketError("write", k.to, os.NewSyscallError("splice", k.err))
		case k.n == 0:
			return io.ErrUnexpectedEOF // impossible: the pipe is not empty
		}
		t.n -= k.n
		moved(k.n)
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
	from := socketOf(unwrapAhead(src))
	if from == nil || onFiber() {
		return src.WaitReadable()
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return nil //nolint:nilerr // Read reports the error
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

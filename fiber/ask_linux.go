package fiber

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// Asker sends requests on a connection and waits for their answers. It is cheaper than Write and
// Read, because a Read right after a Write first tries to read an answer that cannot have arrived
// yet. It is for the one user of the connection.
type Asker struct {
	raw      syscall.RawConn
	stepFunc func(fd uintptr) (over bool) // the method value step, kept because making one allocates

	request, answer []byte
	asked           bool
	wrote, read     int
	err             error
}

// NewAsker returns the Asker of a connection of package net that StreamOf has adapted, and nil for any other.
func NewAsker(c Stream) *Asker {
	w, ok := c.(*adapted)
	if !ok {
		return nil
	}
	raw, err := w.SyscallConn()
	if err != nil {
		return nil
	}
	a := &Asker{raw: raw}
	a.stepFunc = a.step
	return a
}

// Ask writes request, and reads the first bytes that come afterwards into answer. If wrote is the length of request,
// err is the error of reading: io.EOF at the end of the stream, os.ErrDeadlineExceeded at the read deadline. Otherwise
// nothing was read, and err is the error of writing, or nil if the socket has no room for more. A passed deadline is
// noticed before anything is written.
//
// Ask may notice an end of the stream that came just before the call only at the read deadline, so set one. On a fiber
// the error is errors.ErrUnsupported. The slices are not kept.
func (a *Asker) Ask(request, answer []byte) (wrote, read int, err error) {
	if onFiber() {
		return 0, 0, errors.ErrUnsupported // the wait would hold the loop
	}
	a.request, a.answer, a.asked, a.wrote, a.read, a.err = request, answer, false, 0, 0, nil
	err = a.raw.Read(a.stepFunc)
	a.request, a.answer = nil, nil
	if a.err != nil {
		err = a.err
	}
	return a.wrote, a.read, err
}

// step is called when the runtime has begun to watch the socket for data, and again when some has arrived. The request
// is written in between, so no answer to it is missed.
func (a *Asker) step(fd uintptr) (over bool) {
	if !a.asked {
		a.asked = true
		n, err := retryInterrupted(syscall.Write, int(fd), a.request)
		a.wrote = n
		if err != nil && err != syscall.EAGAIN { //nolint:errorlint // an errno as it is
			a.err = os.NewSyscallError("write", err)
		}
		return n < len(a.request)
	}
	n, err := retryInterrupted(syscall.Read, int(fd), a.answer)
	switch {
	case err == syscall.EAGAIN: //nolint:errorlint // an errno as it is
		return false
	case err != nil:
		a.err = os.NewSyscallError("read", err)
	case n == 0:
		a.err = io.EOF
	}
	a.read = n
	return true
}

// retryInterrupted repeats a system call that a signal has interrupted.
func retryInterrupted(call func(fd int, p []byte) (int, error), fd int, p []byte) (int, error) {
	for {
		n, err := call(fd, p)
		if err != syscall.EINTR { //nolint:errorlint // an errno as it is
			return max(n, 0), err
		}
	}
}

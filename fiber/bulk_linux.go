//go:build linux && (amd64 || arm64)

package fiber

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/splice"
)

// splices says that bulk can be moved within the kernel, if the system allows it.
const splices = true

// spliceLimit bounds the bytes of one splice: a pipe holds no more. After spliceBurst bytes there is a pause, so that
// other fibers wait for at most a millisecond. Smaller pieces and bursts cost more, above all with many connections:
// each finds its data cold in the cache, and more peers asleep (benchmark W1d).
const (
	spliceLimit = splice.PipeSize
	spliceBurst = 4 << 20
)

// spliceTo moves data within the kernel as long as it comes in bulk.
func (c *Conn) spliceTo(l *loop, d *Conn, moved, spliced func(int)) (readErr, writeErr error) {
	for !l.poller.stop(c) {
		if err := c.wait(l, &c.rd); err != nil {
			return err, nil
		}
	}
	for !l.poller.socket(d, &d.wr, false) { // written data comes first
		if err := d.wait(l, &d.wr); err != nil {
			return nil, err
		}
	}
	if d.outErr != 0 { // a splice would return another error
		return nil, d.outErr
	}
	if c.received() {
		return nil, nil
	}
	f := l.current
	f.bulk = true
	defer func() { f.bulk = false }()
	_ = c.yield(l) // as after each spliceBurst; closedMeanwhile finds errors
	since := 0     // bytes since the last pause
	waited := false
	for {
		if readErr, writeErr := closedMeanwhile(l, c, d); readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
		if !l.poller.socket(c, &c.rd, false) {
			if err := c.wait(l, &c.rd); err != nil {
				return err, nil
			}
			continue
		}
		n, readErr, writeErr := spliceOnce(l, c, d, moved, spliced)
		switch {
		case errors.Is(readErr, unix.EAGAIN) && waited:
			return nil, nil // urgent data, for example, cannot be spliced, and is copied
		case errors.Is(readErr, unix.EAGAIN):
			waited = true
			l.poller.socket(c, &c.rd, true)
			continue
		case readErr != nil || writeErr != nil:
			return readErr, writeErr
		}
		if n < minSplice {
			return nil, nil
		}
		waited = false
		if since += n; since >= spliceBurst {
			since = 0
			_ = c.yield(l)
		}
	}
}

// spliceOnce moves received data of the socket, up to spliceLimit; 0 = no pipe is available, or nothing can be spliced.
func spliceOnce(l *loop, c, d *Conn, moved, spliced func(int)) (n int, readErr, writeErr error) {
	pipe := splice.Take()
	if pipe == nil {
		return 0, nil, nil
	}
	empty := false
	defer func() { // also when moved or spliced panics
		if empty {
			splice.Put(pipe)
		} else {
			splice.Drop(pipe)
		}
	}()
	n, err := splice.Once(c.fd, pipe.W, spliceLimit)
	if n == 0 {
		empty = true
		switch {
		case err == nil: // the end, or data that cannot be spliced; the next receive shows which
			return 0, nil, nil
		case splice.Unsupported(err):
			err = errors.ErrUnsupported
		}
		return 0, err, nil
	}
	if spliced != nil {
		spliced(n)
	}
	err = emptyPipe(l, d, pipe, n, moved)
	empty = err == nil
	return n, nil, err
}

// emptyPipe moves n bytes from the pipe to d.
func emptyPipe(l *loop, d *Conn, pipe *splice.Pipe, n int, moved func(int)) error {
	short := false // the last splice moved less than n, because of an error or for lack of room
	for n > 0 {
		m, err := splice.Once(pipe.R, d.fd, n)
		switch {
		case m > 0:
			d.sentSome = true
			moved(m)
			n -= m
			short = n > 0
		case errors.Is(err, unix.EAGAIN):
			short = false
			l.poller.socket(d, &d.wr, true)
			if err := d.wait(l, &d.wr); err != nil {
				return err
			}
		case err == nil:
			return io.ErrUnexpectedEOF // impossible: the pipe is not empty
		default:
			if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // made by the system call
				if short && errno == unix.EPIPE && !FinReceived(d.fd) {
					errno = unix.ECONNRESET // the short splice has consumed this error
				}
				d.outErr, err = errno, errno // see sendBroke
			}
			return err
		}
	}
	return nil
}

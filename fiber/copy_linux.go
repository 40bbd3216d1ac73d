//go:build linux && (amd64 || arm64)

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

// scratchSize is that of a loop's buffer for copying, and the most that is copied at a time.
const scratchSize = 64 << 10

// spliceLimit bounds what one splice moves: what a pipe holds. After spliceBurst there is a pause, so that other
// fibers are not held up for long, which is a millisecond at most. Smaller pieces and bursts cost more, and the more
// the more connections there are, for each finds its own data cold and more ends asleep; W1d shows it.
const (
	spliceLimit = splice.PipeSize
	spliceBurst = 4 << 20
)

// CopyTo moves what c receives to dst until one of them ends: readErr is why c did, io.EOF at
// the end of its stream; else writeErr is why dst did. moved is told of every piece. Between
// connections of one loop nothing is held while there is nothing to move, and bulk is moved
// within the kernel (unless splicing is not to be had), of which spliced is told too, if it is
// not nil. The loop calls moved, not the fiber: it must neither wait nor end its goroutine
// (runtime.Goexit). A panic of it is the caller's.
func (c *Conn) CopyTo(dst net.Conn, moved, spliced func(n int)) (readErr, writeErr error) {
	l := c.loop.Load()
	d, ok := written(dst).(*Conn)
	if !ok || !l.here() || d.loop.Load() != l {
		return Copy(c, dst, moved)
	}
	if err := c.begin(l, &c.rd); err != nil {
		return c.opError("read", err), nil
	}
	defer c.end(l, &c.rd)
	if err := d.begin(l, &d.wr); err != nil {
		return nil, d.opError("write", err)
	}
	defer d.end(l, &d.wr)
	readErr, writeErr = c.copyTo(l, d, moved, spliced)
	if readErr != io.EOF {
		readErr = c.opError("read", readErr)
	}
	return readErr, d.opError("write", writeErr)
}

// copyTo is CopyTo between connections of l whose sides are taken.
func (c *Conn) copyTo(l *loop, d *Conn, moved, spliced func(int)) (readErr, writeErr error) {
	k := &copying{loop: l, fiber: l.current, c: c, d: d, moved: moved, canSplice: !c.unix && !d.unix}
	step := k.step
	w := window{conn: c}
	defer w.free()
	for {
		k.fiber.parkUntil(step)
		if k.readErr != nil || k.writeErr != nil {
			return k.readErr, k.writeErr
		}
		w.take()
		readErr, writeErr = c.spliceTo(l, d, moved, spliced)
		if errors.Is(readErr, errors.ErrUnsupported) {
			readErr, k.canSplice = nil, false
		}
		if readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
	}
}

// copying is what a fiber in CopyTo waits for: the loop does it in the fiber's stead.
type copying struct {
	loop      *loop
	fiber     *coroutine
	c, d      *Conn
	moved     func(int)
	canSplice bool

	readErr, writeErr error
}

// step moves what can be moved. It is over when there is an error, or bulk to splice.
func (k *copying) step() (over bool) {
	for l, c, d := k.loop, k.c, k.d; ; {
		if k.readErr, k.writeErr = overMeanwhile(l, c, d); k.readErr != nil || k.writeErr != nil {
			return true
		}
		n, full, readErr, writeErr := l.poller.move(c, d)
		if n > 0 {
			k.moved(n)
		}
		switch {
		case readErr != nil || writeErr != nil:
			k.readErr, k.writeErr = readErr, writeErr
			return true
		case full && k.canSplice:
			return true
		case n > 0:
			if c.streak++; c.streak >= maxStreak {
				c.streak = 0
				l.ready(k.fiber)
				return false
			}
		case l.poller.readable(c): // so it was d that had no room
			k.writeErr = d.await(l, &d.wr, k.fiber)
			return k.writeErr != nil
		default:
			k.readErr = c.await(l, &c.rd, k.fiber)
			return k.readErr != nil
		}
	}
}

// overMeanwhile tells which of two connections others have closed while a fiber waited for the other
// one, so that its descriptor may be another's already; or whose deadline has passed, also where bulk
// comes so fast that nobody waits.
func overMeanwhile(l *loop, c, d *Conn) (readErr, writeErr error) {
	late := func(s *side) bool { return s.deadline != 0 && l.now >= s.deadline }
	switch {
	case c.closed:
		return net.ErrClosed, nil
	case d.closed:
		return nil, net.ErrClosed
	case late(&c.rd):
		return os.ErrDeadlineExceeded, nil
	case late(&d.wr):
		return nil, os.ErrDeadlineExceeded
	}
	return nil, nil
}

// spliceTo moves data within the kernel for as long as it comes in bulk.
func (c *Conn) spliceTo(l *loop, d *Conn, moved, spliced func(int)) (readErr, writeErr error) {
	for !l.poller.stop(c) {
		if err := c.wait(l, &c.rd); err != nil {
			return err, nil
		}
	}
	for !l.poller.drained(d) { // what was written before comes first
		if err := d.wait(l, &d.wr); err != nil {
			return nil, err
		}
	}
	if d.outErr != 0 { // a splice would fail with another one
		return nil, d.outErr
	}
	if l.poller.arrived(c) {
		return nil, nil
	}
	f := l.current
	f.bulk = true
	defer func() { f.bulk = false }()
	_ = c.yield(l) // as after each spliceBurst: overMeanwhile tells
	since := 0     // bytes, without a pause
	waited := false
	for {
		if readErr, writeErr := overMeanwhile(l, c, d); readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
		if !l.poller.spliceable(c) {
			if err := c.wait(l, &c.rd); err != nil {
				return err, nil
			}
			continue
		}
		n, readErr, writeErr := spliceOnce(l, c, d, moved, spliced)
		switch {
		case errors.Is(readErr, unix.EAGAIN) && waited:
			return nil, nil // what has come cannot be spliced, as urgent data cannot: it is copied
		case errors.Is(readErr, unix.EAGAIN):
			waited = true
			l.poller.emptied(c)
			continue
		case readErr != nil || writeErr != nil:
			return readErr, writeErr
		}
		if n < spliceLeast {
			return nil, nil
		}
		waited = false
		if since += n; since >= spliceBurst {
			since = 0
			_ = c.yield(l)
		}
	}
}

// spliceOnce moves what there is, up to spliceLimit; 0 = there is no pipe, or nothing that can be spliced.
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
		case err == nil: // the end, or what looks like it to a splice: who receives is told
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
	short := false // the last splice was, be it for want of room or for an error
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
			l.poller.filled(d)
			if err := d.wait(l, &d.wr); err != nil {
				return err
			}
		case err == nil:
			return io.ErrUnexpectedEOF // not to happen: the pipe has something in it
		default:
			if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // made by the system call
				if short && errno == unix.EPIPE && !finCame(d.fd) {
					errno = unix.ECONNRESET // which the short splice has taken from the socket
				}
				d.outErr, err = errno, errno // see cut
			}
			return err
		}
	}
	return nil
}

// move implements poller: the received bytes are taken from where the kernel put them.
func (p *uring) move(c, d *Conn) (n int, full bool, readErr, writeErr error) {
	if !p.readable(c) {
		return 0, false, nil, nil
	}
	if len(c.in) == 0 {
		_, err, _ := p.read(c, nil)
		if err == nil {
			err = io.EOF
		}
		return 0, false, err, nil
	}
	full = len(c.in) >= recvSize
	for len(c.in) > 0 {
		m, err, done := p.write(d, c.in)
		if err != nil {
			return n, false, nil, err
		}
		if !done {
			return n, false, nil, nil
		}
		n += m
		p.consume(c, m)
	}
	return n, full, nil, nil
}

func (p *uring) arrived(c *Conn) bool { return len(c.in) > 0 || c.eof || c.inErr != 0 }

func (p *uring) drained(d *Conn) bool { return d.out == nil && d.sending == nil || d.outErr != 0 }

func (p *uring) spliceable(c *Conn) bool { return !c.polling }

// emptied has a poll tell when there is something, for a receive would take it.
func (p *uring) emptied(c *Conn) {
	p.poll(c, kindPollIn, unix.POLLIN|unix.POLLRDHUP)
	c.polling = true
}

func (p *uring) filled(d *Conn) { p.writable(d) }

// polledOut goes on sending, or wakes who waits for room or for the end of a connect. The kernel answers each such poll also when the
// peer has sent its end, unasked and at once: then one that goes on by itself tells when there is room, or the loop would ask without end.
func (p *uring) polledOut(c *Conn, e cqe) {
	over, end := e.flags&cqeMore == 0, e.res == unix.POLLRDHUP && !(c.closed && c.abort)
	if over {
		c.flight--
		c.pollingOut = false
	}
	switch {
	case end && over && (c.full || !c.closed):
		p.poll(c, kindPollOut, unix.POLLOUT).len = pollMultishot
		c.pollingOut = true
	case !end && !over:
		p.cancel(c, kindPollOut)
	}
	switch {
	case end:
	case c.full:
		c.full = false
		p.transmit(c)
	default:
		c.wakeWriter(p.loop)
	}
}

// move implements poller: everything goes through the loop's one buffer, and what d has no room
// for into one of c's own.
func (p *epoll) move(c, d *Conn) (n int, full bool, readErr, writeErr error) {
	if len(c.in) > 0 {
		n, err, _ := p.write(d, c.in)
		if c.in = c.in[n:]; len(c.in) == 0 {
			c.in = nil
		}
		return n, false, nil, err
	}
	if p.scratch == nil {
		p.scratch = make([]byte, scratchSize)
	}
	m, err, done := p.read(c, p.scratch)
	switch {
	case !done:
		return 0, false, nil, nil
	case err != nil:
		return 0, false, err, nil
	case m == 0:
		return 0, false, io.EOF, nil
	}
	n, err, _ = p.write(d, p.scratch[:m])
	if err == nil && n < m {
		c.in = append([]byte(nil), p.scratch[n:m]...)
	}
	return n, n == len(p.scratch), nil, err
}

func (p *epoll) drained(d *Conn) bool {
	p.flush(d)
	return d.out == nil
}
func (p *epoll) arrived(*Conn) bool      { return false }
func (p *epoll) spliceable(c *Conn) bool { return c.canRead }
func (p *epoll) emptied(c *Conn)         { c.canRead = c.hup }
func (p *epoll) filled(d *Conn)          { d.canWrite = false }

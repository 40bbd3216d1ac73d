//go:build (linux && (amd64 || arm64)) || darwin

package fiber

import (
	"io"
	"slices"
	"syscall"
)

// readiness is the poller for systems that report when a socket is ready for ordinary non-blocking calls: epoll on
// Linux, kqueue on Darwin. Events are edge-triggered: a connection needs one registration, no system call for each
// request, and no read that finds nothing. If the system can send on several sockets at once (batchSender), small
// messages are gathered and sent at the end of the tick, all by one call.
type readiness struct {
	loop    *loop
	queue   systemQueue
	scratch []byte // buffer of move, used for one piece at a time
	raw     rawWaits

	batch   *batchSender // nil = the system has no batches: each message is sent at once
	send    sendBuffers
	dirty   []*Conn // connections with gathered data
	sending [batchSize]*Conn
	result  func(i int, result int64) // called with the result of the send for sending[i]
}

// eventQueue is all that an engine for another system has to implement, besides the functions of sys_darwin.go. Package
// fiber calls the methods of its type systemQueue directly. Events are edge-triggered, and reported for a slot and its
// generation (see table).
type eventQueue interface {
	// open makes the queue, for the calling thread.
	open() error
	// add makes the queue report when the socket fd becomes readable or writable, or ends.
	add(fd int, slot, generation uint32) error
	// addListener makes the queue report when a connection waits.
	addListener(fd int, slot, generation uint32) error
	// remove ends the reports for an open descriptor. Closing a descriptor also ends them.
	remove(fd int)
	// wait waits until there are events, wake is called or left has passed, and returns the number of events. left is
	// in nanoseconds, 0 = do not wait, negative = no limit. raw waits unknown to Go's scheduler, if the system allows
	// that.
	wait(left int64, raw bool) (n int)
	// event returns the i-th of these events; it is called once for each.
	event(i int) (slot, generation uint32, is readyEvents)
	// wake ends a wait; other threads call it.
	wake()
	close()
}

var _ eventQueue = (*systemQueue)(nil)

// readyEvents are the bits of one event.
type readyEvents uint8

const (
	readReady   readyEvents = 1 << iota // data, the end, or an error
	writeReady                          // room, or an error
	endReceived                         // the end was received, perhaps behind unread data, or there is data behind urgent data
)

// newReadiness returns a poller, and an error that names the features it does not have.
func newReadiness(l *loop) (p *readiness, lacks error, err error) {
	p = &readiness{loop: l, raw: newRawWaits()}
	if err := p.queue.open(); err != nil {
		return nil, nil, err
	}
	p.result = func(i int, result int64) { p.sent(p.sending[i], result) }
	p.batch, lacks = newBatchSender()
	return p, lacks, nil
}

func (p *readiness) add(c *Conn) error {
	c.connReadiness = connReadiness{canWrite: true} // unless it is being connected, which connected finds out
	return p.queue.add(c.fd, c.slot, p.loop.table.generation(c.slot))
}

func (p *readiness) remove(c *Conn) bool {
	if c.out != nil {
		return false
	}
	if c.isDirty {
		p.dirty = slices.DeleteFunc(p.dirty, func(o *Conn) bool { return o == c })
		c.isDirty = false
	}
	p.queue.remove(c.fd)
	return true
}

// socket implements poller. This poller holds no received data except in move.
func (p *readiness) socket(c *Conn, s *side, tried bool) (ready bool) {
	switch {
	case s == &c.wr && tried:
		c.canWrite = false
		return false
	case s == &c.wr:
		p.flush(c)
		return c.out == nil
	case tried:
		c.canRead = c.hup
	}
	return c.canRead
}

func (p *readiness) stop(*Conn) bool { return true }

func (p *readiness) read(c *Conn, b []byte) (int, error, bool) {
	if len(c.in) > 0 {
		n := copy(b, c.in)
		c.in = c.in[n:]
		return n, nil, true
	}
	if errno := c.inErr; errno != 0 {
		c.inErr = 0
		return 0, errno, true
	}
	for c.canRead {
		n, errno := rawReceive(c.fd, b)
		switch errno {
		case 0:
			if n < len(b) && !c.hup {
				c.canRead = false // a short read has emptied the socket; later data is a new edge
			}
			c.unsure = true
			if n == 0 && len(b) > 0 && c.sendBroke() {
				return 0, c.outErr, true
			}
			return n, nil, true
		case syscall.EAGAIN:
			c.canRead = false
		case syscall.EINTR:
		default:
			return 0, errno, true
		}
	}
	return 0, nil, false
}

func (p *readiness) write(c *Conn, b []byte) (int, error, bool) {
	switch {
	case c.fin:
		return 0, syscall.EPIPE, true
	case p.gather(c, b):
		return len(b), nil, true
	}
	if p.flush(c); c.outErr != 0 {
		return 0, c.outErr, true
	}
	for c.canWrite && c.out == nil {
		n, errno := rawSend(c.fd, b)
		switch errno {
		case 0:
			c.sentSome = true
			return n, nil, true
		case syscall.EAGAIN:
			c.canWrite = false
		case syscall.EINTR:
		default:
			c.outErr = errno
			return 0, errno, true
		}
	}
	return 0, nil, false
}

// maxGather bounds the data gathered for a connection in a tick, in bytes; copying more does not pay.
const maxGather = 8 << 10

// gather keeps b, after earlier gathered data, until the end of the tick; false = b must be sent now.
func (p *readiness) gather(c *Conn, b []byte) bool {
	n := len(b)
	if c.out != nil {
		n += c.out.n
	}
	if p.batch == nil || !c.canWrite || c.outErr != 0 || n > maxGather {
		return false
	}
	if c.out == nil || n > len(c.out.mem) {
		s := p.send.get(n)
		if s == nil {
			return false
		}
		if c.out != nil {
			s.n = copy(s.mem, c.out.mem[:c.out.n])
			p.send.put(c.out)
		}
		c.out = s
	}
	c.out.n += copy(c.out.mem[c.out.n:], b)
	if !c.isDirty {
		c.isDirty = true
		p.dirty = append(p.dirty, c)
	}
	return true
}

// flush sends gathered data now, as far as the socket has room.
func (p *readiness) flush(c *Conn) {
	for c.out != nil && c.canWrite {
		n, errno := rawSend(c.fd, c.out.mem[:c.out.n])
		if errno != 0 {
			n = -int(errno)
		}
		p.sent(c, int64(n))
	}
}

// sent records that n bytes of the gathered data were sent; a negative n is an error number.
func (p *readiness) sent(c *Conn, n int64) {
	c.sentSome = c.sentSome || n > 0
	switch s := c.out; {
	case n >= int64(s.n):
	case n >= 0:
		s.n = copy(s.mem, s.mem[n:s.n])
		return
	case n == -int64(syscall.EAGAIN):
		c.canWrite = false
		return
	case n == -int64(syscall.EINTR):
		return
	default:
		c.outErr = syscall.Errno(-n)
	}
	p.send.put(c.out)
	c.out = nil
	if c.fin && c.outErr == 0 {
		_ = c.finish()
	}
	c.wakeWriter(p.loop)
}

// sendGathered sends the gathered data of all connections, at the end of a tick.
func (p *readiness) sendGathered() {
	n := 0
	for i, c := range p.dirty {
		p.dirty[i] = nil
		c.isDirty = false
		if c.out == nil || !c.canWrite { // closed, or full: an event continues the sending
			continue
		}
		p.sending[n] = c
		if n++; n == batchSize {
			p.submit(n)
			n = 0
		}
	}
	p.dirty = p.dirty[:0]
	p.submit(n)
}

func (p *readiness) submit(n int) {
	if n > 1 {
		for i, c := range p.sending[:n] {
			p.batch.put(i, c.fd, c.out.mem[:c.out.n])
		}
		_ = p.batch.submit(n, p.result)
	}
	for i, c := range p.sending[:n] {
		p.flush(c) // the remainder of each, and refused messages
		p.sending[i] = nil
	}
}

// readable asks the system if the last read may have emptied the socket.
func (p *readiness) readable(c *Conn) bool {
	if len(c.in) > 0 {
		return true
	}
	if c.canRead && c.unsure {
		c.canRead, c.unsure = !nothingToRead(c.fd), false
	}
	return c.canRead
}

func (p *readiness) quiet(c *Conn) bool { return !p.readable(c) || nothingToRead(c.fd) }

func (p *readiness) ended(c *Conn) bool { return c.hup && len(c.in) == 0 && atEnd(c.fd) }

func (p *readiness) close(c *Conn) {
	if !c.abort {
		p.flush(c)
	}
	if c.out != nil && !c.abort {
		c.linger(p.loop)
	}
	p.closeIdle(c)
}

// closeIdle closes the descriptor of a closed connection when everything is sent, or the connection is aborted.
func (p *readiness) closeIdle(c *Conn) {
	switch {
	case c.out == nil:
	case !c.abort:
		return
	default:
		p.send.put(c.out)
		c.out = nil
	}
	c.free(p.loop)
}

func (p *readiness) watch(a *Listener) error {
	if a.armed {
		return nil
	}
	a.armed = true
	return p.queue.addListener(a.fd, a.slot, p.loop.table.generation(a.slot))
}

// unwatch removes the descriptor from the queue before it closes it, because a duplicate of the descriptor (see File)
// may stay open.
func (p *readiness) unwatch(a *Listener) {
	p.queue.remove(a.fd)
	a.free(p.loop)
}

// wait asks for events. A busy loop waits with a raw system call. If that call lasts, the runtime's signal interrupts
// it, so that the runtime can give the processor to others; an ordinary wait releases the processor at once.
func (p *readiness) wait(until int64) (idle bool) {
	if len(p.dirty) > 0 {
		if p.sendGathered(); p.loop.hasReady() {
			until = -1
		}
	}
	left := int64(-1)
	switch {
	case until < 0:
		left = 0
	case until > 0:
		left = max(until-nanotime(), 0)
	}
	n := p.queue.wait(left, left == 0 || p.loop.isBusy() && p.raw.allowed())
	for i := range n {
		p.handle(p.queue.event(i))
	}
	return n == 0 && left != 0
}

func (p *readiness) handle(slot, generation uint32, is readyEvents) {
	switch t := p.loop.table.get(slot, generation).(type) {
	case *Conn:
		if is&writeReady != 0 {
			t.canWrite = true
			p.flush(t)
		}
		if t.closed {
			p.closeIdle(t)
			return
		}
		if is&endReceived != 0 {
			t.hup = true
		}
		if is&readReady != 0 {
			t.canRead, t.unsure = true, false
			t.wakeReader(p.loop)
		}
		if t.canWrite {
			t.wakeWriter(p.loop)
		}
	case *Listener:
		t.woken(p.loop)
	}
}

func (p *readiness) wake() { p.queue.wake() }

func (p *readiness) unsent() int { return p.send.bytes }

func (p *readiness) trim() {
	p.scratch = nil
	p.send.trim()
}

func (p *readiness) free() {
	if p.batch != nil {
		p.batch.free()
	}
	p.send.free()
	p.queue.close()
}

// move implements poller. Data goes through the loop's one buffer; data that d has no room for goes into a buffer of c.
func (p *readiness) move(c, d *Conn) (n int, full bool, readErr, writeErr error) {
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

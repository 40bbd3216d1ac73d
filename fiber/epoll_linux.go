//go:build linux && (amd64 || arm64)

package fiber

import (
	"fmt"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epoll is the poller for systems without io_uring: edge-triggered readiness, and ordinary
// non-blocking system calls. One epoll_ctl per connection, none per request, and no read that is
// bound to find nothing. Small messages are gathered and sent at the end of the tick, all by one call.
type epoll struct {
	loop    *loop
	fd      int
	event   int // eventfd that ends a wait
	table   table
	events  [256]unix.EpollEvent
	scratch []byte // of CopyTo, for as long as a piece takes
	idle    bool   // the last wait found nothing to do for long
	raw     bool   // see rawWaits

	batch   *aio  // nil = the system has none: everything is sent at once, by itself
	single  error // why
	send    sendBuffers
	dirty   []*Conn // with something gathered, at the end of the tick
	sending [aioSize]*Conn
	told    func(i int, result int64) // sent, for sending[i]
}

// epollConn is what the poller knows of a connection; the loop's thread owns it.
type epollConn struct {
	canRead  bool // not known to be empty
	unsure   bool // but perhaps it is: nobody has looked since the last read
	canWrite bool // not known to be full
	hup      bool // the end is on its way behind the data, or there is some behind urgent data: neither is a new edge
}

const (
	connEvents     = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	listenerEvents = unix.EPOLLIN
	wakeSlot       = 0 // of the eventfd
)

// longestWait is far below what 32 bits of milliseconds hold; the loop waits again after it.
const longestWait = 24 * time.Hour

func newEpoll(l *loop) (poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p := &epoll{loop: l, fd: fd, event: event, raw: rawWaits(l.engine.cfg.Loops)}
	p.told = func(i int, result int64) { p.sent(p.sending[i], result) }
	p.batch, p.single = newAIO()
	p.table.put(p) // wakeSlot
	if err := p.control(unix.EPOLL_CTL_ADD, event, unix.EPOLLIN, wakeSlot); err != nil {
		p.free()
		return nil, err
	}
	return p, nil
}

func (p *epoll) control(op, fd int, events, slot uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(slot), Pad: int32(p.table.generation(slot))}
	if _, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(p.fd), uintptr(op), uintptr(fd),
		uintptr(unsafe.Pointer(&ev)), 0, 0); errno != 0 {
		return fmt.Errorf("epoll_ctl: %w", errno)
	}
	return nil
}

func (p *epoll) add(c *Conn) error {
	c.slot = p.table.put(c)
	c.epollConn = epollConn{}
	if err := p.control(unix.EPOLL_CTL_ADD, c.fd, connEvents, c.slot); err != nil {
		p.table.drop(c.slot)
		return err
	}
	return nil
}

func (p *epoll) remove(c *Conn) {
	if c.isDirty {
		p.dirty = slices.DeleteFunc(p.dirty, func(o *Conn) bool { return o == c })
		c.isDirty = false
	}
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, c.fd, nil)
	p.table.drop(c.slot)
}

func (p *epoll) busy(c *Conn) bool { return len(c.in) > 0 || c.out != nil }
func (p *epoll) stop(*Conn) bool   { return true }

func (p *epoll) read(c *Conn, b []byte) (int, error, bool) {
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
				c.canRead = false // a short read has emptied it; what comes later is a new edge
			}
			c.unsure = true
			if n == 0 && len(b) > 0 && c.cut() {
				return 0, c.outErr, true
			}
			return n, nil, true
		case unix.EAGAIN:
			c.canRead = false
		case unix.EINTR:
		default:
			return 0, errno, true
		}
	}
	return 0, nil, false
}

func (p *epoll) write(c *Conn, b []byte) (int, error, bool) {
	switch {
	case c.fin:
		return 0, unix.EPIPE, true
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
		case unix.EAGAIN:
			c.canWrite = false
		case unix.EINTR:
		default:
			c.outErr = errno
			return 0, errno, true
		}
	}
	return 0, nil, false
}

// gatherMost bounds what is gathered of a connection in a tick: more is not worth the copy.
const gatherMost = 8 << 10

// gather keeps b for the end of the tick, behind what is there; false = it is to be sent now.
func (p *epoll) gather(c *Conn, b []byte) bool {
	n := len(b)
	if c.out != nil {
		n += c.out.n
	}
	if p.batch == nil || !c.canWrite || c.outErr != 0 || n > gatherMost {
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

// flush sends now what was gathered, as far as there is room.
func (p *epoll) flush(c *Conn) {
	for c.out != nil && c.canWrite {
		n, errno := rawSend(c.fd, c.out.mem[:c.out.n])
		if errno != 0 {
			n = -int(errno)
		}
		p.sent(c, int64(n))
	}
}

// sent notes that n bytes of what was gathered were taken; negative: the error.
func (p *epoll) sent(c *Conn, n int64) {
	c.sentSome = c.sentSome || n > 0
	switch s := c.out; {
	case n >= int64(s.n):
	case n >= 0:
		s.n = copy(s.mem, s.mem[n:s.n])
		return
	case n == -int64(unix.EAGAIN):
		c.canWrite = false
		return
	case n == -int64(unix.EINTR):
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

// sendGathered ends a tick.
func (p *epoll) sendGathered() {
	n := 0
	for i, c := range p.dirty {
		p.dirty[i] = nil
		c.isDirty = false
		if c.out == nil || !c.canWrite { // closed, or full: an event goes on
			continue
		}
		p.sending[n] = c
		if n++; n == aioSize {
			p.submit(n)
			n = 0
		}
	}
	p.dirty = p.dirty[:0]
	p.submit(n)
}

func (p *epoll) submit(n int) {
	if n > 1 {
		for i, c := range p.sending[:n] {
			p.batch.put(i, c.fd, c.out.mem[:c.out.n])
		}
		_ = p.batch.submit(n, p.told)
	}
	for i, c := range p.sending[:n] {
		p.flush(c) // what is left, or was refused
		p.sending[i] = nil
	}
}

// readable looks for itself when the last read may have left nothing.
func (p *epoll) readable(c *Conn) bool {
	if len(c.in) > 0 {
		return true
	}
	if c.canRead && c.unsure {
		c.canRead, c.unsure = !nothingToRead(c.fd), false
	}
	return c.canRead
}

func (p *epoll) writable(c *Conn) bool { return c.canWrite }

func (p *epoll) quiet(c *Conn) bool { return !p.readable(c) || nothingToRead(c.fd) }

func (p *epoll) ended(c *Conn) bool { return c.hup && len(c.in) == 0 && atEnd(c.fd) }

func (p *epoll) shutdown(c *Conn) error {
	if c.fin {
		return nil
	}
	p.flush(c)
	if c.fin = true; c.out == nil {
		return c.finish()
	}
	return nil
}

func (p *epoll) close(c *Conn) {
	if !c.abort {
		p.flush(c)
	}
	if c.out != nil && !c.abort {
		c.linger(p.loop)
	}
	p.closeIdle(c)
}

// closeIdle closes the descriptor of a closed connection that has sent everything, or is not to.
func (p *epoll) closeIdle(c *Conn) {
	switch {
	case c.out == nil:
	case !c.abort:
		return
	default:
		p.send.put(c.out)
		c.out = nil
	}
	p.table.drop(c.slot)
	closeSocket(c.fd)
	c.gone(p.loop)
}

func (p *epoll) addListener(a *Listener) error {
	a.slot = p.table.put(a)
	if err := p.control(unix.EPOLL_CTL_ADD, a.fd, listenerEvents|unix.EPOLLET, a.slot); err != nil {
		p.table.drop(a.slot)
		return err
	}
	return nil
}

func (p *epoll) accept(a *Listener) (fd int, from peer, err error, done bool) {
	return acceptOne(a.fd)
}

// closeListener also says that nothing of the socket matters any more, for a copy of it (see File) may
// stay open.
func (p *epoll) closeListener(a *Listener) {
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, a.fd, nil)
	p.table.drop(a.slot)
	_ = unix.Close(a.fd)
	a.gone(p.loop)
}

// wait asks for events. While there is much to do it waits with a raw system call; the runtime's
// signal ends one that lasts, and then an ordinary one follows, which lets the processor go.
func (p *epoll) wait(until int64) {
	if len(p.dirty) > 0 {
		if p.sendGathered(); p.loop.hasReady() {
			until = -1
		}
	}
	ms := -1
	switch {
	case until < 0:
		ms = 0
	case until > 0:
		left := min(max(until-nanotime(), 0), int64(longestWait))
		ms = int((left + 1e6 - 1) / 1e6)
	}
	var n uintptr
	var errno syscall.Errno
	if ms == 0 || p.raw && !p.idle {
		n, _, errno = syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
			uintptr(len(p.events)), uintptr(ms), 0, 0)
	} else {
		n, _, errno = syscall.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
			uintptr(len(p.events)), uintptr(ms), 0, 0)
	}
	if errno != 0 {
		n = 0
	}
	p.idle = n == 0 && ms != 0
	for i := range p.events[:n] {
		p.handle(&p.events[i])
	}
}

func (p *epoll) handle(ev *unix.EpollEvent) {
	switch t := p.table.get(uint32(ev.Fd), uint32(ev.Pad)).(type) {
	case *Conn:
		if ev.Events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			t.canWrite = true
			p.flush(t)
		}
		if t.closed {
			p.closeIdle(t)
			return
		}
		if ev.Events&(unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			t.hup = true
		}
		if ev.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			t.canRead, t.unsure = true, false
			t.wakeReader(p.loop)
		}
		if t.canWrite {
			t.wakeWriter(p.loop)
		}
	case *Listener:
		t.woken(p.loop)
	case *epoll:
		var b [8]byte
		_, _ = rawRead(p.event, b[:])
	}
}

func (p *epoll) each(fn func(owner any)) { p.table.each(fn) }

func (p *epoll) wake() { wakeEvent(p.event) }

func (p *epoll) trim() {
	p.scratch = nil
	p.send.trim()
}

func (p *epoll) free() {
	if p.batch != nil {
		p.batch.free()
	}
	p.send.free()
	_ = unix.Close(p.event)
	_ = unix.Close(p.fd)
}

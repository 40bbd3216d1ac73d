//go:build linux && (amd64 || arm64)

package fiber

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epoll is the poller for systems without io_uring: edge-triggered readiness, and the reads and
// writes are ordinary non-blocking system calls. One epoll_ctl per connection, none per request,
// and no read that is bound to find nothing.
type epoll struct {
	loop    *loop
	fd      int
	event   int // eventfd that ends a wait
	table   table
	events  [256]unix.EpollEvent
	scratch []byte // of CopyTo, for as long as a piece takes
	idle    bool   // the last wait found nothing to do for long
	raw     bool   // see rawWaits
}

// epollConn is what the poller knows of a connection; the loop's thread owns it.
type epollConn struct {
	canRead  bool // not known to be empty
	unsure   bool // but perhaps it is: nobody has looked since the last read
	canWrite bool // not known to be full
	hup      bool // the end is on its way behind the data
}

const (
	connEvents     = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
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
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, c.fd, nil)
	p.table.drop(c.slot)
}

func (p *epoll) busy(c *Conn) bool { return len(c.in) > 0 }
func (p *epoll) stop(*Conn) bool   { return true }

func (p *epoll) read(c *Conn, b []byte) (int, error, bool) {
	if len(c.in) > 0 {
		n := copy(b, c.in)
		c.in = c.in[n:]
		return n, nil, true
	}
	for c.canRead {
		n, errno := rawReceive(c.fd, b)
		switch errno {
		case 0:
			if n < len(b) && !c.hup {
				c.canRead = false // a short read has emptied it; what comes later is a new edge
			}
			c.unsure = true
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
	for c.canWrite {
		n, errno := rawSend(c.fd, b)
		switch errno {
		case 0:
			return n, nil, true
		case unix.EAGAIN:
			c.canWrite = false
		case unix.EINTR:
		default:
			return 0, errno, true
		}
	}
	return 0, nil, false
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
	return c.opError("shutdown", shutdownSocket(c.fd))
}

func (p *epoll) close(c *Conn) {
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
		if ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			t.hup = true
		}
		if ev.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			t.canRead, t.unsure = true, false
			t.wakeReader(p.loop)
		}
		if ev.Events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			t.canWrite = true
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

func (p *epoll) trim() { p.scratch = nil }

func (p *epoll) free() {
	_ = unix.Close(p.event)
	_ = unix.Close(p.fd)
}

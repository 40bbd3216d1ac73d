//go:build linux && (amd64 || arm64)

package fiber

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epoll is the eventQueue of Linux.
type epoll struct {
	fd      int
	eventFD int // eventfd that ends a wait
	ready   [256]unix.EpollEvent
}

type (
	systemQueue = epoll
	batchSender = aio
)

const batchSize = aioSize

func newBatchSender() (*batchSender, error) { return newAIO() }

const (
	connEvents     = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	listenerEvents = unix.EPOLLIN | unix.EPOLLET
)

// longestWait is far below the limit of 32 bits of milliseconds. After it the loop waits again.
const longestWait = int64(24 * time.Hour)

func (q *epoll) open() (err error) {
	if q.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if q.eventFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(q.fd)
		return fmt.Errorf("eventfd: %w", err)
	}
	if err := q.control(q.eventFD, unix.EPOLLIN, wakeSlot, 0); err != nil {
		q.close()
		return err
	}
	return nil
}

func (q *epoll) add(fd int, slot, generation uint32) error {
	return q.control(fd, connEvents, slot, generation)
}

func (q *epoll) addListener(fd int, slot, generation uint32) error {
	return q.control(fd, listenerEvents, slot, generation)
}

func (q *epoll) control(fd int, events, slot, generation uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(slot), Pad: int32(generation)}
	if _, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(q.fd), unix.EPOLL_CTL_ADD, uintptr(fd),
		uintptr(unsafe.Pointer(&ev)), 0, 0); errno != 0 {
		return fmt.Errorf("epoll_ctl: %w", errno)
	}
	return nil
}

func (q *epoll) remove(fd int) { _ = unix.EpollCtl(q.fd, unix.EPOLL_CTL_DEL, fd, nil) }

func (q *epoll) wait(left int64, raw bool) (n int) {
	ms := -1
	if left >= 0 {
		ms = int((min(left, longestWait) + 1e6 - 1) / 1e6)
	}
	var got uintptr
	var errno syscall.Errno
	if raw {
		got, _, errno = syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(q.fd), uintptr(unsafe.Pointer(&q.ready[0])),
			uintptr(len(q.ready)), uintptr(ms), 0, 0)
	} else {
		got, _, errno = syscall.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(q.fd), uintptr(unsafe.Pointer(&q.ready[0])),
			uintptr(len(q.ready)), uintptr(ms), 0, 0)
	}
	if errno != 0 {
		return 0
	}
	return int(got)
}

func (q *epoll) event(i int) (slot, generation uint32, is readyEvents) {
	ev := &q.ready[i]
	if ev.Events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		is |= writeReady
	}
	if ev.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		is |= readReady
	}
	if ev.Events&(unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		is |= endReceived
	}
	if slot = uint32(ev.Fd); slot == wakeSlot {
		var b [8]byte
		_, _ = rawRead(q.eventFD, b[:])
	}
	return slot, uint32(ev.Pad), is
}

func (q *epoll) wake() { wakeEvent(q.eventFD) }

func (q *epoll) close() {
	_ = unix.Close(q.eventFD)
	_ = unix.Close(q.fd)
}

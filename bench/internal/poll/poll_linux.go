package poll

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"
)

const (
	// sysEpollPwait2 has this number on every architecture Go knows (Linux 5.11).
	sysEpollPwait2 = 441
	// maxWait bounds a wait, so that a caller notices an interrupt.
	maxWait = 10 * time.Millisecond
	// bindNoPort is IP_BIND_ADDRESS_NO_PORT: the kernel takes the port when the connection's other end is known.
	bindNoPort = 24
	// edge is EPOLLET. In package syscall the constant is negative on some architectures.
	edge = 1 << 31
)

// Event tells what a descriptor is ready for.
type Event struct {
	FD                     int
	Readable, Writable, Up bool // Up: neither closed nor failed
}

// Poller is one epoll instance. It belongs to one goroutine, locked to its thread.
type Poller struct {
	fd     int
	events [256]syscall.EpollEvent
	out    []Event
}

// New opens a poller.
func New() (*Poller, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Poller{fd: fd}, nil
}

// Close closes the poller and none of its descriptors.
func (p *Poller) Close() error { return syscall.Close(p.fd) }

// Add watches a descriptor, edge-triggered.
func (p *Poller) Add(fd int) error {
	ev := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | edge, Fd: int32(fd)}
	return syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_ADD, fd, &ev)
}

// AddListener watches a listening socket, level-triggered.
func (p *Poller) AddListener(fd int) error {
	ev := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}
	return syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_ADD, fd, &ev)
}

// Wait waits for events, for at most d and never longer than 10 ms. The result is valid until the next call.
//
// The call is unknown to Go's scheduler, which would take the processor away from a thread that waits for 20 µs and make it
// fight for one on return.
func (p *Poller) Wait(d time.Duration) ([]Event, error) {
	d = min(max(d, 0), maxWait)
	ts := syscall.NsecToTimespec(int64(d))
	n, _, errno := syscall.RawSyscall6(sysEpollPwait2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
		uintptr(len(p.events)), uintptr(unsafe.Pointer(&ts)), 0, 0)
	if errno == syscall.EINTR {
		return nil, nil
	}
	if errno != 0 {
		return nil, fmt.Errorf("epoll_pwait2: %w", errno)
	}
	p.out = p.out[:0]
	for _, ev := range p.events[:n] {
		p.out = append(p.out, Event{
			FD:       int(ev.Fd),
			Readable: ev.Events&(syscall.EPOLLIN|syscall.EPOLLRDHUP|syscall.EPOLLHUP|syscall.EPOLLERR) != 0,
			Writable: ev.Events&syscall.EPOLLOUT != 0,
			Up:       ev.Events&(syscall.EPOLLHUP|syscall.EPOLLERR) == 0,
		})
	}
	return p.out, nil
}

// Precise reduces the timer slack of the calling thread. By default the kernel may wake it 50 µs late.
func Precise() {
	const setTimerSlack = 29 // PR_SET_TIMERSLACK
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0)
}

// Read reads available bytes. again means that there are none yet.
func Read(fd int, b []byte) (n int, again bool, err error) {
	r, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return outcome(r, errno)
}

// Write writes what fits into the socket's buffer.
func Write(fd int, b []byte) (n int, again bool, err error) {
	r, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return outcome(r, errno)
}

func outcome(r uintptr, errno syscall.Errno) (int, bool, error) {
	switch errno {
	case 0:
		return int(r), false, nil
	case syscall.EAGAIN, syscall.EINTR:
		return 0, true, nil
	}
	return 0, false, errno
}

// Detach returns the socket of a connection, for a Poller. It closes c; the caller owns the descriptor.
func Detach(c net.Conn) (int, error) {
	f, ok := c.(interface{ File() (*os.File, error) })
	if !ok {
		return 0, fmt.Errorf("a %T has no descriptor", c)
	}
	file, err := f.File()
	if err != nil {
		return 0, err
	}
	defer file.Close()
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return 0, err
	}
	if err := errors.Join(syscall.SetNonblock(fd, true), c.Close()); err != nil {
		_ = syscall.Close(fd)
		return 0, err
	}
	syscall.CloseOnExec(fd)
	return fd, nil
}

// Dial begins to connect to an IPv4 address from the source address, which must be local. It does not wait.
func Dial(to syscall.SockaddrInet4, from [4]byte) (int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, bindNoPort, 1)
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: from}); err == nil {
		err = syscall.Connect(fd, &to)
	}
	if err != nil && !errors.Is(err, syscall.EINPROGRESS) {
		_ = syscall.Close(fd)
		return 0, err
	}
	return fd, nil
}

// Accept accepts a connection. again means that there is none.
func Accept(listener int) (fd int, again bool, err error) {
	fd, _, err = syscall.Accept4(listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EINTR) {
		return 0, true, nil
	}
	if err != nil {
		return 0, false, err
	}
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	return fd, false, nil
}

// SocketAddr converts an address such as "127.0.0.1:80" for Dial.
func SocketAddr(address string) (syscall.SockaddrInet4, error) {
	a, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return syscall.SockaddrInet4{}, err
	}
	return syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}, nil
}

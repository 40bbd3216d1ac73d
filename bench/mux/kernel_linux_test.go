package mux

import (
	"net"
	"slices"
	"syscall"
	"testing"
	"unsafe"
)

// BenchmarkFloor is the lowest cost of a small round trip. In the arm kernel one thread serves both
// ends with bare system calls: per message one write, one wait and one read, none without a result,
// and no thread is woken. The other arms are those of BenchmarkRoundTrip.
func BenchmarkFloor(b *testing.B) {
	sizes := map[string]int{"100B": 100, "1KiB": 1 << 10}
	b.Run("kernel", func(b *testing.B) {
		for _, name := range []string{"100B", "1KiB"} {
			b.Run(name, func(b *testing.B) { kernelRounds(b, sizes[name]) })
		}
	})
	for _, a := range arms {
		if !slices.Contains([]string{"raw", "headpond", "study"}, a.name) {
			continue
		}
		b.Run(a.name, func(b *testing.B) {
			for _, name := range []string{"100B", "1KiB"} {
				b.Run(name, func(b *testing.B) {
					measure(b, a, 1, 1, func(b *testing.B, here, there []port) { pingPong(b, here[0], there[0], sizes[name]) })
				})
			}
		})
	}
}

func kernelRounds(b *testing.B, size int) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	must(b, err)
	defer syscall.Close(epoll)
	measure(b, arm{open: func(b *testing.B, _, _ int) (here, there []port, stop func()) {
		return openKernel(b, epoll)
	}}, 1, 1, func(b *testing.B, here, there []port) {
		p := make([]byte, size)
		b.SetBytes(int64(2 * size))
		for b.Loop() {
			for _, pair := range [2][2]port{{here[0], there[0]}, {there[0], here[0]}} {
				must(b, pair[0].send(p))
				_, err := pair[1].recv(p)
				must(b, err)
			}
		}
	})
}

// kernel is a port without Go's poller.
type kernel struct{ fd, epoll int }

// openKernel makes a connection whose ends are in epoll.
func openKernel(b *testing.B, epoll int) (here, there []port, stop func()) {
	var fds []int
	take := func(c net.Conn) port {
		rc, err := c.(*net.TCPConn).SyscallConn()
		must(b, err)
		fd := -1
		must(b, rc.Control(func(own uintptr) { fd, err = syscall.Dup(int(own)) })) // unknown to Go's poller
		must(b, err)
		must(b, c.Close())
		must(b, syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN}))
		fds = append(fds, fd)
		return kernel{fd, epoll}
	}
	here, there, _ = pairs(b, 1, take)
	return here, there, func() {
		for _, fd := range fds {
			_ = syscall.Close(fd)
		}
	}
}

func (k kernel) send(p []byte) error {
	if n, errno := bare(syscall.SYS_WRITE, k.fd, p); n < len(p) {
		return errno
	}
	return nil
}

func (k kernel) recv(p []byte) ([]byte, error) {
	for got := 0; got < len(p); {
		var event [1]syscall.EpollEvent
		ready, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(k.epoll), uintptr(unsafe.Pointer(&event)), 1, 0, 0, 0)
		if errno != 0 || ready == 0 {
			continue // a signal, or the message has not arrived
		}
		n, errno := bare(syscall.SYS_READ, k.fd, p[got:])
		if n <= 0 {
			return nil, errno
		}
		got += n
	}
	return p, nil
}

// bare makes a system call that does not block, without informing Go's scheduler.
func bare(call uintptr, fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}

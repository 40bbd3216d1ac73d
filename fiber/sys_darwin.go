package fiber

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The loops' system calls on Darwin; the type kqueue says how far they were tested.

func rawReceive(fd int, b []byte) (int, syscall.Errno) {
	n, err := unix.Read(fd, b)
	return max(n, 0), number(err)
}

func rawSend(fd int, b []byte) (int, syscall.Errno) {
	n, err := unix.Write(fd, b)
	return max(n, 0), number(err)
}

// number returns the error number of a system call's error.
func number(err error) syscall.Errno {
	errno, _ := err.(syscall.Errno) //nolint:errorlint // as the system call returns it
	return errno
}

func newSocket(domain int) (fd int, errno syscall.Errno) {
	syscall.ForkLock.RLock() // so that no child process inherits the descriptor
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(domain, unix.SOCK_STREAM, 0)
	return setPrivate(fd, err)
}

// setPrivate makes a new descriptor non-blocking and close-on-exec. The caller holds ForkLock.
func setPrivate(fd int, err error) (int, syscall.Errno) {
	if err != nil {
		return -1, number(err)
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return -1, number(err)
	}
	setOption(fd, unix.SOL_SOCKET, unix.SO_NOSIGPIPE, 1)
	return fd, 0
}

func setOption(fd, level, option, value int) { _ = unix.SetsockoptInt(fd, level, option, value) }

// connectSocket returns the error of an earlier connect, if there is one, before it tries again.
func connectSocket(fd int, sa socketAddr) error {
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && n != 0 {
		return syscall.Errno(n)
	}
	return unix.Connect(fd, sa)
}

// connectedToItself reports whether a socket that was to connect to sa has connected to itself.
func connectedToItself(fd int, sa socketAddr) bool {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		l, ok := local.(*unix.SockaddrInet4)
		return ok && l.Port == sa.Port && (l.Addr == sa.Addr || sa.Addr == [4]byte{})
	case *unix.SockaddrInet6:
		l, ok := local.(*unix.SockaddrInet6)
		return ok && l.Port == sa.Port && (l.Addr == sa.Addr || sa.Addr == [16]byte{})
	}
	return false
}

func acceptOne(listener int) (fd int, from peer, err error, done bool) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for {
		fd, sa, err := unix.Accept(listener)
		switch {
		case err == unix.EINTR: //nolint:errorlint // an errno as it is
			continue
		case err == unix.EAGAIN: //nolint:errorlint // an errno as it is
			return -1, peer{}, nil, false
		}
		fd, errno := setPrivate(fd, err)
		if errno != 0 {
			return -1, peer{}, errno, true
		}
		if _, isUnix := sa.(*unix.SockaddrUnix); isUnix || sa == nil {
			return fd, peer{other: nameless}, nil, true
		}
		return fd, peerOf(sa), nil, true
	}
}

func shutdownSocket(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) }

func closeSocket(fd int) { _ = unix.Close(fd) }

// keepAlive turns TCP keep-alive on or off.
func keepAlive(fd int, on bool) {
	if !on {
		setOption(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
		return
	}
	setTCPOptions(fd, TCPOptions{KeepAliveCount: keepAliveCount})
}

func setTCPOptions(fd int, o TCPOptions) {
	if o.keepsAlive() {
		count := o.KeepAliveCount
		if count <= 0 {
			count = keepAliveCount
		}
		setOption(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPALIVE, seconds(o.KeepAliveIdle, keepAliveTime))
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(o.KeepAliveInterval, keepAliveTime))
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, count)
	}
}

// useReno does nothing: on Darwin no congestion control is chosen for a socket.
func useReno(int) {}

// nothingToRead, peerEnded and atEnd read ahead to find a socket's state, which may take the error of a broken
// connection.
func nothingToRead(fd int) bool { return peek(uintptr(fd)) == Silent }
func peerEnded(fd int) bool     { return !peek(uintptr(fd)).Fit() }
func atEnd(fd int) bool         { return peek(uintptr(fd)) == Dead }

// FinReceived is that of Linux. The system does not report it, so the connection counts as broken.
func FinReceived(int) bool { return false }

// unsent returns how many sent bytes the peer's system has not acknowledged.
func unsent(fd int) int {
	n, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NWRITE) // 0 on an error, so that the connection is not kept for it
	return n
}

// threadID returns the id of the calling thread.
func threadID() int {
	id, _, _ := syscall.RawSyscall(unix.SYS_THREAD_SELFID, 0, 0, 0)
	return int(id)
}

// cpuTime should return the processor time of a thread, which needs Mach's calls. It returns the time that has passed,
// and the watchdog uses that.
func cpuTime(int) time.Duration { return time.Duration(nanotime()) }

func asleep(int) bool { return false }

//go:build linux && (amd64 || arm64)

package fiber

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawRead, rawReceive and rawSend are for calls that cannot block, and cost the scheduler nothing. The two for sockets
// have shorter paths through the kernel than read and write.
func rawRead(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

func rawReceive(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func rawSend(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// newSocket and the other calls at a connection's beginning and end do not wait either, not even connect on a
// non-blocking socket. With ordinary calls, some of which take long enough for the scheduler to take the loop's
// processor away, a short connection costs a fifth more.
func newSocket(domain int) (fd int, errno syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_SOCKET, uintptr(domain), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return int(n), errno
}

func setOption(fd, level, option, value int) {
	v := int32(value)
	_, _, _ = syscall.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
}

// connectSocket allocates nothing for TCP.
func connectSocket(fd int, sa unix.Sockaddr) error {
	var errno syscall.Errno
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		raw := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: sa.Addr, Port: bigEndian(sa.Port)}
		_, _, errno = syscall.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&raw)), unsafe.Sizeof(raw))
	case *unix.SockaddrInet6:
		raw := unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: sa.Addr, Port: bigEndian(sa.Port), Scope_id: sa.ZoneId}
		_, _, errno = syscall.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&raw)), unsafe.Sizeof(raw))
	default:
		return unix.Connect(fd, sa)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// bigEndian returns a port in network byte order.
func bigEndian(port int) (raw uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&raw))[:], uint16(port))
	return raw
}

// localAddr returns the local address of a socket.
func localAddr(fd int) (sa unix.RawSockaddrAny, ok bool) {
	size := uint32(unix.SizeofSockaddrAny)
	_, _, errno := syscall.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
	return sa, errno == 0
}

func shutdownSocket(fd int) error {
	if _, _, errno := syscall.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0); errno != 0 {
		return errno
	}
	return nil
}

// closeSocket does not wait, because SO_LINGER is only ever set to 0.
func closeSocket(fd int) { _, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

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
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(o.KeepAliveIdle, keepAliveTime))
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(o.KeepAliveInterval, keepAliveTime))
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, count)
	}
	if o.UserTimeout > 0 {
		setOption(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(max(o.UserTimeout.Milliseconds(), 1)))
	}
}

// nothingToRead reports whether a socket is open and has neither data nor its end to read. It polls the socket, because
// a read, even with MSG_PEEK, takes a pending error: a reset would look like a clean end afterwards.
func nothingToRead(fd int) bool {
	state := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	return pollNow(state[:]) && state[0].Revents == 0
}

// peerEnded reports whether the peer of a socket has ended its stream, or the socket is broken, even if there is unread
// data.
func peerEnded(fd int) bool {
	state := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	return pollNow(state[:]) && state[0].Revents != 0
}

// atEnd reports whether a socket has only its end, or an error, to read.
func atEnd(fd int) bool {
	if nothingToRead(fd) {
		return false
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	return n == 0 && err == nil
}

// unsent returns how many sent bytes the peer's system has not acknowledged.
func unsent(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.TIOCOUTQ) // 0 on an error, so that the connection is not kept for it
	return n
}

// FinReceived reports whether the peer of a TCP socket has ended its stream, whatever came afterwards. Only this
// distinguishes an end from a reset whose error was already returned: TCP_INQ counts the end as a byte to receive,
// TIOCINQ does not.
func FinReceived(fd int) bool {
	setOption(fd, unix.IPPROTO_TCP, unix.TCP_INQ, 1)
	var b [1]byte
	var control [64]byte
	_, n, _, _, err := unix.Recvmsg(fd, b[:], control[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	received, _ := unix.IoctlGetInt(fd, unix.TIOCINQ)
	messages, _ := unix.ParseSocketControlMessage(control[:max(n, 0)])
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_TCP && m.Header.Type == unix.TCP_CM_INQ && len(m.Data) >= 4 {
			return err == nil && int(binary.NativeEndian.Uint32(m.Data)) > received
		}
	}
	return false
}

// wakeEvent makes an eventfd readable.
func wakeEvent(fd int) {
	one := [8]byte{0: 1}
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one[0])), 8)
		if errno != unix.EINTR {
			return
		}
	}
}

// acceptOne takes a connection from a listening socket, if one waits.
func acceptOne(listener int) (fd int, from peer, err error, done bool) {
	var sa unix.RawSockaddrAny
	for {
		size := uint32(unix.SizeofSockaddrAny)
		n, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&sa)),
			uintptr(unsafe.Pointer(&size)), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
		switch errno {
		case 0:
			return int(n), acceptedPeer(&sa), nil, true
		case unix.EAGAIN:
			return -1, peer{}, nil, false
		case unix.EINTR:
		default:
			return -1, peer{}, errno, true
		}
	}
}

// acceptedPeer returns the peer for an address of accept4(2).
func acceptedPeer(sa *unix.RawSockaddrAny) peer {
	port := func(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return peer{ip4: peer4{ip: in.Addr, port: port(&in.Port)}}
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		return peerOf(&unix.SockaddrInet6{Addr: in.Addr, Port: int(port(&in.Port)), ZoneId: in.Scope_id})
	}
	return peer{other: nameless}
}

// connectedToItself reports whether a socket that was to connect to sa has connected to itself, which happens now and
// then on ephemeral ports without a listener. It asks the system for such ports only.
func connectedToItself(fd int, sa unix.Sockaddr) bool {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		if !ephemeral.has(sa.Port) {
			return false
		}
		local, ok := localAddr(fd)
		l := (*unix.RawSockaddrInet4)(unsafe.Pointer(&local))
		return ok && l.Family == unix.AF_INET && l.Port == bigEndian(sa.Port) && (l.Addr == sa.Addr || sa.Addr == [4]byte{})
	case *unix.SockaddrInet6:
		if !ephemeral.has(sa.Port) {
			return false
		}
		local, ok := localAddr(fd)
		l := (*unix.RawSockaddrInet6)(unsafe.Pointer(&local))
		return ok && l.Family == unix.AF_INET6 && l.Port == bigEndian(sa.Port) && (l.Addr == sa.Addr || sa.Addr == [16]byte{})
	}
	return false
}

// ephemeral are the ports that the system chooses from for sockets that connect. They are read when the process starts.
var ephemeral = readEphemeral("/proc/sys/net/ipv4/ip_local_port_range")

// portRange is a range of ports with both ends.
type portRange struct{ first, last int }

func (r portRange) has(port int) bool { return r.first <= port && port <= r.last }

// readEphemeral returns all ports if the file cannot be read.
func readEphemeral(path string) (r portRange) {
	text, err := os.ReadFile(path)
	if n, _ := fmt.Sscan(string(text), &r.first, &r.last); err != nil || n != 2 {
		return portRange{1, math.MaxUint16}
	}
	return r
}

// threadID returns the id of the calling thread.
func threadID() int { return unix.Gettid() }

// cpuTime returns the processor time of a thread of this process, by the clock of pthread_getcpuclockid(3).
func cpuTime(thread int) time.Duration {
	const perThread, scheduled = 4, 2
	var t unix.Timespec
	if unix.ClockGettime(int32(^thread<<3|perThread|scheduled), &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// asleep reports whether a thread of this process neither runs nor waits for a processor. It returns true if the system
// does not report the thread's state.
func asleep(thread int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", thread))
	_, state, ok := bytes.Cut(stat, []byte(") "))
	return err != nil || !ok || len(state) == 0 || state[0] != 'R'
}

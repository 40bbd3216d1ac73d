package fiber

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const canPeek = true

// peek returns the state of the socket fd. It does not try to read, not even with MSG_PEEK, because that would take the
// error of a broken connection, which belongs to the socket's user, and would not show an end after data.
func peek(fd uintptr) State {
	socket := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	for {
		var now unix.Timespec // the call does not wait, so the scheduler need not know of it
		_, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&socket)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		if errno == 0 {
			break
		} else if errno == unix.EINTR {
			continue
		}
		if _, err := unix.Poll(socket[:], 0); err == nil { // for systems that only allow this call
			break
		} else if err != unix.EINTR { //nolint:errorlint // an errno as it is
			return Dead
		}
	}
	switch socket[0].Revents {
	case 0:
		return Silent
	case unix.POLLIN:
		return Pending
	}
	if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && n > 0 {
		return Closing
	}
	return Dead
}

// arrival returns the state of a socket that has just been accepted.
func arrival(fd uintptr) Arrival {
	state := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if !pollNow(state[:]) || state[0].Revents == 0 {
		return Present
	}
	if state[0].Revents&unix.POLLERR != 0 {
		return Broken
	}
	if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err != nil || n > 0 {
		return Present
	}
	if state[0].Revents&unix.POLLHUP != 0 { // on a Unix socket; TCP reports it when both sides have ended
		return Broken
	}
	return EndedEmpty
}

// pollNow sets the readiness of descriptors without waiting; false = the system does not report it.
func pollNow(fds []unix.PollFd) bool {
	var none unix.Timespec
	_, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)),
		uintptr(unsafe.Pointer(&none)), 0, 0, 0)
	return errno == 0 || errno == unix.EINTR // after an interrupt no readiness is known
}

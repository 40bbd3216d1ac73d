//go:build unix

package link

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Pair makes the two ends of a link. Programs that this process starts do not inherit them, unless it passes them.
func Pair() (one, other *os.File, err error) {
	syscall.ForkLock.RLock() // Darwin cannot make sockets that are closed on exec
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("link: %w", os.NewSyscallError("socketpair", err))
	}
	for _, fd := range fds {
		syscall.CloseOnExec(fd)
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link"), nil
}

// writeFile writes the beginning of a message with a descriptor, and returns how much of it was written.
func writeFile(c *net.UnixConn, p []byte, f *os.File) (int, error) {
	n, _, err := c.WriteMsgUnix(p, syscall.UnixRights(int(f.Fd())), nil)
	return n, err
}

// readWithFile fills p, and returns the descriptor that came with it, nil if none did.
func readWithFile(c *net.UnixConn, p []byte) (f *os.File, err error) {
	rights := make([]byte, syscall.CmsgSpace(4)) // for one descriptor: the system closes what has no room
	for got := 0; got < len(p); {
		n, rn, _, _, err := c.ReadMsgUnix(p[got:], rights)
		for _, fd := range descriptors(rights[:rn]) {
			if f != nil {
				_ = f.Close()
			}
			f = os.NewFile(uintptr(fd), "link")
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			if f != nil {
				_ = f.Close()
			}
			return nil, err
		}
		got += n
	}
	return f, nil
}

// descriptors returns those in a control message.
func descriptors(control []byte) (all []int) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		if fds, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			all = append(all, fds...)
		}
	}
	return all
}

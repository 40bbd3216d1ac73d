package pgproxy

import (
	"fmt"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/listener"
)

// hasPeerUser reports whether peerUser works on this operating system.
const hasPeerUser = true

// peerUser returns the name of the operating system's user who has connected to a Unix socket.
func peerUser(c *listener.Conn) (string, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err == nil {
		err = failed
	}
	if err != nil {
		return "", fmt.Errorf("the user at the other end of the socket is unknown: %w", err)
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(peer.Uid), 10))
	if err != nil {
		return "", fmt.Errorf("the user at the other end of the socket has no name: %w", err)
	}
	return u.Username, nil
}

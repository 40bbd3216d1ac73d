package fiber

import (
	"errors"
	"net"
	"time"
)

// TCPOptions say how the system finds out that a peer has vanished: that packets to it are dropped. The zero value
// leaves a connection as it is.
type TCPOptions struct {
	// KeepAliveIdle is how long a connection is silent before the peer is asked, KeepAliveInterval how long it has for
	// an answer, and KeepAliveCount how many questions without one end the connection. 0 = 15 s, 15 s and 9 if one of
	// the others is set. Durations are rounded up to seconds.
	KeepAliveIdle, KeepAliveInterval time.Duration
	KeepAliveCount                   int
	// UserTimeout ends a connection on which sent data, or keep-alive's questions, have had no answer for so long;
	// it then counts instead of KeepAliveCount. Linux also counts the time in which the peer answers but has no room
	// for more data, so that it ends connections whose peers read nothing for so long. 0 = as the system has it: about 15 minutes. Only on Linux.
	UserTimeout time.Duration
}

// Defaults of keep-alive, which are package net's.
const (
	keepAliveTime  = 15 * time.Second
	keepAliveCount = 9
)

func (o TCPOptions) keepsAlive() bool {
	return o.KeepAliveIdle > 0 || o.KeepAliveInterval > 0 || o.KeepAliveCount > 0
}

// Apply sets the options of a connection, whatever they were before. Connections other than TCP are left alone.
func (o TCPOptions) Apply(c net.Conn) error {
	if o == (TCPOptions{}) {
		return nil
	}
	if a := c.RemoteAddr(); a == nil || a.Network() != "tcp" {
		return nil
	}
	raw, err := StreamOf(c).SyscallConn()
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // something over TCP, not a socket
	}
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { setTCPOptions(int(fd), o) })
}

// seconds rounds up.
func seconds(d, otherwise time.Duration) int {
	if d <= 0 {
		d = otherwise
	}
	return int((d + time.Second - 1) / time.Second)
}

package fiber

import (
	"errors"
	"net"
	"time"
)

// TCPOptions say how the system detects that a peer has vanished, so that packets to it are lost. The zero value
// changes nothing.
type TCPOptions struct {
	// KeepAliveIdle is how long a connection is silent before the system sends a probe, KeepAliveInterval is the time
	// between probes, and KeepAliveCount is how many unanswered probes end the connection. 0 = 15 s, 15 s and 9 if one
	// of the others is set. Durations are rounded up to seconds.
	KeepAliveIdle, KeepAliveInterval time.Duration
	KeepAliveCount                   int
	// UserTimeout ends a connection on which sent data, or keep-alive probes, have not been acknowledged for that long;
	// it then replaces KeepAliveCount. Linux also counts the time in which the peer answers but has no room for more
	// data, so that connections end whose peers read nothing for that long. 0 = the system's default, about 15 minutes.
	// Only on Linux.
	UserTimeout time.Duration
}

// Defaults of keep-alive, the same as package net's.
const (
	keepAliveTime  = 15 * time.Second
	keepAliveCount = 9
)

func (o TCPOptions) keepsAlive() bool {
	return o.KeepAliveIdle > 0 || o.KeepAliveInterval > 0 || o.KeepAliveCount > 0
}

// Apply sets the options of a connection, whatever they were before. It does nothing for connections other than TCP.
func (o TCPOptions) Apply(c net.Conn) error {
	if o == (TCPOptions{}) {
		return nil
	}
	if a := c.RemoteAddr(); a == nil || a.Network() != "tcp" {
		return nil
	}
	raw, err := StreamOf(c).SyscallConn()
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // a layer over TCP, not a socket
	}
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { setTCPOptions(int(fd), o) })
}

// seconds returns d in seconds, rounded up; otherwise if d is 0.
func seconds(d, otherwise time.Duration) int {
	if d <= 0 {
		d = otherwise
	}
	return int((d + time.Second - 1) / time.Second)
}

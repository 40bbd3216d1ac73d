//go:build !unix

package tcpproxy

import "syscall"

// reset cannot look here.
func reset(syscall.Conn) bool { return false }

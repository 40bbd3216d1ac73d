//go:build !unix

package pgproxy

import "net"

// silent cannot look without blocking here: a dead server connection shows when it is used.
func silent(net.Conn) (bool, error) { return true, nil }

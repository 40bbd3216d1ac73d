//go:build !unix

package tcppool

import (
	"net"

	"github.com/headpond/headpond/internal/idleconn"
)

// peek cannot look at a socket on this system, so that nothing is kept.
func peek(net.Conn) idleconn.State { return idleconn.Unknown }

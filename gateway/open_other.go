//go:build !unix

package gateway

import "net"

// open cannot look without reading here; a dead connection shows in use.
func open(net.Conn) bool { return true }

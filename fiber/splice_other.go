//go:build !linux

package fiber

import "net"

// spliceSockets moves nothing.
func spliceSockets(*Transfer, net.Conn, net.Conn, func(int), func(int)) (readErr, writeErr error) {
	return nil, nil
}

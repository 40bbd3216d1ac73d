//go:build !linux

package fiber

import "net"

// spliceSockets moves nothing: what has arrived is not known, or package net does not splice.
func spliceSockets(_, _ net.Conn, _, _ func(int)) (readErr, writeErr error) { return nil, nil }

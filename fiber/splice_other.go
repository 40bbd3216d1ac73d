//go:build !linux

package fiber

import "net"

// spliceSockets moves nothing: how much has arrived is unknown, or package net does not splice.
func spliceSockets(_, _ net.Conn, _, _ func(int)) (readErr, writeErr error) { return nil, nil }

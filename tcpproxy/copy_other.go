//go:build !linux

package tcpproxy

import "net"

// fastReader exists on Linux only; elsewhere every copy is a plain one.
type fastReader struct{}

func newFastReader(net.Conn) *fastReader { return nil }

func (r *relay) copyFast(src, dst *side, moved func(int)) (readErr, writeErr error) {
	return copyPlain(src.conn, dst.conn, moved)
}

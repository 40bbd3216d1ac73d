package httpproxy

import (
	"encoding/binary"
	"syscall"
)

// tcpCloseWait is the state of a socket whose peer has sent its end (TCP_CLOSE_WAIT of Linux's tcp_states.h).
const tcpCloseWait = 8

// peerSaidGoodbye reports whether all that is unread of a TLS connection is the alert that ends it (RFC 8446, section
// 6.1) and the socket's end.
func peerSaidGoodbye(fd uintptr) bool {
	const header, alert, data, alertAsData = 5, 21, 23, 2 + 1 + 16 // under TLS 1.3 an alert looks like data
	var b [64]byte
	n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	if err != nil || n < header {
		return false
	}
	size := int(binary.BigEndian.Uint16(b[3:]))
	if n != header+size || b[0] != alert && (b[0] != data || size != alertAsData) {
		return false
	}
	info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO) // its first byte is the state
	binary.NativeEndian.PutUint32(b[:], uint32(info))
	return err == nil && b[0] == tcpCloseWait
}

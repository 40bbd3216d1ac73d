//go:build !linux

package httpproxy

// peerSaidGoodbye cannot tell.
func peerSaidGoodbye(uintptr) bool { return false }

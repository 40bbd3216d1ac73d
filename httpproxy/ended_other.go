//go:build !unix

package httpproxy

// peerEnded cannot tell.
func peerEnded(uintptr) bool { return false }

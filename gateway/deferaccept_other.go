//go:build !linux

package gateway

// deferAccept does nothing: other systems hand over connections at once.
func (*socket) deferAccept(bool) {}

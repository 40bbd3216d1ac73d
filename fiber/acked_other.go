//go:build !linux

package fiber

// acked implements Stream.Acked for a socket. Other systems do not report it.
func acked(int) (n uint64, all bool) { return 0, true }

//go:build !linux

package fiber

// acked is Stream's Acked of a socket. Other systems do not tell.
func acked(int) (n uint64, all bool) { return 0, true }

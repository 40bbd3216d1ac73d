//go:build !linux

package cli

// monotonicMicroseconds is used with systemd only, which needs Linux.
func monotonicMicroseconds() int64 { return 0 }

//go:build !linux

package cli

// monotonicMicroseconds is used only with systemd, which exists only on Linux.
func monotonicMicroseconds() int64 { return 0 }

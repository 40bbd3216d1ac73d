//go:build !linux

package main

// monotonicMicroseconds is used with systemd only, which needs Linux.
func monotonicMicroseconds() int64 { return 0 }

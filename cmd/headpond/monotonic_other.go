//go:build !linux

package main

// monotonicMicroseconds is for systemd, which is not here.
func monotonicMicroseconds() int64 { return 0 }

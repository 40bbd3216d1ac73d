package main

import "golang.org/x/sys/unix"

// monotonicMicroseconds is CLOCK_MONOTONIC, by which systemd tells a reload from the one before.
func monotonicMicroseconds() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return now.Nano() / 1000
}

package cli

import "golang.org/x/sys/unix"

// monotonicMicroseconds reads CLOCK_MONOTONIC, by which systemd distinguishes reloads.
func monotonicMicroseconds() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return now.Nano() / 1000
}

package cli

import "golang.org/x/sys/unix"

// monotonicMicroseconds reads CLOCK_MONOTONIC. systemd distinguishes reloads by it.
func monotonicMicroseconds() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return now.Nano() / 1000
}

//go:build unix

// Package cpu reads the processor time of this process.
package cpu

import (
	"syscall"
	"time"
)

// Time returns the process's processor time, user and system; 0 if it is unknown.
func Time() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

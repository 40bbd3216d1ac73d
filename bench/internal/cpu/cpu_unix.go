//go:build unix

// Package cpu reads what this process has used of the processors.
package cpu

import (
	"syscall"
	"time"
)

// Time is the process's processor time, user and system; 0 where the system does not tell.
func Time() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

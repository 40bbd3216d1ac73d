package pool_test

import (
	"syscall"
	"testing"
	"time"
)

// reportCPU returns what reports the processor time of the process per operation, which other programs disturb less than the clock.
func reportCPU(b *testing.B) func() {
	begin := cpuTime()
	return func() { b.ReportMetric(float64(cpuTime()-begin)/float64(b.N), "cpu-ns/op") }
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

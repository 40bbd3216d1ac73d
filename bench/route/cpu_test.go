//go:build unix

package route_test

import (
	"syscall"
	"testing"
)

// reportCPU returns what reports the processor time of the process per operation: steadier than the clock on a
// machine that does other things too, and with what the collector does beside.
func reportCPU(b *testing.B) func() {
	begin := cpuTime()
	return func() { b.ReportMetric(float64(cpuTime()-begin)/float64(b.N), "cpu-ns/op") }
}

func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

//go:build unix

package gateway

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// processUse returns what the process uses. Only Linux reports its memory.
func processUse() admin.ProcessUse {
	use := admin.ProcessUse{CPUs: runtime.GOMAXPROCS(0)}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		use.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	pages, _ := os.ReadFile("/proc/self/statm") // proc_pid_statm(5)
	if fields := bytes.Fields(pages); len(fields) > 1 {
		resident, _ := strconv.ParseUint(string(fields[1]), 10, 64)
		use.Resident = resident * uint64(os.Getpagesize())
	}
	return use
}

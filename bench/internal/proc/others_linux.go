package proc

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Usage is the processor time used on the machine, and by this program, since the machine or the program began.
type Usage struct {
	Total, Busy, Own time.Duration
}

// Usage reads the processor time of the machine and of this process with its children, living and ended.
func (g *Group) Usage() Usage {
	u := machineUsage()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if syscall.Getrusage(who, &r) == nil {
			u.Own += time.Duration(r.Utime.Nano() + r.Stime.Nano())
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.procs {
		if d, err := p.CPU(); err == nil { // otherwise it has ended and is counted above
			u.Own += d
		}
	}
	return u
}

// Others returns the fraction of the processors' time used by others since before: other programs, and other virtual
// machines as far as the kernel knows.
func (u Usage) Others(before Usage) float64 {
	total := u.Total - before.Total
	if total <= 0 {
		return 0
	}
	others := (u.Busy - before.Busy) - (u.Own - before.Own)
	return min(1, max(0, float64(others)/float64(total)))
}

// interruptsApart reports whether the kernel counts the time of interrupts separately from processes. Most of them come
// from our own traffic. If it is unknown they count as separate: that underestimates the time of others.
var interruptsApart = sync.OnceValue(func() bool {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	for _, path := range []string{"/proc/config.gz", "/boot/config-" + strings.TrimSpace(string(release))} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		defer f.Close()
		var r io.Reader = f
		if strings.HasSuffix(path, ".gz") {
			if r, err = gzip.NewReader(f); err != nil {
				continue
			}
		}
		if config, err := io.ReadAll(r); err == nil {
			return bytes.Contains(config, []byte("\nCONFIG_IRQ_TIME_ACCOUNTING=y"))
		}
	}
	return true
})

// machineUsage reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, in hundredths of a second.
func machineUsage() Usage {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Usage{}
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var u Usage
	for i, field := range strings.Fields(line) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil || i > 8 {
			continue
		}
		u.Total += time.Duration(n) * tick
		interrupt := i == 6 || i == 7
		if i <= 3 || i == 8 || interrupt && !interruptsApart() {
			u.Busy += time.Duration(n) * tick
		}
	}
	return u
}

package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Trace counts a process's system calls by strace until End.
type Trace struct {
	cmd *exec.Cmd
	out string
}

// ErrNoStrace means that strace is not installed or not permitted.
var ErrNoStrace = errors.New("no strace here")

// Trace attaches to the process, its threads and its descendants. It returns when all of them are traced.
func (p *Process) Trace() (*Trace, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return nil, fmt.Errorf("%w: apt-get install strace", ErrNoStrace)
	}
	t := &Trace{out: p.log + ".strace"}
	args := []string{"-c", "-f", "-o", t.out}
	pids := p.pids()
	for _, pid := range pids {
		args = append(args, "-p", strconv.Itoa(pid))
	}
	t.cmd = exec.Command(path, args...)
	t.cmd.Dir = filepath.Dir(p.log) // so that Sweep finds it
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(5 * time.Second); !traced(pids); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			_, err := t.End()
			return nil, errors.Join(ErrNoStrace, err)
		}
	}
	return t, nil
}

// traced reports whether all processes have a tracer.
func traced(pids []int) bool {
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && field(string(data), "\nTracerPid:") == 0 {
			return false
		}
	}
	return true
}

// End detaches and returns the number of system calls.
func (t *Trace) End() (int64, error) {
	if err := t.cmd.Process.Signal(os.Interrupt); err != nil {
		return 0, err
	}
	_ = t.cmd.Wait() // the error reports the signal
	data, err := os.ReadFile(t.out)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) >= 5 && f[len(f)-1] == "total" {
			return strconv.ParseInt(f[3], 10, 64)
		}
	}
	return 0, fmt.Errorf("strace said %q", data)
}

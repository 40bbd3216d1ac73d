package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ownerFile is the file in a group's directory that identifies its owner.
const ownerFile = "owner"

// identity distinguishes a process from every other one by the boot of the machine, the PID namespace, the PID, and the
// start time, because PIDs are reused. It is empty if the process does not exist.
func identity(pid int) string {
	fields := stat(pid)
	if len(fields) < 20 {
		return ""
	}
	return fmt.Sprintf("%s %d %s", place(), pid, fields[19])
}

// place is the boot and the namespace.
func place() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, _ := os.Readlink("/proc/self/ns/pid")
	return strings.TrimSpace(string(boot)) + " " + space
}

// stat returns the fields of /proc/PID/stat from the state on. The name before them may contain any
// byte.
func stat(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
}

// abandoned reports whether the owner of a directory has certainly ended. An owner from an earlier boot has; one in
// another namespace may be alive.
func abandoned(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if err != nil { // the directory is being made or removed
		info, err := os.Stat(dir)
		return err == nil && time.Since(info.ModTime()) > time.Hour
	}
	owner := strings.Fields(string(data))
	here := strings.Fields(place())
	if len(owner) != 4 || len(here) != 2 {
		return false
	}
	if owner[0] != here[0] {
		return true
	}
	pid, err := strconv.Atoi(owner[2])
	return err == nil && owner[1] == here[1] && identity(pid) != string(data)
}

// Sweep ends what killed runs have left behind: processes in the directory of a run whose own process has ended, and
// the directory. It returns a line for each such run.
func Sweep() ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(base(), prefix+"*"))
	var lines []string
	for _, dir := range dirs {
		if !abandoned(dir) {
			continue
		}
		n := killWithin(dir)
		err = errors.Join(err, os.RemoveAll(dir))
		lines = append(lines, fmt.Sprintf("removed what a killed run has left: %s, %d process(es)", dir, n))
	}
	return lines, err
}

// killWithin kills the processes that Start started in a directory.
func killWithin(dir string) int {
	n := 0
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || cwd != dir && !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}

// Output is cmd.CombinedOutput. The kernel kills the program if this process dies first.
func Output(cmd *exec.Cmd) ([]byte, error) {
	// The kernel sends the signal when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return cmd.CombinedOutput()
}

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

// ownerFile says in a group's folder whose it is.
const ownerFile = "owner"

// identity tells a process from every other: the boot of the machine, the namespace of its number, the number, and when it began, for
// numbers are given again. It is empty for a process that is not there.
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

// stat is /proc/PID/stat from the state on: the name before it may hold anything.
func stat(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
}

// abandoned reports whether a folder's owner has certainly ended. An owner of another boot has; one of another namespace may live.
func abandoned(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if err != nil { // being made, or half removed
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

// Sweep ends what runs that were killed have left: processes that work in the folder of a run whose own process is gone, and the
// folder. It returns a line for each such run.
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

// killWithin kills the processes whose working directory is in a folder, where Start puts them.
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

// Output is cmd.CombinedOutput for a program that ends by itself. The kernel kills it when this process dies before.
func Output(cmd *exec.Cmd) ([]byte, error) {
	// The kernel takes the end of the thread that started a process for the end of its parent.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return cmd.CombinedOutput()
}

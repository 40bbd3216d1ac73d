package pgtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// apply makes cmd run as the account and end with this process: if the test binary is killed, the
// kernel sends SIGQUIT, on which PostgreSQL stops at once with its children.
func (a account) apply(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT, Setpgid: true}
	if a.drop {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
}

// owns reports whether the file belongs to the account.
func (a account) owns(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == a.uid
}

// killAll kills the server and all processes it started with SIGKILL, like the kernel's
// out-of-memory killer.
func killAll(pid int) error { return signalAll(pid, syscall.SIGKILL) }

// freezeAll and thawAll stop the server and all its processes, and let them continue.
func freezeAll(pid int) error { return signalAll(pid, syscall.SIGSTOP) }
func thawAll(pid int) error   { return signalAll(pid, syscall.SIGCONT) }

// signalAll sends a signal to the server and all processes it started.
func signalAll(pid int, signal syscall.Signal) error {
	// Stop the process first, so that it starts no further process while its children are listed.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for _, child := range children(pid) {
		_ = syscall.Kill(child, signal) // it may have ended already
	}
	return syscall.Kill(pid, signal)
}

// removeSegment removes the System V shared memory left by a killed server. A system has room for a few thousand
// segments. Line 7 of the server's pid file has the key and id. A server that was stopped, or failed early, has no such
// line.
func removeSegment(pidFile string) error {
	data, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var key, id int
	if lines := strings.Split(string(data), "\n"); len(lines) < 7 {
		return nil
	} else if n, _ := fmt.Sscan(lines[6], &key, &id); n != 2 {
		return nil
	}
	var now unix.SysvShmDesc
	if _, err := unix.SysvShmCtl(id, unix.IPC_STAT, &now); err != nil || now.Perm.Key != int32(key) {
		return nil //nolint:nilerr // the segment is gone, and its id may be in use by another
	}
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
		return fmt.Errorf("remove the shared memory of a killed server: %w", err)
	}
	return nil
}

// children returns the direct children of pid, which are all of a PostgreSQL server's processes.
func children(pid int) []int {
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		// pid (name) state ppid …; the name may contain spaces and parentheses.
		_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

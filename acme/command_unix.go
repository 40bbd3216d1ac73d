//go:build unix

package acme

import (
	"os/exec"
	"syscall"
)

// alone has a program run in a process group of its own, which is killed as a whole when its time is over: a script's children
// would go on otherwise.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

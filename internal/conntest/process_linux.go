package conntest

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the kernel kill the command when this process dies.
func endWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

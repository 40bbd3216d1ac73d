package integration

import (
	"os/exec"
	"syscall"
)

// endWithParent makes the kernel kill the command when this test binary dies.
func endWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

//go:build !unix

package cli

import (
	"errors"
	"os"
	"os/exec"
)

// become runs another program in place of this one and returns its exit code.
func become(program string, args, variables []string) (code int, err error) {
	cmd := exec.Command(program, args...) //nolint:gosec // the path is ours, the arguments are the user's
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, variables
	err = cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return ended.ExitCode(), nil
	}
	return 0, err
}

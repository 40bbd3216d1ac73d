//go:build unix

package cli

import "syscall"

// become replaces this process by another program. It returns only on failure.
func become(program string, args, variables []string) (code int, err error) {
	return 0, syscall.Exec(program, append([]string{program}, args...), variables) //nolint:gosec // the path is ours, the arguments are the user's
}

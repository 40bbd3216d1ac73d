package cli

import "io"

// Run runs the command that args name, as Main does, and returns the exit code.
func Run(stdout, stderr io.Writer, args []string) int { return run(env{stdout, stderr}, args) }

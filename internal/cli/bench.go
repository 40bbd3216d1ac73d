package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
)

// benchName is the program that measures. It is a separate program, so that its peers are not linked into this one.
const benchName = "headpond-bench"

// gatewayVariable is the environment variable with the path of the gateway to measure.
const gatewayVariable = "HEADPOND_BENCH_GATEWAY"

// bench is `headpond bench …`: it runs headpond-bench with the same arguments.
func bench(e env, args []string) int {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	var program string
	if err == nil {
		program, err = benchProgram(self, e.stderr)
	}
	if err == nil {
		var code int
		if code, err = become(program, args, append(os.Environ(), gatewayVariable+"="+self)); err == nil {
			return code
		}
	}
	return benchFailed(e, args, err)
}

// benchFailed prints why headpond-bench does not run. If only help was asked for, it also prints the purpose of the
// command.
func benchFailed(e env, args []string, err error) int {
	if errors.Is(err, errNoBench) && len(args) > 0 && slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		_, _ = fmt.Fprintf(e.stdout, "Usage: headpond bench SUITE…\n\nMeasures the gateway and its peers on this machine, by a separate program.\n%v.\n", err)
		return exitOK
	}
	_, _ = fmt.Fprintln(e.stderr, "headpond bench:", err)
	return exitProblem
}

// errNoBench means that neither the program nor its source exists.
var errNoBench = errors.New(benchName + " is not installed: put the one of the same release beside headpond, or run headpond bench within the source tree")

// benchProgram returns the program's path. If headpond or the working directory is inside the source tree, it builds
// the program there, into bin/. Otherwise the program is beside headpond.
func benchProgram(self string, stderr io.Writer) (string, error) {
	for _, start := range []string{filepath.Dir(self), "."} {
		if tree := sourceTree(start); tree != "" {
			return buildBench(tree, stderr)
		}
	}
	program := filepath.Join(filepath.Dir(self), executable(benchName))
	if _, err := os.Stat(program); err != nil {
		return "", errNoBench
	}
	return program, nil
}

// executable is the file name of a program.
func executable(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}

// sourceTree returns the nearest directory above dir that contains the source, or "".
func sourceTree(dir string) string {
	dir, err := filepath.Abs(dir)
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "bench", "cmd", benchName)); missing == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		dir = parent
	}
	return ""
}

// buildBench builds the program. It includes the peer that needs a C compiler if there is one. The go command knows
// whether anything changed.
func buildBench(tree string, stderr io.Writer) (string, error) {
	program := filepath.Join(tree, "bin", executable(benchName))
	cmd := exec.Command("go", "build", "-tags", "mattn", "-o", program, "./bench/cmd/"+benchName) //nolint:gosec // the path is ours
	cmd.Dir, cmd.Stderr = tree, stderr
	if os.Getenv("GOTOOLCHAIN") == "" {
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+runtime.Version()+"+auto")
	}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build %s in %s: %w", benchName, tree, err)
	}
	return program, nil
}

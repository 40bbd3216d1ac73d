package integration

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// process is a started command with its output.
type process struct {
	*conntest.Process
	out *conntest.Log
}

// start starts a command. It is killed at the end of the test if it still runs.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	out := &conntest.Log{}
	cmd.Stdout, cmd.Stderr = out, out
	return &process{conntest.Start(t, cmd), out}
}

// awaitEnd waits for the end of the process and returns its exit code, -1 for a signal.
func (p *process) awaitEnd(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.Done:
		return p.Cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("%s has not ended after %s; its output:\n%s", p.Cmd.Path, limit, p.out)
		return -1
	}
}

// run runs a command and returns its combined output and exit code.
func run(t testing.TB, limit time.Duration, name string, args ...string) (string, int) {
	t.Helper()
	p := start(t, exec.Command(name, args...))
	code := p.awaitEnd(t, limit)
	return p.out.String(), code
}

// shell runs a command line.
func shell(t testing.TB, line string) (string, int) {
	t.Helper()
	return run(t, conntest.Patience, "sh", "-c", line)
}

// containsAll reports whether s contains all words, ignoring case.
func containsAll(s string, words []string) bool {
	s = strings.ToLower(s)
	for _, w := range words {
		if !strings.Contains(s, strings.ToLower(w)) {
			return false
		}
	}
	return true
}

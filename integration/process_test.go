package integration

import (
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// starts are commands to start on one thread that lives as long as the test binary: the
// kernel ends a command with the thread that started it (see procattr_linux_test.go).
var starts = sync.OnceValue(func() chan<- func() {
	ch := make(chan func())
	go startLoop(ch)
	return ch
})

func startLoop(ch <-chan func()) {
	runtime.LockOSThread()
	for f := range ch {
		f()
	}
}

// process is a started command whose output is kept.
type process struct {
	cmd  *exec.Cmd
	out  *conntest.Log
	done chan struct{} // closed when it has ended and err is set
	err  error
}

// start starts a command; it is killed when the test ends, if it has not ended by then.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, out: &conntest.Log{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	endWithParent(cmd)
	started := make(chan error)
	starts() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	go p.wait()
	t.Cleanup(func() {
		if !p.ended() {
			_ = cmd.Process.Kill() // it may end meanwhile
		}
		<-p.done
	})
	return p
}

func (p *process) wait() {
	p.err = p.cmd.Wait()
	close(p.done)
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// awaitEnd waits until the process has ended and returns its exit code, -1 for a signal.
func (p *process) awaitEnd(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("%s has not ended after %s; its output:\n%s", p.cmd.Path, limit, p.out)
		return -1
	}
}

// run runs a command to its end and returns its combined output and exit code.
func run(t testing.TB, limit time.Duration, name string, args ...string) (string, int) {
	t.Helper()
	p := start(t, exec.Command(name, args...))
	code := p.awaitEnd(t, limit)
	return p.out.String(), code
}

// shell runs a line as a user types it.
func shell(t testing.TB, line string) (string, int) {
	t.Helper()
	return run(t, time.Minute, "sh", "-c", line)
}

// containsAll ignores case.
func containsAll(s string, words []string) bool {
	s = strings.ToLower(s)
	for _, w := range words {
		if !strings.Contains(s, strings.ToLower(w)) {
			return false
		}
	}
	return true
}

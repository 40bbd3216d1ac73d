package conntest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// Process is a program started by a test.
type Process struct {
	Cmd  *exec.Cmd
	Done chan struct{} // closed when it has ended
	Err  error         // the result of Cmd.Wait, once Done is closed
}

// Start starts a program. It is killed at the end of the test if it still runs, and on Linux when the test's process
// dies.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	endWithParent(cmd)
	p, err := StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // unless it has ended
		<-p.Done
	})
	return p
}

// StartProcess starts a program, which the caller ends.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, Done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// run keeps the thread that started the program: the kernel takes the end of the thread for the end
// of the parent.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.Cmd.Start()
	started <- err
	if err == nil {
		p.Err = p.Cmd.Wait()
		close(p.Done)
	}
}

// Wait waits for the end and returns Err.
func (p *Process) Wait() error {
	<-p.Done
	return p.Err
}

// Signal sends sig. It returns no error if the process has already ended.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.Cmd.Process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Ended reports whether Done is closed.
func (p *Process) Ended() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

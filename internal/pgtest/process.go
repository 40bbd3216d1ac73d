package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// process is one run of the server. done is closed when it has ended; err is then set.
type process struct {
	pid  int
	done chan struct{}
	err  error
}

// startProcess starts cmd and waits for it in a goroutine that ends with it.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// run owns the thread that started the server: the kernel sends the parent-death signal
// when that thread ends, so it must live as long as the server.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err == nil {
		p.pid = cmd.Process.Pid
	}
	started <- err
	if err != nil {
		return
	}
	p.err = cmd.Wait()
	close(p.done)
}

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends sig. It returns no error if the process has already ended.
func (p *process) signal(sig os.Signal) error {
	if p.ended() {
		return nil
	}
	proc, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	if err := proc.Signal(sig); err != nil && !p.ended() {
		return err
	}
	return nil
}

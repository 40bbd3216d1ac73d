//go:build unix

package top

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// canDraw says that the system's terminals understand control sequences.
const canDraw = true

// Signals of the terminal.
const suspendSignal = syscall.SIGTSTP

var terminalSignals = []os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}

// terminal is the terminal of the process. A goroutine may read while another one uses the other methods.
type terminal struct {
	in, out *os.File
	before  *term.State
	entered bool
	wake    [2]*os.File // a pipe whose writing end is closed to end read
}

func newTerminal(in, out *os.File) (*terminal, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &terminal{in: in, out: out, wake: [2]*os.File{r, w}}, nil
}

// stop ends read.
func (t *terminal) stop() { _ = t.wake[1].Close() }

// read reads what the terminal has sent, at least a byte. It returns os.ErrDeadlineExceeded if there is none within
// patience, which is not limited if it is negative, and io.EOF after stop or when the terminal is gone.
func (t *terminal) read(b []byte, patience time.Duration) (int, error) {
	wait := -1
	if patience >= 0 {
		wait = int(patience.Milliseconds())
	}
	fds := []unix.PollFd{{Fd: int32(t.in.Fd()), Events: unix.POLLIN}, {Fd: int32(t.wake[0].Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
	for {
		n, err := unix.Poll(fds, wait)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, os.ErrDeadlineExceeded
		case fds[1].Revents != 0:
			_ = t.wake[0].Close()
			return 0, io.EOF
		}
		return t.in.Read(b)
	}
}

// suspend stops the process group, as the terminal does at ^Z for other programs, with the terminal as it was. It returns
// when the process goes on; signals gets its signals. In the group of the session's leader it does nothing: no shell
// would continue it.
func (t *terminal) suspend(signals chan os.Signal) {
	if leader, err := unix.Getsid(0); err != nil || leader == unix.Getpgrp() {
		return
	}
	t.leave()
	_ = syscall.Kill(0, syscall.SIGSTOP) // not SIGTSTP: the runtime does not restore its default effect
	awaitContinue(signals)
	_ = t.enter() // without a terminal the next frame fails
}

// stopDelay is how long the process may run on after SIGSTOP has been sent.
const stopDelay = 200 * time.Millisecond

// awaitContinue returns when the process has been stopped and continues, or has to end.
func awaitContinue(signals chan os.Signal) {
	late := time.After(stopDelay)
	for {
		select {
		case sig := <-signals:
			switch sig {
			case syscall.SIGCONT:
				return
			case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP:
				select {
				case signals <- sig: // for run
				default:
				}
				return
			}
		case <-late:
			return
		}
	}
}

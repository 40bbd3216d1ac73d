//go:build !unix

package top

import (
	"errors"
	"os"
	"time"

	"golang.org/x/term"
)

// canDraw says that there is no screen on this system: frames are written as text.
const canDraw = false

// Signals of the terminal: there are none.
var (
	suspendSignal   os.Signal
	terminalSignals []os.Signal
)

// terminal has no instance on this system.
type terminal struct {
	in, out *os.File
	before  *term.State
	entered bool
}

func newTerminal(_, _ *os.File) (*terminal, error) {
	return nil, errors.New("there is no screen on this system")
}

func (t *terminal) stop() {}

func (t *terminal) read([]byte, time.Duration) (int, error) { return 0, os.ErrInvalid }

func (t *terminal) suspend(chan os.Signal) {}

package top

import (
	"os"

	"golang.org/x/term"
)

// Control sequences of the screen: another buffer, so that what the terminal showed before comes back; no cursor; no
// continuation of long lines, whose width a terminal may judge differently.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	leaveScreen = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
	clearScreen = "\x1b[2J"
)

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// enter prepares the terminal for the screen.
func (t *terminal) enter() (err error) {
	if t.before, err = term.MakeRaw(int(t.in.Fd())); err != nil {
		return err
	}
	t.entered = true
	return t.write([]byte(enterScreen))
}

// leave makes the terminal as it was before enter.
func (t *terminal) leave() {
	if !t.entered {
		return
	}
	t.entered = false
	_ = t.write([]byte(leaveScreen)) // an error means that the terminal is gone
	_ = term.Restore(int(t.in.Fd()), t.before)
}

func (t *terminal) clear() { _ = t.write([]byte(clearScreen)) }

// size returns the width and height. Without an answer they are those of old terminals.
func (t *terminal) size() (width, height int) {
	width, height, err := term.GetSize(int(t.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// write writes all of b.
func (t *terminal) write(b []byte) error {
	_, err := t.out.Write(b)
	return err
}

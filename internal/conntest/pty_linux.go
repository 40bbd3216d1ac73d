package conntest

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo-terminal and who sits at it.
type Terminal struct {
	// File is the side of the program.
	File *os.File

	t      testing.TB
	master *os.File
	mu     sync.Mutex
	output []byte
}

// NewTerminal opens a terminal of a size, which is closed at the end of the test.
func NewTerminal(t testing.TB, width, height int) *Terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &Terminal{t: t, master: master}
	term.Resize(width, height)
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		term.File, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		term.collect()
	}()
	t.Cleanup(func() {
		_ = term.File.Close() // the last one of this side: collect reads EIO
		<-done
		_ = master.Close()
	})
	return term
}

// collect is a goroutine that reads what the program writes, until nobody has its side open.
func (term *Terminal) collect() {
	b := make([]byte, 4096)
	for {
		n, err := term.master.Read(b)
		term.mu.Lock()
		term.output = append(term.output, b[:n]...)
		term.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Resize changes the size, of which the system informs the program.
func (term *Terminal) Resize(width, height int) {
	term.t.Helper()
	size := &unix.Winsize{Col: uint16(width), Row: uint16(height)} //nolint:gosec // sizes of tests
	if err := unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, size); err != nil {
		term.t.Fatal(err)
	}
}

// Type sends what keys send.
func (term *Terminal) Type(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// Output is all that was written so far.
func (term *Terminal) Output() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return string(term.output)
}

var sequence = regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]|\r")

// Screen is the text of the last frame that was written whole by a program that begins each at the upper left corner, and
// ends it by clearing what is below.
func (term *Terminal) Screen() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	all := term.output[:bytes.LastIndex(term.output, []byte("\x1b[J"))+1]
	return string(sequence.ReplaceAll(all[bytes.LastIndex(all, []byte("\x1b[H"))+1:], nil))
}

// Settings are the modes of the terminal, such as whether it echoes.
func (term *Terminal) Settings() unix.Termios {
	term.t.Helper()
	settings, err := unix.IoctlGetTermios(int(term.File.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return *settings
}

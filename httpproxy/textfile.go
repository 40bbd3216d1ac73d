package httpproxy

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a textFile.
const (
	maxTextBytes   = 1 << 20
	readAgainAfter = time.Second
	textWriteTime  = 20 * time.Millisecond // after this time a file being written is complete
)

// content is what a textFile says. It is immutable.
type content interface{ size() int }

// textFile is a file of lines about those who may use routes. While requests come, it is read again each second, and its
// new content takes effect. A line with a mistake is ignored and the others take effect, so that who is removed has no
// access. If the file cannot be read, the last content remains. Both are logged. Methods are safe for concurrent use.
type textFile[T content] struct {
	what   string // in errors and logs: users
	name   string
	read   func() ([]byte, error)
	parse  func(name string, text []byte) (T, []error)
	logger *slog.Logger

	current  atomic.Pointer[T]
	readAt   atomic.Int64 // when the file was last read, in nanoseconds since the program began
	reading  sync.Mutex   // held while the file is read; only taken without waiting
	text     []byte       // guarded by reading
	failures int          // failed readings since the last success; guarded by reading
}

// open reads the file for the first time, when mistakes are errors.
func (f *textFile[T]) open() error {
	text, err := f.read()
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	now, err := firstMistake(f.what, f.name, text, f.parse)
	if err != nil {
		return err
	}
	f.text = text
	f.current.Store(&now)
	f.readAt.Store(int64(sinceStart()))
	return nil
}

// firstMistake parses a file, and returns its first mistake.
func firstMistake[T content](what, name string, text []byte, parse func(string, []byte) (T, []error)) (T, error) {
	now, mistakes := parse(name, text)
	switch {
	case len(mistakes) > 0:
		return now, mistakes[0]
	case now.size() == 0:
		return now, fmt.Errorf("%s has no %s", name, what)
	}
	return now, nil
}

// load returns the current content.
func (f *textFile[T]) load() T { return *f.current.Load() }

// stale reports whether it is time to read the file again.
func (f *textFile[T]) stale() bool {
	return sinceStart()-time.Duration(f.readAt.Load()) > readAgainAfter
}

// readAgain replaces the content if the file has changed. A file with mistakes is read a second time, because it may be
// half-written.
func (f *textFile[T]) readAgain() {
	if !f.reading.TryLock() {
		return
	}
	defer f.reading.Unlock()
	defer f.readAt.Store(int64(sinceStart()))
	text, err := f.readBounded()
	if err == nil && bytes.Equal(text, f.text) {
		f.failures = 0
		return
	}
	now, mistakes := f.parse(f.name, text)
	if err != nil || len(mistakes) > 0 || now.size() == 0 {
		time.Sleep(textWriteTime)
		if text, err = f.readBounded(); err == nil {
			now, mistakes = f.parse(f.name, text)
		}
	}
	if err != nil {
		if f.failures++; f.failures == 1 {
			f.logger.Warn(f.what+" file could not be reloaded; the old "+f.what+" stay in force", "file", f.name, "error", err)
		}
		return
	}
	f.failures, f.text = 0, text
	f.current.Store(&now)
	if len(mistakes) > 0 {
		f.logger.Warn(f.what+" file reloaded with mistakes; lines with mistakes are ignored", "file", f.name, f.what, now.size(),
			"mistakes", len(mistakes), "error", mistakes[0])
		return
	}
	f.logger.Info(f.what+" file reloaded", "file", f.name, f.what, now.size())
}

// readBounded reads the file. One that has grown too large is like one that cannot be read: nobody loses access by it.
func (f *textFile[T]) readBounded() ([]byte, error) {
	text, err := f.read()
	if err == nil && len(text) > maxTextBytes {
		err = tooLarge(f.what, f.name)
	}
	return text, err
}

func tooLarge(what, name string) error {
	return fmt.Errorf("%s has more than %d bytes; it is not a file of %s", name, maxTextBytes, what)
}

// parseLines calls parse with each line that is neither empty nor a comment. A mistake has the number of the line, and
// nothing of its content.
func parseLines(what, name string, text []byte, parse func(line string) (mistake string)) (mistakes []error) {
	if len(text) > maxTextBytes {
		return []error{tooLarge(what, name)}
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxTextBytes+1)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if mistake := parse(string(line)); mistake != "" {
			mistakes = append(mistakes, fmt.Errorf("%s:%d: %s", name, n, mistake))
		}
	}
	return mistakes
}

package gateway

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// maxUnwritten bounds the log lines that wait for whoever reads the log: minutes of an access log, or a pause of the reader.
const maxUnwritten = 4 << 20

// keepLines is how large a buffer may be to be used again.
const keepLines = 64 << 10

// flushGrace is how long the reader may take to read what is left at the end.
const flushGrace = time.Second

// lineWriter writes the log from a goroutine of its own: sessions share threads, and a reader that pauses must not hold them all. Lines
// for which there is no room are counted instead.
type lineWriter struct {
	w       io.Writer
	wake    chan struct{} // has a token when there is something to write, closed at the end
	stopped chan struct{}

	mu      sync.Mutex // held for a few instructions
	lines   []byte
	dropped int
	closed  bool
}

func newLineWriter(w io.Writer) *lineWriter {
	l := &lineWriter{w: w, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	go l.run()
	return l
}

// Write takes a line. It keeps no reference to it and never fails.
func (l *lineWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return len(line), nil
	}
	if len(l.lines)+len(line) > maxUnwritten {
		l.dropped++
	} else {
		l.lines = append(l.lines, line...)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

// run writes until the end.
func (l *lineWriter) run() {
	defer close(l.stopped)
	for range l.wake {
		l.writeAll()
	}
	l.writeAll() // a token that was taken may have been the last
}

// writeAll writes what is there.
func (l *lineWriter) writeAll() {
	l.mu.Lock()
	lines, dropped := l.lines, l.dropped
	l.lines, l.dropped = nil, 0
	json := bytes.HasPrefix(lines, []byte("{"))
	l.mu.Unlock()
	if dropped > 0 {
		now := time.Now().Format(time.RFC3339Nano)
		format := "time=%s level=WARN msg=\"log lines were dropped, their reader is too slow\" lines=%d\n"
		if json {
			format = `{"time":%q,"level":"WARN","msg":"log lines were dropped, their reader is too slow","lines":%d}` + "\n"
		}
		lines = fmt.Appendf(lines, format, now, dropped)
	}
	if len(lines) == 0 {
		return
	}
	_, _ = l.w.Write(lines) // a full disk, or a reader that has gone: there is nobody to tell
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == nil && cap(lines) <= keepLines {
		l.lines = lines[:0]
	}
}

// close writes what was taken so far, and reports whether the reader has read it in time.
func (l *lineWriter) close() bool {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.wake)
	}
	l.mu.Unlock()
	timer := time.NewTimer(flushGrace)
	defer timer.Stop()
	select {
	case <-l.stopped:
		return true
	case <-timer.C:
		return false
	}
}

package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// maxUnwritten bounds the log lines that wait for the reader of the log: minutes of an access log, or a pause of the
// reader.
const maxUnwritten = 4 << 20

// keepLines is the largest size of a buffer that is used again.
const keepLines = 64 << 10

// flushGrace is how long the reader may take to read the remaining lines at the end.
const flushGrace = time.Second

// lineWriter writes the log from a separate goroutine: sessions share threads, and a reader that pauses must not block
// them all. Lines that find no room here or at the reader are counted instead; the log gets the count once it can be
// written again.
type lineWriter struct {
	w       io.Writer
	wake    chan struct{} // has a token when there is something to write, closed at the end
	stopped chan struct{}

	mu      sync.Mutex // held for a few instructions
	lines   []byte
	missing gap
	state   admin.LogState
	closed  bool

	torn bool // the last line was written in part; run's
}

// gap counts missing lines that the log does not report yet.
type gap struct {
	dropped int // lines for which there was no room here
	failed  int // lines that could not be written
	err     error
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
		l.missing.dropped++
		l.state.TooSlow++
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
	l.writeAll() // the token was perhaps the last
}

// writeAll writes all queued lines.
func (l *lineWriter) writeAll() {
	l.mu.Lock()
	lines, missing := l.lines, l.missing
	l.lines, l.missing = nil, gap{}
	l.mu.Unlock()
	own := len(lines)
	if lines = missing.say(lines); len(lines) == 0 {
		return
	}
	if l.torn {
		_, err := io.WriteString(l.w, "\n")
		l.torn = err != nil
	}
	n, err := l.w.Write(lines)
	if n > 0 && n <= len(lines) {
		l.torn = lines[n-1] != '\n'
	}
	if err == nil {
		l.written(lines)
		return
	}
	l.notWritten(bytes.Count(lines[min(n, own):own], []byte("\n")), missing, err)
}

// written records that the log can be written.
func (l *lineWriter) written(lines []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Error = ""
	if l.lines == nil && cap(lines) <= keepLines {
		l.lines = lines[:0]
	}
}

// notWritten records that some lines, and the report of earlier missing ones, were not written.
func (l *lineWriter) notWritten(lines int, missing gap, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missing.dropped += missing.dropped
	l.missing.failed += missing.failed + lines
	l.missing.err = err
	l.state.Error = err.Error()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		l.state.DiskFull += uint64(lines) //nolint:gosec // counted
	} else {
		l.state.Failed += uint64(lines) //nolint:gosec // counted
	}
}

// say appends a report of missing lines, in the log's format.
func (g *gap) say(lines []byte) []byte {
	asJSON := bytes.HasPrefix(lines, []byte("{"))
	if g.dropped > 0 {
		lines = appendMissing(lines, asJSON, "log lines were dropped, their reader is too slow", g.dropped, "")
	}
	if g.failed > 0 {
		lines = appendMissing(lines, asJSON, "log lines could not be written", g.failed, g.err.Error())
	}
	return lines
}

func appendMissing(to []byte, asJSON bool, msg string, lines int, why string) []byte {
	now := time.Now().Format(time.RFC3339Nano)
	if asJSON {
		to = fmt.Appendf(to, `{"time":%q,"level":"WARN","msg":%q,"lines":%d`, now, msg, lines)
		if why != "" {
			quoted, _ := json.Marshal(why) // a string can always be encoded
			to = append(append(to, `,"error":`...), quoted...)
		}
		return append(to, "}\n"...)
	}
	to = fmt.Appendf(to, "time=%s level=WARN msg=%q lines=%d", now, msg, lines)
	if why != "" {
		to = fmt.Appendf(to, " error=%q", why)
	}
	return append(to, '\n')
}

// missed returns how many lines were lost, and why.
func (l *lineWriter) missed() admin.LogState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// close writes the queued lines, and reports whether the reader has read them in time.
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

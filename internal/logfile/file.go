package logfile

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// chunkSize is the size of most writes, in bytes. A line of MaxLine must fit.
	chunkSize = 64 << 10
	// maxChunks bounds the memory of a File: 4 MiB are a tenth of a second of lines at rates that only
	// benchmarks reach.
	maxChunks = 64
	// keptChunks is how many chunks a File keeps that was unused for keepTime.
	keptChunks = 1
	keepTime   = time.Second
	// numShards is how many chunks are filled concurrently. More threads share some of them.
	numShards = 16
	// collect is how long lines wait for further ones, so that writes are few.
	collect = 100 * time.Millisecond
	// writeTime is how long a pipe may take no byte before its lines are lost.
	writeTime = time.Second
	// reportPause is the least time between two reports of lost lines.
	reportPause = time.Minute
)

// MaxLine bounds a line, in bytes with its line break.
const MaxLine = chunkSize

// File is a file that lines are appended to. Its methods are safe for concurrent use and never wait for the file.
type File struct {
	path   string
	set    *Set
	counts *counts
	shards [numShards]shard
	asleep atomic.Bool   // run waits for wake
	wake   chan struct{} // has a token when a sleeping run has something to do
	urgent chan struct{} // likewise while run collects lines

	// mu is held for a few instructions. It may be taken with a shard's.
	mu       sync.Mutex
	full     []*chunk // to be written, in order
	free     []*chunk
	made     int      // chunks that exist
	next     *os.File // the file to write to from now on; nil = no change
	out      *os.File // the file that run writes to
	users    int      // guarded by set.mu
	runs     bool     // guarded by set.mu
	quitting bool     // the first write that fails is the last one
	timer    *time.Timer
	reported time.Time   // when lost lines were reported last
	armed    atomic.Bool // timer will call report

	rest []byte // the end of a line that was written in part; run's
}

// shard has the chunk for the lines of some threads. No two shards share a cache line.
type shard struct {
	mu  sync.Mutex
	now *chunk // nil = none
	_   [48]byte
}

// chunk has some whole lines.
type chunk struct {
	b     []byte
	lines int
}

// counts are the totals of a path. They continue when the path is used again after some time without a
// user.
type counts struct {
	written, noRoom, failed atomic.Uint64 // lines
	unreported              atomic.Uint64 // lost ones
	err                     atomic.Pointer[string]
}

func newFile(s *Set, path string, c *counts) *File {
	f := &File{path: path, set: s, counts: c, wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
	f.timer = time.AfterFunc(time.Hour, f.report)
	f.timer.Stop()
	return f
}

// WriteLine takes a line, which ends with a line break and has up to MaxLine bytes. It keeps no
// reference to it. shard is a number from 0; the lines of one shard stay in order. A line that finds
// no room is lost and counted.
func (f *File) WriteLine(shard int, line []byte) {
	sh := &f.shards[shard%numShards]
	sh.mu.Lock()
	c := sh.now
	if c == nil || len(c.b)+len(line) > cap(c.b) {
		if c != nil {
			f.push(c)
		}
		c = f.take()
		sh.now = c
	}
	if c == nil || len(line) > cap(c.b) {
		sh.mu.Unlock()
		f.lose(1, &f.counts.noRoom)
		f.signal()
		return
	}
	c.b = append(c.b, line...)
	c.lines++
	sh.mu.Unlock()
	f.signal()
}

// signal wakes run.
func (f *File) signal() {
	if f.asleep.Load() && f.asleep.CompareAndSwap(true, false) {
		put(f.wake)
	}
}

func put(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// push queues a chunk, and has it written soon if chunks fill quickly.
func (f *File) push(c *chunk) {
	f.mu.Lock()
	f.full = append(f.full, c)
	f.mu.Unlock()
	put(f.urgent)
}

// take returns an empty chunk, nil if there is no room for one.
func (f *File) take() *chunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.free); n > 0 {
		c := f.free[n-1]
		f.free = f.free[:n-1]
		return c
	}
	if f.made >= maxChunks {
		return nil
	}
	f.made++
	return &chunk{b: make([]byte, 0, chunkSize)}
}

// lose counts lost lines, and has them reported.
func (f *File) lose(lines int, by *atomic.Uint64) {
	if lines == 0 {
		return
	}
	by.Add(uint64(lines))                  //nolint:gosec // counted
	f.counts.unreported.Add(uint64(lines)) //nolint:gosec // counted
	if f.armed.CompareAndSwap(false, true) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.timer.Reset(max(time.Until(f.reported.Add(reportPause)), 0))
	}
}

// report logs the number of lost lines. The timer calls it, since run may be in a write that does not
// end.
func (f *File) report() {
	f.mu.Lock()
	f.reported = time.Now()
	f.mu.Unlock()
	f.armed.Store(false) // before reading the count: a line that is counted later arms the timer again
	lost := f.counts.unreported.Swap(0)
	if lost == 0 {
		return
	}
	attrs := []slog.Attr{slog.String("path", f.path), slog.Uint64("lines", lost)}
	if err := f.counts.err.Load(); err != nil {
		attrs = append(attrs, slog.String("error", *err))
	} else {
		attrs = append(attrs, slog.String("error", "it takes lines more slowly than they come"))
	}
	f.set.logger.LogAttrs(f.set.ctx, slog.LevelWarn, "lines of an access log were lost", attrs...)
}

// run writes until the file has no users.
func (f *File) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		f.writeAll()
		if f.set.ended(f) {
			break
		}
		f.wait(timer)
	}
	if len(f.rest) > 0 {
		f.lose(1, &f.counts.failed)
	}
	f.timer.Stop()
	f.report()
	f.set.left()
}

// wait returns some time after there is something to write, so that lines collect.
func (f *File) wait(timer *time.Timer) {
	f.asleep.Store(true)
	if !f.pending() || !f.asleep.CompareAndSwap(true, false) {
		timer.Reset(keepTime)
		select {
		case <-f.wake:
		case <-timer.C:
			f.trim(0)
			<-f.wake
		}
	}
	timer.Reset(collect)
	select {
	case <-f.urgent:
	case <-timer.C:
	}
}

// pending reports whether run has something to do at once.
func (f *File) pending() bool {
	if f.waiting() {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next != nil || f.quitting
}

// waiting reports whether there are lines to be written.
func (f *File) waiting() bool {
	for i := range f.shards {
		sh := &f.shards[i]
		sh.mu.Lock()
		some := sh.now != nil && len(sh.now.b) > 0
		sh.mu.Unlock()
		if some {
			return true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.full) > 0
}

// writeAll writes all lines that have been taken.
func (f *File) writeAll() {
	f.current() // also if there is nothing to write: the old file may have been deleted
	for i := range f.shards {
		sh := &f.shards[i]
		sh.mu.Lock()
		if sh.now != nil && len(sh.now.b) > 0 {
			f.mu.Lock()
			f.full = append(f.full, sh.now)
			f.mu.Unlock()
			sh.now = nil
		}
		sh.mu.Unlock()
	}
	f.mu.Lock()
	all := f.full
	f.full = nil
	f.mu.Unlock()
	for _, c := range all {
		f.write(c)
		c.b, c.lines = c.b[:0], 0
		f.mu.Lock()
		f.free = append(f.free, c)
		f.mu.Unlock()
	}
	if len(all) > 0 {
		f.trim(len(all))
	}
}

// trim frees one of the unused chunks if there are more than were needed. If none were needed, it
// frees all but keptChunks.
func (f *File) trim(needed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := max(needed, len(f.free)-1)
	if needed == 0 {
		keep = keptChunks
	}
	if n := len(f.free); n > keep {
		f.made -= n - keep
		clear(f.free[keep:])
		f.free = f.free[:keep]
	}
}

// current returns the file to write to: the one that was opened last.
func (f *File) current() (out *os.File, quitting bool) {
	f.mu.Lock()
	next, old := f.next, f.out
	if next != nil {
		f.next, f.out = nil, next
	}
	out, quitting = f.out, f.quitting
	f.mu.Unlock()
	if next != nil {
		closeFile(old)
		if len(f.rest) > 0 { // the beginning of the line is in the old file
			f.rest = nil
			f.lose(1, &f.counts.failed)
		}
	}
	return out, quitting
}

// write writes a chunk. Lines after one that cannot be written whole are lost; the next write
// completes that one.
func (f *File) write(c *chunk) {
	out, quitting := f.current()
	if out == nil {
		f.lose(c.lines, &f.counts.failed)
		return
	}
	if !quitting { // otherwise the deadline is that of quitting
		_ = out.SetWriteDeadline(time.Now().Add(writeTime)) // works for pipes only
	}
	err := f.complete(out)
	n := 0
	if err == nil {
		n, err = out.Write(c.b)
	}
	if err == nil {
		f.counts.written.Add(uint64(c.lines)) //nolint:gosec // counted
		f.counts.err.Store(nil)
		return
	}
	lost, torn := bytes.Count(c.b[n:], []byte{'\n'}), 0
	if n > 0 && c.b[n-1] != '\n' { // a line was written in part: complete counts it
		end := n + bytes.IndexByte(c.b[n:], '\n') + 1
		f.rest = append(f.rest[:0], c.b[n:end]...)
		lost, torn = lost-1, 1
	}
	f.counts.written.Add(uint64(c.lines - lost - torn)) //nolint:gosec // counted
	text := reasonOf(err)
	f.counts.err.Store(&text)
	f.lose(lost, &f.counts.failed)
}

// complete writes the end of a line that was written in part.
func (f *File) complete(out *os.File) error {
	if len(f.rest) > 0 {
		n, err := out.Write(f.rest)
		if f.rest = f.rest[n:]; err != nil {
			return err
		}
		f.counts.written.Add(1)
	}
	return nil
}

// reasonOf returns the text of an error without its operation and path.
func reasonOf(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "its reader is too slow, or has stopped"
	}
	var of *os.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	if errors.Is(err, io.ErrShortWrite) {
		return "written in part"
	}
	return err.Error()
}

// closeFile closes a file that is not the program's own.
func closeFile(f *os.File) {
	if f != nil && f != os.Stdout {
		_ = f.Close()
	}
}

package logfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Stdout is the path that stands for standard output.
const Stdout = "-"

// mode is the mode of new files: logs have the addresses of clients.
const mode = 0o640

// Set has the files of a program, one for each path. Make one with NewSet. Its methods are safe for
// concurrent use.
type Set struct {
	logger *slog.Logger
	ctx    context.Context //nolint:containedctx // of log lines

	// mu is held for a few instructions; a File's may be taken with it.
	mu      sync.Mutex
	files   map[string]*File
	totals  map[string]*counts // of all paths ever used
	running int                // number of Files whose run has not ended
	idle    chan struct{}      // closed when the last of them has ended; nil = nobody waits
}

// NewSet returns a Set without files. Lost lines are reported to logger.
func NewSet(logger *slog.Logger) *Set {
	return &Set{logger: logger, ctx: context.Background(), files: map[string]*File{}, totals: map[string]*counts{}}
}

// Opening has files that were opened and are not written to yet. Commit or Abort ends it.
type Opening struct {
	set   *Set
	files []*File
	outs  []*os.File // of each
}

// Open opens the files of the paths, including files in use, and makes files that do not exist.
// Neither opening nor writing to a pipe waits for its reader. Each path has one more user until
// Release or Abort.
func (s *Set) Open(paths []string) (*Opening, error) {
	o := &Opening{set: s}
	for _, path := range distinct(paths) {
		out, err := open(path)
		if err != nil {
			o.Abort()
			return nil, err
		}
		o.files, o.outs = append(o.files, s.use(path)), append(o.outs, out)
	}
	return o, nil
}

// distinct returns the paths without repetitions.
func distinct(paths []string) []string {
	all := slices.Clone(paths)
	slices.Sort(all)
	return slices.Compact(all)
}

// use counts one more user of a path.
func (s *Set) use(path string) *File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[path]
	if f == nil {
		if s.totals[path] == nil {
			s.totals[path] = &counts{}
		}
		f = newFile(s, path, s.totals[path])
		s.files[path] = f
	}
	f.users++
	return f
}

// Commit puts the files into use.
func (o *Opening) Commit() {
	for i, f := range o.files {
		f.mu.Lock()
		unused := f.next
		f.next, f.quitting = o.outs[i], false
		f.mu.Unlock()
		closeFile(unused)
		o.set.mu.Lock()
		if !f.runs {
			f.runs = true
			o.set.running++
			go f.run()
		}
		o.set.mu.Unlock()
		f.signal()
	}
	o.outs = nil
}

// Abort closes the files again. After Commit it does nothing.
func (o *Opening) Abort() {
	if o.outs == nil {
		return
	}
	var paths []string
	for i, f := range o.files {
		closeFile(o.outs[i])
		paths = append(paths, f.path)
	}
	o.outs = nil
	o.set.Release(paths)
}

// File returns the file of a path that has a user, nil if there is none.
func (s *Set) File(path string) *File {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[path]
}

// Release removes a user from each path. A file without users writes its lines, within writeTime if
// possible, and is closed. Later lines are lost.
func (s *Set) Release(paths []string) {
	for _, path := range distinct(paths) {
		s.mu.Lock()
		f := s.files[path]
		if f == nil {
			s.mu.Unlock()
			continue
		}
		f.users--
		over := f.users == 0
		if over && !f.runs {
			delete(s.files, path)
			over = false
		}
		if over {
			f.quit()
		}
		s.mu.Unlock()
	}
}

// quit makes run write the remaining lines and end.
func (f *File) quit() {
	f.mu.Lock()
	f.quitting = true
	for _, out := range []*os.File{f.out, f.next} {
		if out != nil && out != os.Stdout {
			_ = out.SetWriteDeadline(time.Now().Add(writeTime))
		}
	}
	f.mu.Unlock()
	put(f.urgent)
	f.signal()
}

// ended reports whether run must end because f has no user and all lines are written; it then closes
// f. A path that got users meanwhile keeps its File, so that there is never more than one File for a
// path.
func (s *Set) ended(f *File) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.users > 0 || f.waiting() { // lines may have been taken since run looked, even from a user that is gone again
		return false
	}
	f.runs = false
	delete(s.files, f.path)
	f.mu.Lock()
	outs := []*os.File{f.out, f.next}
	f.out, f.next = nil, nil
	f.mu.Unlock()
	for _, out := range outs {
		closeFile(out)
	}
	return true
}

// left records that a run has ended.
func (s *Set) left() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.idle != nil && s.running == 0 {
		close(s.idle)
		s.idle = nil
	}
}

// Close releases all paths, and waits until the files are closed or grace is over: a disk that does
// not answer blocks its goroutine. It reports whether all files are closed. The Set must not be used
// afterwards.
func (s *Set) Close(grace time.Duration) bool {
	s.mu.Lock()
	var running []string
	for path, f := range s.files {
		f.users = min(f.users, 1)
		running = append(running, path)
	}
	s.mu.Unlock()
	s.Release(running)
	s.mu.Lock()
	if s.running == 0 {
		s.mu.Unlock()
		return true
	}
	idle := make(chan struct{})
	s.idle = idle
	s.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}

// State has the counters of a path's lines since the Set was made.
type State struct {
	Path                    string
	Written, NoRoom, Failed uint64 // lines; the last two are lost
	Error                   string // of the last write; "" = it succeeded
}

// States returns the files with users by their paths, in order.
func (s *Set) States() (all []State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, f := range s.files {
		c := f.counts
		st := State{Path: path, Written: c.written.Load(), NoRoom: c.noRoom.Load(), Failed: c.failed.Load()}
		if err := c.err.Load(); err != nil {
			st.Error = *err
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// open opens a file to append to.
func open(path string) (*os.File, error) {
	if path == Stdout {
		return os.Stdout, nil
	}
	flags := os.O_WRONLY | os.O_APPEND | os.O_CREATE
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		flags = os.O_RDWR // opening does not wait for a reader, and a reader that disappears causes no error
	}
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, mode)
	if err != nil {
		return nil, explain(path, err)
	}
	return f, nil
}

// Check returns why Open would refuse a path, as far as possible without making the file.
func Check(path string) error {
	if path == Stdout {
		return nil
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		dir := filepath.Dir(path)
		if info, err = os.Stat(dir); err == nil && !info.IsDir() {
			err = syscall.ENOTDIR
		}
		if err == nil {
			err = mayCreateIn(dir)
		}
		return explain(dir, err)
	}
	if err != nil {
		return explain(path, err)
	}
	if info.Mode()&os.ModeNamedPipe != 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err != nil {
		return explain(path, err)
	}
	return f.Close()
}

// explain names the path in an error; nil stays nil.
func explain(path string, err error) error {
	if err == nil {
		return nil
	}
	var of *os.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	return fmt.Errorf("%s cannot be opened to write a log: %w", path, err)
}

package logfile_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/logfile"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const grace = 5 * time.Second

// newSet returns a set that is closed in the end.
func newSet(t *testing.T) (*logfile.Set, *conntest.Log) {
	t.Helper()
	var log conntest.Log
	s := logfile.NewSet(log.Logger())
	t.Cleanup(func() {
		if !s.Close(grace) {
			t.Error("a file was not closed")
		}
	})
	return s, &log
}

func open(t *testing.T, s *logfile.Set, paths ...string) {
	t.Helper()
	o, err := s.Open(paths)
	if err != nil {
		t.Fatal(err)
	}
	o.Commit()
}

func contents(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

func eventuallyHas(t *testing.T, path, want string) {
	t.Helper()
	conntest.Eventually(t, fmt.Sprintf("%s has %q", path, want), func() bool { return contents(t, path) == want })
}

// TestLines: lines of many threads are all written, those of one shard in order, and Close writes what is left.
func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	s, _ := newSet(t)
	open(t, s, path)
	const threads, lines = 20, 5000
	var all sync.WaitGroup
	for i := range threads {
		all.Go(func() {
			f := s.File(path)
			for j := range lines {
				if f.Full() { // the disk is slower than this
					conntest.Eventually(t, "room", func() bool { return !f.Full() })
				}
				f.WriteLine(i, fmt.Appendf(nil, "%d %d\n", i, j))
			}
		})
	}
	all.Wait()
	if !s.Close(grace) {
		t.Fatal("not closed")
	}
	next := map[string]int{}
	scanner := bufio.NewScanner(strings.NewReader(contents(t, path)))
	for scanner.Scan() {
		i, j, _ := strings.Cut(scanner.Text(), " ")
		if j != fmt.Sprint(next[i]) {
			t.Fatalf("thread %s: line %s, want %d", i, j, next[i])
		}
		next[i]++
	}
	for i := range threads {
		if n := next[fmt.Sprint(i)]; n != lines {
			t.Errorf("thread %d: %d lines", i, n)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestReopen: a file that was renamed is written to until it is opened again, and nothing is lost.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "x.log"), filepath.Join(dir, "x.log.1")
	s, _ := newSet(t)
	open(t, s, path)
	f := s.File(path)
	f.WriteLine(0, []byte("1\n"))
	eventuallyHas(t, path, "1\n")
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	f.WriteLine(0, []byte("2\n"))
	eventuallyHas(t, old, "1\n2\n")
	open(t, s, path)
	f.WriteLine(0, []byte("3\n"))
	eventuallyHas(t, path, "3\n")
	s.Release([]string{path}) // that of the first Open
	f.WriteLine(0, []byte("4\n"))
	eventuallyHas(t, path, "3\n4\n")
	if got := contents(t, old); got != "1\n2\n" {
		t.Errorf("%q", got)
	}
}

// TestAbort: what was opened in vain changes nothing, and a path that cannot be opened leaves none open.
func TestAbort(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "x.log"), filepath.Join(dir, "y.log")
	s, _ := newSet(t)
	open(t, s, path, path)
	if _, err := s.Open([]string{path, other, filepath.Join(dir, "none", "z.log")}); err == nil || !strings.Contains(err.Error(), "z.log cannot be opened to write a log: no such file") {
		t.Errorf("%v", err)
	}
	if s.File(other) != nil {
		t.Error("a file without a user")
	}
	o, err := s.Open([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	o.Abort()
	o.Abort()
	s.File(path).WriteLine(0, []byte("1\n"))
	eventuallyHas(t, path, "1\n")
}

// TestRemovedAndAdded: a path keeps its counts, and there is never a second writer of it.
func TestRemovedAndAdded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	s, _ := newSet(t)
	for i := range 20 {
		open(t, s, path)
		s.File(path).WriteLine(i, []byte("x\n"))
		s.Release([]string{path})
	}
	open(t, s, path)
	conntest.Eventually(t, "all lines", func() bool { return len(contents(t, path)) == 40 })
	conntest.Eventually(t, "the counts", func() bool {
		st := s.States()
		return len(st) == 1 && st[0] == logfile.State{Path: path, Written: 20}
	})
}

// TestTooLong: a line longer than a chunk is lost, and others are not.
func TestTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	s, _ := newSet(t)
	open(t, s, path)
	f := s.File(path)
	f.WriteLine(0, append(bytes.Repeat([]byte("x"), logfile.MaxLine), '\n'))
	f.WriteLine(0, []byte("1\n"))
	eventuallyHas(t, path, "1\n")
	if st := s.States()[0]; st.NoRoom != 1 {
		t.Errorf("%+v", st)
	}
}

// TestCheck: reasons are found without making the file.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"-": "", file: "", filepath.Join(dir, "new"): "", dir: "is a directory", filepath.Join(dir, "none", "x"): "no such file or directory",
		filepath.Join(file, "x"): "not a directory",
	} {
		if err := logfile.Check(path); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a check has made a file: %v", err)
	}
}

// BenchmarkWriteLine is what a request pays for its line.
func BenchmarkWriteLine(b *testing.B) {
	s := logfile.NewSet(slog.New(slog.DiscardHandler))
	defer s.Close(grace)
	o, err := s.Open([]string{os.DevNull})
	if err != nil {
		b.Fatal(err)
	}
	o.Commit()
	f, line := s.File(os.DevNull), append(bytes.Repeat([]byte("x"), 300), '\n')
	b.ReportAllocs()
	for b.Loop() {
		f.WriteLine(0, line)
	}
}

//go:build unix

package logfile_test

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/logfile"
)

// pipe makes a pipe with a name, whose reader is there or not.
func pipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPipeWithoutReader: a pipe that nobody reads blocks neither opening, nor writing, nor the end, and what does not fit is counted.
func TestPipeWithoutReader(t *testing.T) {
	path := pipe(t)
	if err := logfile.Check(path); err != nil {
		t.Error(err)
	}
	s, _ := newSet(t)
	open(t, s, path)
	line := append(bytes.Repeat([]byte("x"), 999), '\n')
	for range 10_000 {
		s.File(path).WriteLine(0, line)
	}
	conntest.Eventually(t, "lost lines", func() bool { st := s.States()[0]; return st.NoRoom > 0 && st.Failed > 0 })
	if e := s.States()[0].Error; !strings.Contains(e, "reader is too slow") {
		t.Error(e)
	}
	begin := time.Now()
	s.Release([]string{path})
	open(t, s, path) // and now it is used again
	if !s.Close(grace) || time.Since(begin) > grace {
		t.Error("the end waited for the reader")
	}
}

// TestPipeReader: a reader that pauses gets whole lines, of which some are missing.
func TestPipeReader(t *testing.T) {
	path := pipe(t)
	s, _ := newSet(t)
	open(t, s, path)
	f := s.File(path)
	line := append(bytes.Repeat([]byte("x"), 998), '\n') // a pipe's room is no multiple of it
	for range 10_000 {
		f.WriteLine(0, line)
	}
	conntest.Eventually(t, "lost lines", func() bool { return s.States()[0].Failed > 0 })
	r, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	read := make(chan uint64)
	go func() {
		n := uint64(0)
		scanner := bufio.NewScanner(r)
		for scanner.Scan() && scanner.Text() != "end" {
			if len(scanner.Bytes()) != 998 {
				t.Errorf("a line of %d bytes", len(scanner.Bytes()))
			}
			n++
		}
		read <- n
	}()
	var before logfile.State
	conntest.Eventually(t, "everything is written", func() bool {
		st := s.States()[0]
		same := st == before && st.Written+st.Failed+st.NoRoom == 10_000
		before = st
		return same
	})
	f.WriteLine(0, []byte("end\n"))
	if n := <-read; n != before.Written {
		t.Errorf("%d lines were read, %d counted", n, before.Written)
	}
}

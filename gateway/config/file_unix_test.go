//go:build unix

package config_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// TestPipeNobodyWritesTo: a pipe is read once something is in it, and given up when that takes too long; data written
// later goes to the next reader.
func TestPipeNobodyWritesTo(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if data, err := config.ReadFileFor(pipe, time.Millisecond); err == nil || !strings.Contains(err.Error(), "a pipe without a writer") {
			t.Fatalf("%q, %v", data, err)
		}
	}
	write := make(chan error, 1)
	go func() {
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		if err == nil {
			_, err = io.WriteString(w, "secret")
			_ = w.Close()
		}
		write <- err
	}()
	if data, err := config.ReadFileFor(pipe, time.Minute); string(data) != "secret" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	if err := <-write; err != nil {
		t.Error(err)
	}
}

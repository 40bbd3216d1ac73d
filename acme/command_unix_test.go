//go:build unix

package acme_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/acme"
	"github.com/headpond/headpond/internal/conntest"
)

// TestCommandEnds: what a program leaves behind, and how much it says.
func TestCommandEnds(t *testing.T) {
	run := func(ctx context.Context, script string) error {
		return acme.RunCommand(ctx, []string{"sh", "-c", script, "sh"})
	}
	if err := run(t.Context(), "sleep 5 & exit 0"); err != nil {
		t.Errorf("a program that has ended well and left a process behind: %v", err)
	}
	if err := run(t.Context(), "yes | head -c 10000000; exit 3"); err == nil || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a program that says much: %.2000v", err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- run(ctx, "sleep 600 & echo $! > "+file+".new; mv "+file+".new "+file+"; wait") }()
	pid := 0
	conntest.Eventually(t, "the program runs", func() bool {
		text, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0
	})
	cancel()
	if err := <-ended; err == nil {
		t.Error("a program that was killed has succeeded")
	}
	conntest.Eventually(t, "its child ends", func() bool { return gone(pid) })
}

// gone reports whether a process has ended; nobody may have asked how.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

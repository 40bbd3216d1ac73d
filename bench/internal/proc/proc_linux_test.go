package proc_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/bench/internal/proc"
)

func group(t *testing.T) *proc.Group {
	t.Helper()
	g, err := proc.NewGroup()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// await polls until ok, for at most ten seconds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// TestCountsTheWorkOfChildren starts a shell whose child works.
func TestCountsTheWorkOfChildren(t *testing.T) {
	g := group(t)
	p, err := g.Start(proc.Spec{Name: "busy", Path: "/bin/sh", Args: []string{"-c", "(while :; do :; done) & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "0.1 s of processor time", func() bool {
		d, err := p.CPU()
		if err != nil {
			t.Fatal(err)
		}
		return d > 100*time.Millisecond
	})
	if m := p.Memory(); m.RSS < 100<<10 || m.Peak < m.RSS {
		t.Errorf("two shells have %d bytes resident, %d at most", m.RSS, m.Peak)
	}
	p.ResetPeak()
	p.Stop()
	if _, err := p.CPU(); err == nil {
		t.Error("the processor time of an ended process is no error")
	}
}

func TestStopLeavesNothing(t *testing.T) {
	g := group(t)
	p, err := g.Start(proc.Spec{Name: "stubborn", Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo here; echo $$; sleep 60 & wait; wait"}, Quit: 9})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "output", func() bool { return strings.Contains(p.Log(), "here\n") })
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	if p.Ended() == nil {
		t.Error("the process runs on")
	}
	if _, err := os.Stat(g.Dir); !os.IsNotExist(err) {
		t.Error("the folder is still there")
	}
}

func TestSaysWhyNothingListens(t *testing.T) {
	g := group(t)
	p, err := g.Start(proc.Spec{Name: "wrong", Path: "/bin/sh", Args: []string{"-c", "echo no such option; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	addr, err := proc.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitListening(addr); err == nil || !strings.Contains(err.Error(), "no such option") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a process that ended: %v", err)
	}
	if _, err := g.Start(proc.Spec{Name: "absent", Path: "/nowhere"}); err == nil || !strings.Contains(err.Error(), "start absent") {
		t.Errorf("a program that does not exist: %v", err)
	}
}

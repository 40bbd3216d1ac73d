package proc_test

import (
	"os"
	"path/filepath"
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

// await polls until ok, for at most two minutes.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !ok(); <-tick.C {
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
	if m := p.Memory(); m.RSS < 100<<10 || m.Peak < m.RSS || m.Data <= 0 || m.Data >= m.RSS {
		t.Errorf("two shells have %d bytes resident, %d at most", m.RSS, m.Peak)
	}
	p.ResetPeak()
	p.Stop()
	if _, err := p.CPU(); err == nil {
		t.Error("the processor time of an ended process is no error")
	}
}

// TestCountsTheWorkOfChildrenThatHaveEnded starts a shell whose child works for a while, and waits for it.
func TestCountsTheWorkOfChildrenThatHaveEnded(t *testing.T) {
	g := group(t)
	p, err := g.Start(proc.Spec{Name: "worked", Path: "/bin/sh", Args: []string{"-c", "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); echo done; sleep 60 & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	most := time.Duration(0)
	await(t, "the end of the child", func() bool {
		d, err := p.CPU()
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, d)
		return strings.Contains(p.Log(), "done")
	})
	if d, err := p.CPU(); err != nil || d < most-50*time.Millisecond || d < 20*time.Millisecond {
		t.Errorf("after the child's end it has used %v, before %v (%v)", d, most, err)
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

// TestOthersAreNotOurs: work in this process and in a child does not count as work of others.
func TestOthersAreNotOurs(t *testing.T) {
	g := group(t)
	before := g.Usage()
	p, err := g.Start(proc.Spec{Name: "busy", Path: "/bin/sh", Args: []string{"-c", "while :; do :; done"}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "0.2 s of processor time", func() bool {
		d, err := p.CPU()
		if err != nil {
			t.Fatal(err)
		}
		return d > 200*time.Millisecond
	})
	after := g.Usage()
	if own := after.Own - before.Own; own < 200*time.Millisecond {
		t.Errorf("of its own it knows %v", own)
	}
	if others := after.Others(before); others < 0 || others > 1 || after.Total <= before.Total {
		t.Errorf("others have used %v of %v", others, after.Total-before.Total)
	}
	busy := proc.Usage{Total: 10, Busy: 8, Own: 5}
	if others := busy.Others(proc.Usage{Total: 0, Busy: 0, Own: 0}); others != 0.3 {
		t.Errorf("8 of 10 busy, 5 of them ours: others have %v", others)
	}
}

// TestSweepRemovesWhatAKilledRunHasLeft has the directories of an ended run, of a running one, and of no run.
func TestSweepRemovesWhatAKilledRunHasLeft(t *testing.T) {
	tmp, err := os.MkdirTemp("", "hp-") // short: with a long path the group would use another directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	t.Setenv("TMPDIR", tmp)
	living, dead := group(t), group(t)
	foreign := filepath.Join(tmp, "hp-bench-other")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := dead.Start(proc.Spec{Name: "left", Path: "/bin/sh", Args: []string{"-c", "sleep 60 & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	owner := filepath.Join(dead.Dir, "owner")
	data, err := os.ReadFile(owner)
	if err != nil {
		t.Fatal(err)
	}
	// As if a process with the same PID had started at another time.
	if err := os.WriteFile(owner, append(data, '1'), 0o600); err != nil {
		t.Fatal(err)
	}
	lines, err := proc.Sweep()
	if err != nil || len(lines) != 1 || !strings.Contains(lines[0], dead.Dir) {
		t.Errorf("%q, %v", lines, err)
	}
	await(t, "the end of what was left", func() bool { return p.Ended() != nil })
	if _, err := os.Stat(dead.Dir); !os.IsNotExist(err) {
		t.Error("the folder of the dead run is still there")
	}
	for _, dir := range []string{living.Dir, foreign} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

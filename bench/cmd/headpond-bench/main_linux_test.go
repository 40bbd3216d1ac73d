package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/bench/internal/result"
	_ "github.com/headpond/headpond/internal/cli" // the tests build the gateway, of which go's cache of results would not know
)

// programs is a directory with the gateway and this program, built once.
var programs string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "hp-bench-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	programs = dir
	_ = os.Setenv("CGO_ENABLED", "0") // programs are built as the Makefile builds them, benchmarks too
	build := exec.Command("go", "build", "-ldflags=-w", "-o", dir+"/", "github.com/headpond/headpond/cmd/headpond", ".")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	return m.Run()
}

// benchCommand makes a command whose temporary files are in its own directory.
func benchCommand(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "hp-") // short, for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(filepath.Join(programs, "headpond-bench"), args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return cmd, tmp
}

// nothingLeft fails the test if processes or files of a run are left.
func nothingLeft(t *testing.T, tmp string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(tmp, "*"))
	for _, f := range files {
		t.Errorf("%s is left", f)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range lines {
		if data, err := os.ReadFile(f); err == nil && bytes.Contains(data, []byte(tmp)) {
			t.Errorf("a process is left: %q", data)
		}
	}
}

// loadResults reads the results. It fails the test if one of the gateway's arms has no figures.
func loadResults(t *testing.T, dir string) *result.Results {
	t.Helper()
	res, err := result.Load(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestSuites runs every workload on one engine of the gateway, only long enough to show that it runs.
func TestSuites(t *testing.T) {
	out := t.TempDir()
	cmd, tmp := benchCommand(t, "-quick", "-rounds", "1", "-seconds", "0.04", "-out", out, "-peers", "direct,gateway-epoll,gateway-sqlite,gateway-postgres,tcppool,pgpool,sqlitepool,library", "tcp", "http", "sql")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	res := loadResults(t, out)
	if len(res.Cases) < 18 {
		t.Errorf("%d cases\n%s", len(res.Cases), text)
	}
	for _, c := range res.Cases {
		for _, a := range c.Arms {
			if a.Error != "" || a.Stat(c.Metrics[0]).N == 0 && a.Name != "direct" {
				t.Errorf("%s %s: %d rounds, %s", c.ID, a.Name, len(a.Rounds), a.Error)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(out, "report.html")); err != nil {
		t.Error(err)
	}
	nothingLeft(t, tmp)
}

// TestWrongNames: an unknown name is answered with the list of known ones.
func TestWrongNames(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-peers gateway,haproxi tcp", `no such arm as "haproxi"; there are dial, direct, gateway-epoll`},
		{"-only W9 tcp", `no such case as "W9"; there are W1c/1, W1c/16, `},
		{"-only ( tcp", "missing closing )"},
		{"tpc", `no suite "tpc"; there are`},
	} {
		cmd, tmp := benchCommand(t, append([]string{"-out", t.TempDir()}, strings.Fields(c.args)...)...)
		text, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitUsage || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: exit %d\n%s", c.args, code, text)
		}
		nothingLeft(t, tmp)
	}
}

// TestKubeWithoutServer: without an API server the suite says where to get one.
func TestKubeWithoutServer(t *testing.T) {
	cmd, tmp := benchCommand(t, "-out", t.TempDir(), "kube")
	cmd.Env = append(cmd.Env, "PATH=/nowhere", "CACHE="+t.TempDir())
	text, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(text), "kube-apiserver is not installed: make test-kube builds it") {
		t.Errorf("%v\n%s", err, text)
	}
	nothingLeft(t, tmp)
}

// TestOnlySomeCases measures one case, and the case that determines its rate.
func TestOnlySomeCases(t *testing.T) {
	out := t.TempDir()
	cmd, tmp := benchCommand(t, "-quick", "-rounds", "3", "-seconds", "0.02", "-out", out, "-peers", "direct,gateway-epoll", "-only", "^W1c/64@70$", "tcp")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var ids []string
	res := loadResults(t, out)
	for _, c := range res.Cases {
		ids = append(ids, c.ID)
		if a := c.Arm("gateway-epoll"); a == nil || len(a.Rounds) != 3 || a.Error != "" {
			t.Errorf("%s: %+v", c.ID, a)
		}
	}
	if !slices.Equal(ids, []string{"W1c/64", "W1c/64@70"}) {
		t.Errorf("measured %v", ids)
	}
	if !strings.Contains(res.Command, "-only '^W1c/64@70$' tcp") {
		t.Errorf("the command that measures it again: %s", res.Command)
	}
	nothingLeft(t, tmp)
}

// startUntil starts a run and reads its output until it contains said. The caller must read the rest before Wait.
func startUntil(t *testing.T, cmd *exec.Cmd, said string) (text *bytes.Buffer, rest io.Reader) {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text = new(bytes.Buffer)
	for buf := make([]byte, 1024); !strings.Contains(text.String(), said); {
		n, err := stderr.Read(buf)
		if err != nil {
			t.Fatalf("%v\n%s", err, text.String())
		}
		text.Write(buf[:n])
	}
	return text, stderr
}

// TestKilledRunIsSweptUp kills a run with SIGKILL and starts another, which cleans up.
func TestKilledRunIsSweptUp(t *testing.T) {
	args := []string{"-rounds", "1", "-seconds", "0.05", "-out", t.TempDir(), "-quick", "-peers", "direct,gateway-epoll", "tcp"}
	cmd, tmp := benchCommand(t, args...)
	_, rest := startUntil(t, cmd, "W1c/64 direct")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, rest)
	_ = cmd.Wait()
	if left, _ := filepath.Glob(filepath.Join(tmp, "hp-bench-*")); len(left) != 1 {
		t.Fatalf("a killed run leaves %q", left)
	}
	cmd, _ = benchCommand(t, args...)
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	text, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(text), "removed what a killed run has left: "+tmp) {
		t.Errorf("%v\n%s", err, text)
	}
	nothingLeft(t, tmp)
}

// TestInterruptAndResume interrupts a run and resumes it.
func TestInterruptAndResume(t *testing.T) {
	out := t.TempDir()
	args := []string{"-quick", "-rounds", "2", "-seconds", "0.2", "-out", out, "-peers", "direct,gateway-epoll", "tcp"}
	cmd, tmp := benchCommand(t, args...)
	text, rest := startUntil(t, cmd, "W1c/64@70 direct")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(text, rest)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitInterrupted || !strings.Contains(text.String(), "-resume") {
		t.Fatalf("%v\n%s", err, text.String())
	}
	nothingLeft(t, tmp)
	before := loadResults(t, out)
	kept := before.Case("W1c/64").Arm("gateway-epoll").Rounds
	if len(kept) != 1 {
		t.Fatalf("%d rounds are kept of a case whose first was done", len(kept))
	}
	cmd, tmp = benchCommand(t, append([]string{"-resume"}, args...)...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	nothingLeft(t, tmp)
	after := loadResults(t, out)
	if got := after.Case("W1c/64").Arm("gateway-epoll").Rounds; len(got) != 2 || got[0].Values[result.CPU] != kept[0].Values[result.CPU] {
		t.Error("a finished round was taken again")
	}
	if n := len(after.Case("W1e").Arm("gateway-epoll").Rounds); n != 2 {
		t.Errorf("the last case has %d rounds", n)
	}
	var diff bytes.Buffer
	if code := command(t.Context(), []string{"compare", out + "/results.json", out + "/results.json"}, &diff, io.Discard); code != exitOK || !strings.Contains(diff.String(), "0 worse") {
		t.Errorf("a run compared with itself: exit %d\n%s", code, diff.String())
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"-h", exitOK, "Suites:"},
		{"", exitUsage, "which suite?"},
		{"-rounds x tcp", exitUsage, "invalid value"},
		{"compare nowhere.json nowhere.json", exitProblem, "nowhere.json"},
		{"compare nowhere.json", exitUsage, "1 argument"},
		{"-headpond /nowhere tcp", exitUsage, "make build"},
	} {
		var out bytes.Buffer
		if code := command(t.Context(), strings.Fields(c.args), &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%q: exit %d, want %d and %q\n%s", c.args, code, c.code, c.want, out.String())
		}
	}
}

package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBenchIsFoundBesideTheBinary: an installation without source.
func TestBenchIsFoundBesideTheBinary(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	self := filepath.Join(dir, "headpond")
	if _, err := benchProgram(self, os.Stderr); !errors.Is(err, errNoBench) {
		t.Errorf("without the program: %v", err)
	}
	want := filepath.Join(dir, "headpond-bench")
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := benchProgram(self, os.Stderr); got != want || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// TestBenchIsBuiltInASourceTree: if the build fails, Go's own error is shown.
func TestBenchIsBuiltInASourceTree(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bench", "cmd", "headpond-bench"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	var stderr bytes.Buffer
	if _, err := benchProgram(filepath.Join(dir, "bin", "headpond"), &stderr); err == nil || stderr.Len() == 0 {
		t.Errorf("an empty tree was built: %v, %q", err, stderr.String())
	}
}

// TestBenchHelpWithoutTheProgram names the command's purpose, and the missing program.
func TestBenchHelpWithoutTheProgram(t *testing.T) {
	var stdout, stderr bytes.Buffer
	e := env{&stdout, &stderr}
	if code := benchFailed(e, []string{"--help"}, errNoBench); code != exitOK || !strings.HasPrefix(stdout.String(), "Usage: headpond bench") || !strings.Contains(stdout.String(), "not installed") || stderr.Len() > 0 {
		t.Errorf("exit %d\n%s%s", code, &stdout, &stderr)
	}
	if code := benchFailed(e, []string{"all"}, errNoBench); code != exitProblem || !strings.Contains(stderr.String(), "not installed") {
		t.Errorf("exit %d\n%s", code, &stderr)
	}
}

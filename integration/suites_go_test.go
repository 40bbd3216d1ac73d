//go:build suites

package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// libPQSuite is run without TLS.
var libPQSuite = suite{
	password: "postgres",
	unpack: func(t *testing.T) string {
		source := unpackModule(t, "github.com/lib/pq@v1.12.3")
		// A test panics if a connection takes longer than that, which ends all tests.
		replaceIn(t, filepath.Join(source, "notify_test.go"), "100 * time.Millisecond):\n\t\tpanic(", "10 * time.Second):\n\t\tpanic(")
		return source
	},
	run: func(t *testing.T, dir string, at place) map[string]string {
		return runGoTests(t, dir, at, append(libpqEnvironment(at), "PGSSLMODE=disable"), "TestPing")
	},
}

// goCommand runs Go outside of this workspace.
func goCommand(t *testing.T, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -trimpath") // what was compiled in another directory is used again
	return cmd
}

// unpackModule downloads a module and returns a copy that can be written to.
func unpackModule(t *testing.T, module string) string {
	t.Helper()
	dir := sharedDir(t)
	out, err := goCommand(t, dir, "mod", "download", "-json", module).Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", module, err, out)
	}
	var told struct{ Dir string }
	if err := json.Unmarshal(out, &told); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "source")
	output(t, exec.CommandContext(t.Context(), "cp", "-r", told.Dir, source))
	output(t, exec.CommandContext(t.Context(), "chmod", "-R", "u+w", source))
	return source
}

// replaceIn replaces a text that must be in the file.
func replaceIn(t *testing.T, path, was, now string) {
	t.Helper()
	text := readFile(t, path)
	if !strings.Contains(text, was) {
		t.Fatalf("%s has no %q", path, was)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(text, was, now, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// goTestLimit bounds the tests of a package, in case one hangs.
const goTestLimit = "10m"

// runGoTests runs the tests of all packages of a module, one package after the other. harmful is the test that fails in transaction mode for
// a reason in testdata/suites.txt, and takes others along: it is skipped there.
func runGoTests(t *testing.T, dir string, at place, env []string, harmful string) map[string]string {
	t.Helper()
	args := []string{"test", "-json", "-vet", "off", "-count", "1", "-p", "1", "-timeout", goTestLimit}
	if at.mode == "transaction" {
		args = append(args, "-skip", "^"+harmful+"$")
	}
	cmd := goCommand(t, dir, append(args, "./...")...)
	cmd.Env = append(cmd.Env, env...)
	out, _ := cmd.Output() // an error where a test fails
	outcomes, words := map[string]string{}, map[string]string{}
	temporary := regexp.MustCompile(regexp.QuoteMeta(os.TempDir()) + `/\w+`)
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Test == "" {
			continue
		}
		name := temporary.ReplaceAllString(strings.ReplaceAll(e.Package+"."+e.Test, " ", "_"), "TMP")
		switch e.Action {
		case "run":
			outcomes[name] = unended // until it does
		case "output":
			text := strings.TrimSpace(e.Output)
			if !strings.HasPrefix(text, "=== ") && len(words[name]) < 400 {
				words[name] += text + " "
			}
			if strings.HasPrefix(text, "panic: ") {
				outcomes[name] = unended + ": " + text
			}
		case "pass":
			outcomes[name] = "passed"
		case "skip":
			outcomes[name] = "skipped"
		case "fail":
			outcomes[name] = "failed: " + words[name]
		}
	}
	return outcomes
}

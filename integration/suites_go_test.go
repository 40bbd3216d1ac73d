//go:build suites

package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// goSuite is the test suite in a Go module.
func goSuite(module string, prepare func(t *testing.T, dir string, server *pgtest.Cluster, db string), env func(at place) []string) suite {
	return suite{
		prepare: prepare,
		unpack:  func(t *testing.T) string { return unpackModule(t, module) },
		run:     func(t *testing.T, dir string, at place) map[string]string { return runGoTests(t, dir, env(at)) },
	}
}

// goCommand runs Go outside of this workspace.
func goCommand(t *testing.T, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
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

// pgxSetup does what pgx's testsetup/postgresql_setup.sql does. For the second database the roles exist already.
func pgxSetup(t *testing.T, dir string, server *pgtest.Cluster, db string) {
	t.Helper()
	out, code := run(t, time.Minute, program(t, "psql"), "-X", "-q", "-f", filepath.Join(dir, "testsetup", "postgresql_setup.sql"),
		server.DSN(server.Superuser(), server.Password(), db))
	if code != 0 {
		t.Fatal(out)
	}
}

// goTestLimit bounds the tests of a package, in case one hangs.
const goTestLimit = "10m"

// runGoTests runs the tests of all packages of a module, one package after the other.
func runGoTests(t *testing.T, dir string, env []string) map[string]string {
	t.Helper()
	cmd := goCommand(t, dir, "test", "-json", "-count", "1", "-p", "1", "-timeout", goTestLimit, "./...")
	cmd.Env = append(cmd.Env, env...)
	out, _ := cmd.Output() // an error where a test fails
	outcomes, words := map[string]string{}, map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Test == "" {
			continue
		}
		name := strings.ReplaceAll(e.Package+"."+e.Test, " ", "_")
		switch e.Action {
		case "output":
			if text := strings.TrimSpace(e.Output); !strings.HasPrefix(text, "=== ") && len(words[name]) < 400 {
				words[name] += text + " "
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

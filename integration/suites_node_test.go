//go:build suites

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/clienttest"
)

// nodePGSource names a directory with node-postgres's repository: its packages have no tests.
const nodePGSource = "NODE_POSTGRES_SOURCE"

// nodePGNeeds are the packages that the tests require, as the repository's packages/pg/package.json pins them.
var nodePGNeeds = []string{"async@2.6.4", "bluebird@3.7.2", "co@4.6.0", "pg-copy-streams@0.3.0"}

// nodePGSuite is packages/pg/test/integration, with the version of pg that integration/clients pins. A file is a test.
var nodePGSuite = suite{
	password: "postgres",
	unpack:   unpackNodePG,
	run: func(t *testing.T, dir string, at place) map[string]string {
		outcomes := map[string]string{}
		tests := filepath.Join(dir, "test", "integration")
		err := filepath.WalkDir(tests, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, "-tests.js") {
				outcomes[strings.TrimPrefix(path, tests+"/")] = runNodeTests(t, dir, path, libpqEnvironment(at))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return outcomes
	},
}

// unpackNodePG installs pg, and puts the tests into its directory.
func unpackNodePG(t *testing.T) string {
	t.Helper()
	from := os.Getenv(nodePGSource)
	if from == "" {
		t.Logf("pg's tests are in its repository only: clone brianc/node-postgres, check out the version that integration/clients pins, and say where in %s",
			nodePGSource)
		return ""
	}
	var pins struct{ Dependencies map[string]string }
	if err := json.Unmarshal([]byte(readFile(t, clienttest.Program(t, "package.json"))), &pins); err != nil {
		t.Fatal(err)
	}
	dir := sharedDir(t)
	args := append([]string{"install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "pg@" + pins.Dependencies["pg"]}, nodePGNeeds...)
	output(t, exec.CommandContext(t.Context(), "npm", args...))
	pg := filepath.Join(dir, "node_modules", "pg")
	output(t, exec.CommandContext(t.Context(), "cp", "-r", filepath.Join(from, "packages", "pg", "test"), pg))
	return pg
}

// nodeTestLimit bounds a file of tests, each of which ends itself after 5 seconds.
const nodeTestLimit = 2 * time.Minute

// runNodeTests runs a file of tests. The first one that fails ends it.
func runNodeTests(t *testing.T, dir, path string, env []string) (outcome string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nodeTestLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--no-deprecation", path)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err != nil {
		return fmt.Sprintf("failed: %v: %s", err, out)
	}
	return "passed"
}

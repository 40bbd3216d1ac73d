// Package clienttest runs the programs and tools of other projects that tests use as clients.
// integration/clients pins them in requirements.txt (PyPI), package-lock.json (npm), pom.xml
// (Maven) and go.txt (Go modules), and scripts/test-deps.sh (`make test-deps`) installs them outside of the tree:
//
//	out, err := clienttest.Python(t, "-m", "schemathesis.cli", "run", url).CombinedOutput()
//
// A test whose client is not installed fails and names the command that installs it; it is never skipped.
package clienttest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// Python returns a command that runs the Python of the virtual environment with the packages of requirements.txt.
// The command is killed when the test ends. So are those of the other functions.
func Python(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), filepath.Join(installed(t, "python", "requirements.txt"), "bin", "python"), args...)
}

// PythonTool returns a command that runs a console script of the virtual environment, such as "schemathesis".
func PythonTool(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), filepath.Join(installed(t, "python", "requirements.txt"), "bin", name), args...)
}

// Node returns a command that runs a CommonJS program, which can require the packages of package-lock.json.
func Node(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	dir := installed(t, "node", "package-lock.json", "package.json")
	cmd := exec.CommandContext(t.Context(), "node", append([]string{program}, args...)...)
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	return cmd
}

// briefJVM has Java compile little: a test's program is over before better machine code would pay.
var briefJVM = []string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}

// Java returns a command that compiles and runs a program of one source file with the libraries of pom.xml.
func Java(t testing.TB, source string, args ...string) *exec.Cmd {
	t.Helper()
	jars := filepath.Join(installed(t, "java", "pom.xml"), "*")
	return exec.CommandContext(t.Context(), "java", slices.Concat(briefJVM, []string{"-cp", jars, source}, args)...)
}

// GoTool returns a command that runs a program of go.txt, such as "grpcurl".
func GoTool(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), filepath.Join(installed(t, "go", "go.txt"), name), args...)
}

// Program returns the absolute path of a program in integration/clients.
func Program(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(clients(t), name)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// installed returns the directory of a kind of clients, which scripts/test-deps.sh names after the pins.
func installed(t testing.TB, kind string, pins ...string) string {
	t.Helper()
	h := sha256.New()
	for _, name := range pins {
		text, err := os.ReadFile(filepath.Join(clients(t), name))
		if err != nil {
			t.Fatal(err)
		}
		h.Write(text)
	}
	dir := filepath.Join(cache(t), kind+"-"+hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the clients that integration/clients/%s pins are not installed: run `make test-deps` (%v)", pins[0], err)
	}
	return dir
}

// cache is the directory that scripts/test-deps.sh installs in.
func cache(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("XDG_CACHE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(home, ".cache")
	}
	return filepath.Join(dir, "headpond-test")
}

// clients returns the directory integration/clients of the repository that contains the working
// directory.
func clients(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		path := filepath.Join(dir, "integration", "clients")
		if _, missing := os.Stat(filepath.Join(path, "pom.xml")); missing == nil {
			return path
		}
		if filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("no integration/clients above the working directory (%v)", err)
	return ""
}

//go:build suites

package integration

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
)

// pytestSuite is the suite in a project's source distribution on PyPI, of the version that integration/clients pins.
// needs are packages besides the pinned ones; args returns pytest's arguments.
func pytestSuite(project string, needs []string, args func(at place) (args, env []string)) suite {
	return suite{
		unpack: func(t *testing.T) string { return unpackPyPI(t, project, needs) },
		run: func(t *testing.T, dir string, at place) map[string]string {
			more, env := args(at)
			return runPytest(t, dir, at, more, env)
		},
	}
}

// unpackPyPI unpacks a source distribution into the directory source below the one it returns.
func unpackPyPI(t *testing.T, project string, needs []string) string {
	t.Helper()
	dir := sharedDir(t)
	version := output(t, clienttest.Python(t, "-c", "import importlib.metadata as m; print(m.version('"+project+"'))"))
	output(t, clienttest.Python(t, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", project, "-d", dir, project+"=="+strings.TrimSpace(version)))
	installNeeds(t, dir, needs)
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatal(archives, err)
	}
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, exec.CommandContext(t.Context(), "tar", "xzf", archives[0], "-C", source, "--strip-components", "1"))
	if err := os.RemoveAll(filepath.Join(source, "asyncpg")); err != nil { // test the installed package, which is compiled
		t.Fatal(err)
	}
	return dir
}

// installNeeds installs packages for one suite only.
func installNeeds(t *testing.T, dir string, needs []string) {
	t.Helper()
	if needs != nil {
		output(t, clienttest.Python(t, append([]string{"-m", "pip", "install", "--quiet", "--target", filepath.Join(dir, "needs")}, needs...)...))
	}
}

// runPytest runs pytest in the directory source.
func runPytest(t *testing.T, dir string, at place, args, env []string) map[string]string {
	t.Helper()
	report := filepath.Join(dir, at.mode+".xml")
	args = append([]string{"-W", "ignore", "-m", "pytest", "-q", "-p", "suite_timeout", "-o", "cache_dir=" + filepath.Join(dir, "cache"), "--junitxml", report}, args...)
	cmd := clienttest.Python(t, args...)
	cmd.Dir = filepath.Join(dir, "source")
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH="+filepath.Dir(clienttest.Program(t, "suite_timeout.py"))+":"+filepath.Join(dir, "needs")), env...)
	out, err := cmd.CombinedOutput() // not 0 where a test fails
	outcomes, readErr := readReport(report)
	if readErr != nil {
		t.Fatalf("%v: %v\n%s", readErr, err, out)
	}
	return outcomes
}

// psycopgSource names a directory with psycopg's repository at the tag of the pinned version: its source distribution
// has no tests.
const psycopgSource = "PSYCOPG_SOURCE"

// psycopgSuite is the tests that need neither another network nor mypy.
var psycopgSuite = suite{
	missesDatabases: true,
	unpack: func(t *testing.T) string {
		from := os.Getenv(psycopgSource)
		if from == "" {
			t.Logf("psycopg's tests are in its repository only: clone it, check out the version that integration/clients pins, and say where in %s", psycopgSource)
			return ""
		}
		dir := sharedDir(t)
		installNeeds(t, dir, []string{"anyio", "pproxy", "psycopg-pool"})
		source := filepath.Join(dir, "source")
		if err := os.Mkdir(source, 0o755); err != nil {
			t.Fatal(err)
		}
		output(t, exec.CommandContext(t.Context(), "cp", "-r", filepath.Join(from, "tests"), source))
		return dir
	},
	run: func(t *testing.T, dir string, at place) map[string]string {
		dsn := "host=" + at.host + " port=" + at.port + " user=postgres password=postgres dbname=" + at.db
		return runPytest(t, dir, at, []string{"--test-dsn", dsn, "-m", "not slow and not timing and not mypy and not dns",
			"--ignore", "tests/pool", "--ignore", "tests/crdb", "--ignore", "tests/test_module.py", "tests"}, nil)
	},
}

// readReport reads pytest's result of each test, with the beginning of a failure's text.
func readReport(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	type told struct {
		Message string `xml:"message,attr"`
	}
	var report struct {
		Cases []struct {
			Class   string `xml:"classname,attr"`
			Name    string `xml:"name,attr"`
			Failure *told  `xml:"failure"`
			Error   *told  `xml:"error"`
			Skipped *told  `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, err
	}
	outcomes := make(map[string]string)
	for _, c := range report.Cases {
		name, outcome := strings.ReplaceAll(c.Class+"."+c.Name, " ", "_"), "passed"
		switch {
		case c.Failure != nil:
			outcome = "failed: " + c.Failure.Message
		case c.Error != nil:
			outcome = "failed: " + c.Error.Message
		case c.Skipped != nil:
			outcome = "skipped"
		}
		if was, twice := outcomes[name]; !twice || was == "passed" {
			outcomes[name] = outcome
		}
	}
	return outcomes, nil
}

//go:build suites

package integration

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/pgtest"
)

// suite is a project's own tests, as its source distribution on PyPI has them.
type suite struct {
	project string   // on PyPI; the version is the one that integration/clients pins
	needs   []string // besides the pinned clients
	tests   []string
	args    func(host, port, db string) (args, env []string)
}

var suites = map[string]suite{
	"asyncpg": {"asyncpg", []string{"distro"}, []string{"tests"}, func(host, port, db string) (args, env []string) {
		return []string{"--ignore", "tests/test__sourcecode.py"},
			[]string{"PGHOST=" + host, "PGPORT=" + port, "PGUSER=postgres", "PGPASSWORD=postgres", "PGDATABASE=" + db}
	}},
	"sqlalchemy-psycopg": sqlalchemySuite("psycopg"),
	"sqlalchemy-asyncpg": sqlalchemySuite("asyncpg"),
}

func sqlalchemySuite(driver string) suite {
	return suite{"SQLAlchemy", nil, []string{"test/dialect/postgresql", "test/dialect/test_suite.py"},
		func(host, port, db string) (args, env []string) {
			return []string{"--maxfail", "10000", "--dburi", fmt.Sprintf("postgresql+%s://postgres:postgres@%s:%s/%s", driver, host, port, db)}, nil
		}}
}

// TestSuites runs the suites straight on a server, and through the gateway in both modes. A test that ends otherwise than it does straight
// on the server has to be in testdata/suites.txt, with the reason.
func TestSuites(t *testing.T) {
	server := pgtest.Start(t, pgtest.WithSetting("max_connections", "300"), pgtest.WithSetting("max_prepared_transactions", "20"))
	for name, s := range suites {
		t.Run(name, func(t *testing.T) {
			dir := s.unpack(t)
			want := s.run(t, server, dir, name, "direct")
			passed := 0
			for _, outcome := range want {
				if outcome == "passed" {
					passed++
				}
			}
			t.Logf("straight on the server: %d of %d tests pass", passed, len(want))
			if passed < len(want)/2 {
				t.Fatal("fewer than half")
			}
			for _, mode := range []string{"transaction", "session"} {
				t.Run(mode, func(t *testing.T) {
					compareSuites(t, explained(t, name, mode), want, s.run(t, server, dir, name, mode))
				})
			}
		})
	}
}

// unpack returns a directory with the suite.
func (s suite) unpack(t *testing.T) string {
	t.Helper()
	dir := sharedDir(t)
	version := output(t, clienttest.Python(t, "-c", "import importlib.metadata as m; print(m.version('"+s.project+"'))"))
	output(t, clienttest.Python(t, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", dir, s.project+"=="+strings.TrimSpace(version)))
	if s.needs != nil {
		output(t, clienttest.Python(t, append([]string{"-m", "pip", "install", "--quiet", "--target", filepath.Join(dir, "needs")}, s.needs...)...))
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatal(archives, err)
	}
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, exec.CommandContext(t.Context(), "tar", "xzf", archives[0], "-C", source, "--strip-components", "1"))
	if err := os.RemoveAll(filepath.Join(source, "asyncpg")); err != nil { // the installed one is to be tested, which is compiled
		t.Fatal(err)
	}
	return dir
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// run runs the suite in a database of its own, and returns the outcomes of its tests by name.
func (s suite) run(t *testing.T, server *pgtest.Cluster, dir, name, mode string) map[string]string {
	t.Helper()
	db := strings.ReplaceAll(name, "-", "_") + "_" + mode
	server.Exec(t, "create database "+db)
	prepareForSuite(t, server, db)
	addr := server.Addr()
	if mode != "direct" {
		addr = address(t)
		startGateway(t, fmt.Sprintf(`listeners:
  - {name: db, protocol: postgres, listen: %s, postgres: {mode: %s, auth: trust, databases: {"*": pg}}}
upstreams:
  pg:
    endpoints: [%s]
    pool: {max_size: 60}
    postgres: {user: postgres, password: postgres, dbname: %s}
`, addr, mode, server.Addr(), db), plain)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(dir, mode+".xml")
	args, env := s.args(host, port, db)
	args = append(append([]string{"-W", "ignore", "-m", "pytest", "-q", "-p", "suite_timeout", "-p", "no:cacheprovider", "--junitxml", report}, args...), s.tests...)
	cmd := clienttest.Python(t, args...)
	cmd.Dir = filepath.Join(dir, "source")
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH="+filepath.Dir(clienttest.Program(t, "suite_timeout.py"))+":"+filepath.Join(dir, "needs")), env...)
	start := time.Now()
	out, err := cmd.CombinedOutput() // not 0 where a test fails
	outcomes, readErr := readReport(report)
	if readErr != nil {
		t.Fatalf("%v: %v\n%s", readErr, err, out)
	}
	t.Logf("%s, %s: %d tests in %v", name, mode, len(outcomes), time.Since(start).Round(time.Second))
	return outcomes
}

// prepareForSuite gives a database what SQLAlchemy's README.unittests.rst asks for.
func prepareForSuite(t *testing.T, server *pgtest.Cluster, db string) {
	t.Helper()
	out, code := run(t, time.Minute, program(t, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c",
		"create schema test_schema; create schema test_schema_2; create extension hstore; create extension citext; "+
			"alter database "+db+" set default_text_search_config = 'pg_catalog.english'",
		server.DSN(server.Superuser(), server.Password(), db))
	if code != 0 {
		t.Fatal(out)
	}
}

// readReport reads what pytest says of each test. A failure is told with its beginning.
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

// explained returns the tests that testdata/suites.txt has of a suite in a mode, with the reasons.
func explained(t *testing.T, name, mode string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "suites.txt"))
	if err != nil {
		t.Fatal(err)
	}
	reasons := make(map[string]string)
	reason := ""
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "#":
			reason = strings.TrimSpace(line)
		case len(fields) == 3 && (fields[0] == name || fields[0] == "*") && (fields[1] == mode || fields[1] == "*"):
			reasons[fields[2]] = reason
		}
	}
	return reasons
}

// compareSuites reports the tests that end otherwise than they do straight on the server, and have no reason to. A reason is for a test, or for
// all the names of which begin like it, before an asterisk.
func compareSuites(t *testing.T, reasons, want, got map[string]string) {
	t.Helper()
	differ, kind := 0, func(outcome string) string { return strings.SplitN(outcome, ":", 2)[0] }
	for _, test := range slices.Sorted(maps.Keys(want)) {
		if kind(got[test]) == kind(want[test]) || kind(want[test]) == "failed" {
			continue
		}
		differ++
		if _, ok := reasons[test]; ok || slices.ContainsFunc(slices.Collect(maps.Keys(reasons)), func(pattern string) bool {
			prefix, wildcard := strings.CutSuffix(pattern, "*")
			return wildcard && strings.HasPrefix(test, prefix)
		}) {
			continue
		}
		t.Errorf("%s: %.300s; straight on the server: %.300s", test, got[test], want[test])
	}
	t.Logf("%d of %d tests end otherwise", differ, len(want))
}

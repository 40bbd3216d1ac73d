//go:build suites

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// regression is one of PostgreSQL's own test suites.
type regression struct {
	name     string
	source   string // in PostgreSQL's source
	driver   string // below the server's pgxs directory
	schedule string
	args     []string
}

var regressions = []regression{
	{"regress", "src/test/regress", "src/test/regress/pg_regress", "parallel_schedule", []string{"--max-connections=8"}},
	{"isolation", "src/test/isolation", "src/test/isolation/pg_isolation_regress", "isolation_schedule", nil},
}

// isolationSeconds is the longest time of a step of the isolation suite before it is canceled. Without a gateway no
// step takes as long.
const isolationSeconds = "5"

// TestPostgresRegressionSuite runs PostgreSQL's regression and isolation suites directly on a server and through the gateway in both
// modes, each on a new server, and compares the output of each test. A test whose output differs from the direct run
// must be in testdata/suites.txt with a reason. Differences from PostgreSQL's expected output do not matter: the
// suite's C library is not built.
func TestPostgresRegressionSuite(t *testing.T) {
	source := postgresSource(t)
	for _, r := range regressions {
		t.Run(r.name, func(t *testing.T) {
			want := r.run(t, source, "direct", nil)
			again := r.run(t, source, "direct", nil) // to find output that differs in any case
			for test, out := range want {
				if !bytes.Equal(out, again[test]) {
					t.Logf("%s prints something else each time", test)
					delete(want, test)
				}
			}
			if len(want) < 50 {
				t.Fatalf("only %d tests print the same twice", len(want))
			}
			for _, mode := range []string{"transaction", "session"} {
				t.Run(mode, func(t *testing.T) {
					reasons := explained(t, "pg-"+r.name, mode)
					got := r.run(t, source, mode, reasons)
					compareSuites(t, reasons, sameOutput(want, want), sameOutput(want, got))
				})
			}
		})
	}
}

// postgresSource downloads the source of the installed server from Debian, with package lists of its own.
func postgresSource(t *testing.T) string {
	t.Helper()
	dir := sharedDir(t)
	pkg := "postgresql-" + filepath.Base(filepath.Dir(filepath.Dir(pgtest.Shared(t).Bin("postgres")))) // /usr/lib/postgresql/15/bin/postgres
	version := strings.TrimSpace(output(t, exec.CommandContext(t.Context(), "dpkg-query", "-W", "-f", "${Version}", pkg)))
	for _, sub := range []string{"parts", "lists/partial", "source"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lists, err := filepath.Glob("/etc/apt/sources.list.d/debian.sources")
	if err != nil || len(lists) == 0 {
		t.Fatalf("%v: PostgreSQL's suites come from Debian's source package; there is no /etc/apt/sources.list.d/debian.sources", err)
	}
	sources := strings.ReplaceAll(readFile(t, lists[0]), "Types: deb\n", "Types: deb-src\n")
	if err := os.WriteFile(filepath.Join(dir, "parts", "debian.sources"), []byte(sources), 0o644); err != nil {
		t.Fatal(err)
	}
	apt := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), "apt-get", append([]string{"-q", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=" + dir + "/parts",
			"-o", "Dir::State::lists=" + dir + "/lists", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="}, args...)...)
		cmd.Dir = dir
		output(t, cmd)
	}
	apt("update")
	apt("source", "--download-only", pkg+"="+version)
	archives, err := filepath.Glob(filepath.Join(dir, "*.orig.tar.*"))
	if err != nil || len(archives) != 1 {
		t.Fatal(archives, err)
	}
	output(t, exec.CommandContext(t.Context(), "tar", "xf", archives[0], "-C", filepath.Join(dir, "source"), "--strip-components", "1"))
	return filepath.Join(dir, "source")
}

// scheduleWithout returns the file with the suite's schedule. That of the isolation suite is without the tests that differ for a reason: in
// most of their steps each waits for isolationSeconds, which takes most of an hour in transaction mode.
func (r *regression) scheduleWithout(t *testing.T, tests, out string, reasons map[string]string) (path string) {
	t.Helper()
	path = filepath.Join(tests, r.schedule)
	if r.name != "isolation" || len(reasons) == 0 {
		return path
	}
	var kept strings.Builder
	for line := range strings.Lines(readFile(t, path)) {
		name, _ := strings.CutPrefix(strings.TrimSpace(line), "test: ")
		if _, left := reasons[name]; !left {
			kept.WriteString(line)
		}
	}
	path = filepath.Join(out, r.schedule)
	if err := os.WriteFile(path, []byte(kept.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a suite on a new server and returns the output of each test. reasons are those of tests whose output may differ.
func (r *regression) run(t *testing.T, source, mode string, reasons map[string]string) map[string][]byte {
	t.Helper()
	const db = "regression"
	server := pgtest.Start(t, pgtest.WithSetting("max_connections", "200"), pgtest.WithSetting("max_prepared_transactions", "2"), pgtest.WithSetting("wal_level", "replica"),
		pgtest.WithSetting("autovacuum", "off"))
	server.Exec(t, "create database "+db+" template template0")
	for _, setting := range []string{"lc_messages = 'C'", "lc_monetary = 'C'", "lc_numeric = 'C'", "lc_time = 'C'", "bytea_output = 'hex'", "timezone_abbreviations = 'Default'"} {
		server.Exec(t, "alter database "+db+" set "+setting)
	}
	addr := server.Addr()
	if mode != "direct" {
		addr = startSuiteGateway(t, server, mode, db, `"*": pg`, "")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(sharedDir(t), "out")
	for _, dir := range []string{out, filepath.Join(out, "results")} { // the server's user writes files there, too
		if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	tests := filepath.Join(source, r.source)
	program := filepath.Join(filepath.Dir(filepath.Dir(server.Bin("postgres"))), "lib", "pgxs", r.driver)
	args := append([]string{"--inputdir=" + tests, "--outputdir=" + out, "--bindir=" + filepath.Dir(server.Bin("postgres")), "--dlpath=" + out, "--use-existing", "--dbname=" + db,
		"--host=" + host, "--port=" + port, "--user=" + server.Superuser(), "--schedule=" + r.scheduleWithout(t, tests, out, reasons)}, r.args...)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = out
	cmd.Env = append(os.Environ(), "PGISOLATIONTIMEOUT="+isolationSeconds)
	start := time.Now()
	text, _ := cmd.CombinedOutput() // the error means that a test failed
	files, err := filepath.Glob(filepath.Join(out, "results", "*.out"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: %s", err, text)
	}
	printed := make(map[string][]byte)
	for _, file := range files {
		printed[strings.TrimSuffix(filepath.Base(file), ".out")] = withoutPlace([]byte(readFile(t, file)), out, port)
	}
	t.Logf("%s, %s: %d tests in %v", r.name, mode, len(printed), time.Since(start).Round(time.Second))
	return printed
}

var milliseconds = regexp.MustCompile(`(?m)\d+\.\d+ ms`)

// withoutPlace removes what differs between runs: directories, ports, times.
func withoutPlace(text []byte, out, port string) []byte {
	text = bytes.ReplaceAll(text, []byte(out), []byte("OUT"))
	text = bytes.ReplaceAll(text, []byte("port "+port), []byte("port PORT"))
	text = bytes.ReplaceAll(text, []byte("port \""+port+"\""), []byte("port \"PORT\""))
	return milliseconds.ReplaceAll(text, []byte("N ms"))
}

// sameOutput returns the tests whose output differs, each with the first lines that differ.
func sameOutput(want, got map[string][]byte) map[string]string {
	outcomes := make(map[string]string)
	for test, text := range want {
		if bytes.Equal(text, got[test]) {
			outcomes[test] = "passed"
			continue
		}
		if got[test] == nil {
			outcomes[test] = "failed: it has not run"
			continue
		}
		a, b := strings.Split(string(text), "\n"), strings.Split(string(got[test]), "\n")
		first := 0
		for first < min(len(a), len(b))-1 && a[first] == b[first] {
			first++
		}
		outcomes[test] = fmt.Sprintf("failed: line %d of %d: %q, straight %q", first+1, len(a), b[first:min(first+2, len(b))], a[first:min(first+2, len(a))])
	}
	return outcomes
}

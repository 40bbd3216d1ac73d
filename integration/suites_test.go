//go:build suites

package integration

import (
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

	"github.com/headpond/headpond/internal/pgtest"
)

// suite is a project's own tests.
type suite struct {
	// options are the server's, besides those of all suites.
	options []pgtest.Option
	// unpack returns a directory with the tests. It is removed at the end of the test.
	unpack func(t *testing.T) string
	// run runs the tests and returns their results by name: "passed", "skipped", or "failed: " with
	// the reason.
	run func(t *testing.T, dir string, at place) map[string]string
	// prepare sets a database up as the project's instructions say; nil = only extensions and schemas
	// (prepareForSuite).
	prepare func(t *testing.T, dir string, server *pgtest.Cluster, db string)
	// missesDatabases means that its tests ask for databases that there are not, and create none.
	missesDatabases bool
	// password is the gateway's for the user postgres; "" = it lets everybody in.
	password string
	// gateway starts a gateway in at.mode before the server, and enters where it listens; nil = startSuiteGateway.
	gateway func(t *testing.T, server *pgtest.Cluster, at *place)
}

// unended begins the result of a test that never ended. What its process had still to run has no result.
const unended = "failed: it has not ended"

// place is the database in which a suite runs.
type place struct {
	suite, mode    string // mode is "direct" or a mode of the gateway
	host, port, db string
	logins         logins // for suites that try several
}

var suites = map[string]suite{
	"asyncpg": pytestSuite("asyncpg", []string{"distro"}, func(at place) (args, env []string) {
		return []string{"--ignore", "tests/test__sourcecode.py", "tests"}, libpqEnvironment(at)
	}),
	"sqlalchemy-psycopg": sqlalchemySuite("psycopg"),
	"sqlalchemy-asyncpg": sqlalchemySuite("asyncpg"),
	"django":             djangoSuite,
	"psycopg":            psycopgSuite,
	"pgx":                pgxSuite,
	"node-pg":            nodePGSuite,
	"lib-pq":             libPQSuite,
}

func libpqEnvironment(at place) []string {
	return []string{"PGHOST=" + at.host, "PGPORT=" + at.port, "PGUSER=postgres", "PGPASSWORD=postgres", "PGDATABASE=" + at.db}
}

func sqlalchemySuite(driver string) suite {
	return pytestSuite("SQLAlchemy", nil, func(at place) (args, env []string) {
		return []string{"--maxfail", "10000", "--dburi", fmt.Sprintf("postgresql+%s://postgres:postgres@%s:%s/%s", driver, at.host, at.port, at.db),
			"test/dialect/postgresql", "test/dialect/test_suite.py"}, nil
	})
}

// TestSuites runs the suites directly on a server, and through the gateway in both modes. A test whose result differs
// from the direct run must be in testdata/suites.txt with a reason.
func TestSuites(t *testing.T) {
	for name, s := range suites {
		t.Run(name, func(t *testing.T) {
			server := pgtest.Start(t, append(s.options,
				pgtest.WithSetting("max_connections", "300"), pgtest.WithSetting("max_prepared_transactions", "20"))...)
			dir := s.unpack(t)
			if dir == "" {
				return // it has reported the reason
			}
			want := s.runIn(t, server, dir, name, "direct")
			passed := 0
			for test, outcome := range want {
				switch {
				case outcome == "passed":
					passed++
				case strings.HasPrefix(outcome, unended):
					t.Logf("straight on the server: %s: %s", test, outcome)
				}
			}
			t.Logf("straight on the server: %d of %d tests pass", passed, len(want))
			if passed < len(want)/2 {
				t.Fatal("fewer than half")
			}
			for _, mode := range []string{"transaction", "session"} {
				t.Run(mode, func(t *testing.T) {
					compareSuites(t, explained(t, name, mode), want, s.runIn(t, server, dir, name, mode))
				})
			}
		})
	}
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// runIn runs the suite in a new database.
func (s suite) runIn(t *testing.T, server *pgtest.Cluster, dir, name, mode string) map[string]string {
	t.Helper()
	db := strings.ReplaceAll(name, "-", "_") + "_" + mode
	server.Exec(t, "create database "+db)
	prepareForSuite(t, server, db)
	if s.prepare != nil {
		s.prepare(t, dir, server, db)
	}
	at := place{suite: name, mode: mode, db: db}
	switch {
	case mode == "direct":
		at.listenAt(t, server.Addr())
		at.logins = serverLogins(server)
	case s.gateway != nil:
		s.gateway(t, server, &at)
	default:
		databases := `"*": pg`
		if s.missesDatabases {
			databases = db + ": pg, postgres: pg"
		}
		at.listenAt(t, startSuiteGateway(t, server, mode, db, databases, s.password))
	}
	start := time.Now()
	outcomes := s.run(t, dir, at)
	t.Logf("%s, %s: %d tests in %v", name, mode, len(outcomes), time.Since(start).Round(time.Second))
	return outcomes
}

// listenAt enters the address.
func (at *place) listenAt(t *testing.T, addr string) {
	t.Helper()
	var err error
	if at.host, at.port, err = net.SplitHostPort(addr); err != nil {
		t.Fatal(err)
	}
}

// startSuiteGateway starts a gateway for a database of the server. databases are the listener's, of the upstream pg;
// password is as in suite.
func startSuiteGateway(t *testing.T, server *pgtest.Cluster, mode, db, databases, password string) (addr string) {
	t.Helper()
	addr = address(t)
	auth := "auth: trust"
	if password != "" {
		users := filepath.Join(sharedDir(t), "users.txt")
		if err := os.WriteFile(users, fmt.Appendf(nil, "\"postgres\" %q\n", password), 0o644); err != nil {
			t.Fatal(err)
		}
		auth = "users_file: " + users
	}
	startGateway(t, fmt.Sprintf(`listeners:
  - {name: db, protocol: postgres, listen: %s, postgres: {mode: %s, %s, databases: {%s}}}
upstreams:
  pg:
    endpoints: [%s]
    pool: {max_size: 60}
    postgres: {user: postgres, password: postgres, dbname: %s}
`, addr, mode, auth, databases, server.Addr(), db), plain)
	return addr
}

// prepareForSuite sets a database up as SQLAlchemy's README.unittests.rst says.
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

// explained returns the reasons in testdata/suites.txt for a suite in a mode, by test.
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

// compareSuites reports the tests whose result differs from the direct run without a reason. A reason is for one test,
// or with an asterisk at its end for all tests whose names begin with it.
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
			t.Logf("%s: %.300s, for a reason in testdata/suites.txt", test, got[test])
			continue
		}
		t.Errorf("%s: %.700s; straight on the server: %.300s", test, got[test], want[test])
	}
	t.Logf("%d of %d tests end otherwise", differ, len(want))
}

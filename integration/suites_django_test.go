//go:build suites

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/pgtest"
)

// djangoSuite is those of Django's tests that use the database most. They make databases and drop them, so that the gateway
// logs in as its clients, to the databases that they ask for.
var djangoSuite = suite{
	unpack: func(t *testing.T) string { return unpackPyPI(t, "Django", []string{"psycopg-pool==3.3.3"}) },
	run: func(t *testing.T, dir string, at place) map[string]string {
		report := filepath.Join(dir, at.mode+".xml")
		cmd := clienttest.Python(t, append([]string{"-W", "ignore", "runtests.py", "--settings", "django_suite_settings", "--noinput", "--parallel", "1"}, djangoLabels...)...)
		cmd.Dir = filepath.Join(dir, "source", "tests")
		cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "SUITE_REPORT="+report,
			"PYTHONPATH="+filepath.Dir(clienttest.Program(t, "django_suite_settings.py"))+":"+filepath.Join(dir, "needs")), libpqEnvironment(at)...)
		out, err := cmd.CombinedOutput() // not 0 where a test fails
		outcomes, readErr := readReport(report)
		if readErr != nil {
			t.Fatalf("%v: %v\n%s", readErr, err, out)
		}
		return outcomes
	},
	gateway: func(t *testing.T, server *pgtest.Cluster, at *place) {
		addr := address(t)
		startGateway(t, fmt.Sprintf(`listeners:
  - {name: db, protocol: postgres, listen: %s, upstream: pg, postgres: {mode: %s, auth: trust}}
upstreams:
  pg:
    endpoints: [%s]
    pool: {max_size: 5}
    postgres: {login_as: client}
`, addr, at.mode, server.Addr()), plain)
		at.listenAt(t, addr)
	},
}

// djangoLabels are the directories of tests.
var djangoLabels = []string{
	"aggregation", "backends", "basic", "bulk_create", "cache", "db_functions", "delete", "expressions", "get_or_create", "inspectdb", "introspection",
	"migrations", "model_fields", "multiple_database", "postgres_tests", "queries", "raw_query", "schema", "select_for_update", "servers", "sessions_tests",
	"test_runner", "transaction_hooks", "transactions", "update",
}

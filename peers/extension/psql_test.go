package extension_test

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
)

// psql runs some statements by psql, several times over.
func psql(t *testing.T, cluster *pgtest.Cluster, address string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		cmd := exec.Command(cluster.Bin("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", host, "-p", port, "-U", cluster.Superuser(), "postgres",
			"-c", "select sum(i) from generate_series(1, 100000) i", "-c", "select length(repeat('x', 3000000))", "-c", "create table if not exists t (i int)",
			"-c", "begin; insert into t values (1); commit")
		cmd.Env = append(cmd.Environ(), "PGPASSWORD="+cluster.Password(), "PGCONNECT_TIMEOUT=30")
		out, err := cmd.CombinedOutput()
		if text := strings.Fields(string(out)); err != nil || len(text) < 2 || text[0] != "5000050000" || text[1] != "3000000" {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

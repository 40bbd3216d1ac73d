package integration

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestReadOnlySQLiteFile runs the gateway as a user who can read the file but not write it. root can always write.
func TestReadOnlySQLiteFile(t *testing.T) {
	dir := sharedDir(t)
	file := filepath.Join(dir, "app.db")
	makeDatabase(t, file, "create table t (n int); insert into t values (1)")
	if err := os.Chmod(file, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o755) })
	listen := address(t)
	g := startGateway(t, sqliteConfig(listen, file), verbose, unprivileged)
	if out, code := psql(t, sqliteDSN(listen), "select n from t"); code != 0 || out != "1" {
		t.Errorf("reading: %q, exit code %d", out, code)
	}
	wantState(t, tryQuery(t, sqliteDSN(listen), "insert into t values (2)"), "25006")
	g.awaitLog("read-only")
}

// unprivileged runs the gateway as nobody if the test is run by root.
func unprivileged(g *gateway) {
	if os.Getuid() == 0 {
		g.as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
}

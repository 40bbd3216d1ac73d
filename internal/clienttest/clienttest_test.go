package clienttest_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/clienttest"
)

func TestClientsOfEachKindRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	node := write("client.cjs", `console.log(require("pg").Client.name)`)
	java := write("Client.java", `class Client { public static void main(String[] a) { System.out.println(new org.postgresql.Driver().getMajorVersion()); } }`)
	for _, c := range []struct {
		name, want string
		run        func() ([]byte, error)
	}{
		{"python", "asyncpg", clienttest.Python(t, "-c", "import asyncpg; print(asyncpg.__name__)").CombinedOutput},
		{"tool", "schemathesis", clienttest.PythonTool(t, "schemathesis", "--version").CombinedOutput},
		{"node", "Client", clienttest.Node(t, node).CombinedOutput},
		{"go", "grpcurl", clienttest.GoTool(t, "grpcurl", "-version").CombinedOutput},
		{"java", "42", clienttest.Java(t, java).CombinedOutput},
	} {
		out, err := c.run()
		if err != nil || !strings.Contains(strings.ToLower(string(out)), strings.ToLower(c.want)) {
			t.Errorf("%s: %v, %q, want %q", c.name, err, out, c.want)
		}
	}
}

// recorder is a testing.TB that records how it was failed.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, _ ...any) {
	r.fatal = format
	runtime.Goexit()
}

func TestMissingClientsFailLoudly(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		clienttest.Python(r, "-c", "")
	}()
	<-done
	if !strings.Contains(r.fatal, "make test-deps") {
		t.Errorf("failed with %q", r.fatal)
	}
}

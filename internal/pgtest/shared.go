package pgtest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared is the one cluster of this test binary.
var shared struct {
	mu        sync.Mutex // held while the cluster starts, so that it starts once
	installed bool       // Runner will stop it
	cluster   *Cluster
	err       error
	opts      []Option
}

// Runner returns tests that stop the cluster started by [Shared] after they have run. Pass it to leaktest.Main in
// TestMain.
func Runner(m interface{ Run() int }, opts ...Option) interface{ Run() int } {
	return runner{m, opts}
}

type runner struct {
	m    interface{ Run() int }
	opts []Option
}

// Run runs the tests and then removes the shared cluster.
func (r runner) Run() int {
	shared.mu.Lock()
	shared.installed, shared.opts = true, r.opts
	shared.mu.Unlock()
	code := r.m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.cluster == nil {
		return code
	}
	if err := shared.cluster.remove(); err != nil {
		fmt.Fprintf(os.Stderr, "pgtest: %v\n", err)
		return max(code, 1)
	}
	return code
}

// Shared returns the cluster of the test binary. The first call starts it. Tests share its
// databases and roles, so they must use their own names and never stop it.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	c, err := startShared()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c
}

// SharedDSN returns the connection string of [Shared]'s superuser for examples, which
// have no testing.TB. It panics when the server cannot be started.
func SharedDSN() string {
	c, err := startShared()
	if err != nil {
		panic(fmt.Sprintf("pgtest: %v", err))
	}
	return c.DSN(superuser, password, "postgres")
}

func startShared() (*Cluster, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.installed {
		return nil, errors.New("a shared server needs func TestMain(m *testing.M) { leaktest.Main(pgtest.Runner(m)) }, which stops it")
	}
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = start(shared.opts)
	}
	return shared.cluster, shared.err
}

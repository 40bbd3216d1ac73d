package pgtest

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// WithStandbys makes a cluster that can have standbys: see [Cluster.Standby].
func WithStandbys() Option {
	return func(o *options) {
		o.settings = append(o.settings, [2]string{"wal_level", "replica"}, [2]string{"max_wal_senders", "10"})
		o.hba = append(o.hba, "local replication all trust")
	}
}

// Standby starts a streaming standby, which has the options of its primary. It is stopped and removed at the end of the test.
func (c *Cluster) Standby(t testing.TB) *Cluster {
	t.Helper()
	s := &Cluster{opts: c.opts, server: c.server, as: c.as, primary: c}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	if err := s.create(); err != nil {
		t.Fatalf("pgtest: standby: %v", err)
	}
	return s
}

// Promote makes a standby a primary, and returns when it takes writes.
func (c *Cluster) Promote(t testing.TB) {
	t.Helper()
	c.primary = nil
	c.Exec(t, fmt.Sprintf("SELECT pg_promote(true, %d)", int(startTimeout/time.Second)))
}

// Follow makes a primary that was stopped the standby of another one, and starts it. Everything that it had written must
// have reached the other one.
func (c *Cluster) Follow(t testing.TB, primary *Cluster) {
	t.Helper()
	c.primary = primary
	err := c.configure()
	if err == nil {
		err = c.launch()
	}
	if err != nil {
		t.Fatalf("pgtest: follow: %v", err)
	}
}

// Freeze stops the server and all its processes with SIGSTOP, like a machine that hangs, until Thaw or the end of the
// test. It needs Linux.
func (c *Cluster) Freeze(t testing.TB) {
	t.Helper()
	if err := freezeAll(c.getProc().Cmd.Process.Pid); err != nil {
		t.Fatalf("pgtest: freeze: %v", err)
	}
}

// Thaw ends a Freeze.
func (c *Cluster) Thaw(t testing.TB) {
	t.Helper()
	if err := thawAll(c.getProc().Cmd.Process.Pid); err != nil {
		t.Fatalf("pgtest: thaw: %v", err)
	}
}

// backup makes the data directory of a standby.
func (c *Cluster) backup() error {
	p := c.primary
	cmd := c.as.command(filepath.Join(c.server.bin, "pg_basebackup"), "-h", p.SocketDir(), "-p", fmt.Sprint(p.port), "-U", superuser,
		"-D", c.data(), "-X", "stream", "-c", "fast", "--no-sync", "--no-manifest")
	cmd.Dir, cmd.Env = c.dir, environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	return nil
}

// follows returns the setting of a standby, and writes the file that makes it one.
func (c *Cluster) follows() ([][2]string, error) {
	if c.primary == nil {
		return nil, nil
	}
	conninfo := fmt.Sprintf("host=%s port=%d user=%s", c.primary.SocketDir(), c.primary.port, superuser)
	return [][2]string{{"primary_conninfo", conninfo}, {"wal_retrieve_retry_interval", "100ms"}}, c.write("standby.signal", "")
}

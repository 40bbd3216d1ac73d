package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/freeport"
)

const (
	startTimeout = 60 * time.Second // a slow, busy machine; crash recovery included
	stopTimeout  = time.Minute      // likewise; then it is killed
	startTries   = 5                // another process may take the port we found free

	clusterPrefix = "hp-pg-" // of the directories' names
)

// sweep removes what killed test binaries have left, once in each.
var sweep sync.Once

// Cluster is one PostgreSQL server with its own data. Its methods may be called concurrently,
// except Stop, Kill and Restart, which must not overlap.
type Cluster struct {
	opts   options
	server server
	as     account
	dir    string   // holds data/ and log; the socket is in data/
	lock   *os.File // locks dir, see removeAbandoned; nil where there are no such locks
	port   int

	primary *Cluster // that the cluster is a standby of; nil = of none

	mu   sync.Mutex // guards proc; never held while waiting for the process
	proc *conntest.Process
}

// Start starts a server. It is stopped and removed at the end of the test. If no server is
// installed, the test fails with the name of the package to install.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c, err := start(opts)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := c.remove(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return c
}

func start(opts []Option) (*Cluster, error) {
	o := options{auth: Trust}
	for _, opt := range opts {
		opt(&o)
	}
	s, err := findServer()
	if err != nil {
		return nil, err
	}
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, server: s, as: as}
	if err := c.create(); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	return c, nil
}

// create makes the data directory and starts the server on a free port.
func (c *Cluster) create() error {
	sweep.Do(func() { removeAbandoned(tempDir()) })
	var err error
	if c.dir, err = c.as.mkdir(clusterPrefix); err != nil {
		return err
	}
	if c.lock, err = hold(c.dir); err != nil {
		return err
	}
	if err := c.fill(); err != nil {
		return err
	}
	if err := c.configure(); err != nil {
		return err
	}
	for try := 1; ; try++ {
		if c.port, err = freeport.Get(); err != nil {
			return err
		}
		if err = c.launch(); err == nil {
			break
		}
		if try == startTries || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
	}
	if c.opts.auth == MD5 && c.primary == nil {
		return c.exec("SET password_encryption = 'md5'", fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", superuser, password))
	}
	return nil
}

// fill makes the data directory.
func (c *Cluster) fill() error {
	if c.primary != nil {
		return c.backup()
	}
	tmpl, err := template(c.server, c.as)
	if err != nil {
		return err
	}
	return copyTemplate(tmpl, c.data(), c.as)
}

// launch starts the server and waits until it answers.
func (c *Cluster) launch() error {
	logFile, err := os.Create(c.logPath())
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }() // the server has its own descriptor
	cmd := c.as.command(filepath.Join(c.server.bin, "postgres"), "-D", c.data(), "-p", strconv.Itoa(c.port))
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.dir, environment(), logFile, logFile
	p, err := conntest.StartProcess(cmd)
	if err != nil {
		return err
	}
	c.setProc(p)
	return c.waitReady(p)
}

// waitReady connects until the server accepts, the process ends, or startTimeout has passed.
func (c *Cluster) waitReady(p *conntest.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, c.socketDSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.Done:
			return fmt.Errorf("the server ended while starting: %w\n%s", p.Err, c.Log())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the server does not answer after %s: %w\n%s", startTimeout, err, c.Log()), killAll(p.Cmd.Process.Pid))
		case <-tick.C:
		}
	}
}

// Stop shuts the server down in fast mode: clients get 57P01 and are disconnected. It returns when
// the server has ended. Stopping a stopped server is no error.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	if err := c.stop(); err != nil {
		t.Fatalf("pgtest: stop: %v", err)
	}
}

// Kill kills the server and all its backends with SIGKILL, like a crash: clients see a reset
// without an error message. It returns when the server has ended.
func (c *Cluster) Kill(t testing.TB) {
	t.Helper()
	p := c.getProc()
	if p == nil || p.Ended() {
		t.Fatal("pgtest: kill: the server is not running")
	}
	if err := killAll(p.Cmd.Process.Pid); err != nil {
		t.Fatalf("pgtest: kill: %v", err)
	}
	<-p.Done
}

// Restart starts the server again with the same port and data. It stops a running server first, and
// returns when the server answers.
func (c *Cluster) Restart(t testing.TB) {
	t.Helper()
	if err := c.stop(); err != nil {
		t.Fatalf("pgtest: restart: %v", err)
	}
	err := c.launch()
	for until := time.Now().Add(startTimeout); err != nil && time.Now().Before(until) && c.oldOnesLeft(); err = c.launch() {
		runtime.Gosched()
	}
	if err != nil {
		t.Fatalf("pgtest: restart: %v", err)
	}
}

// oldOnesLeft reports whether the server did not start because a process of the killed one has not ended yet.
func (c *Cluster) oldOnesLeft() bool {
	return strings.Contains(c.Log(), "pre-existing shared memory block")
}

func (c *Cluster) stop() error {
	p := c.getProc()
	if p == nil || p.Ended() {
		return nil
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-p.Done:
		return nil
	case <-time.After(stopTimeout):
	}
	err := killAll(p.Cmd.Process.Pid)
	<-p.Done
	return errors.Join(fmt.Errorf("the server did not stop within %s and was killed\n%s", stopTimeout, c.Log()), err)
}

// remove stops the server at once and deletes its files, and shared memory left by a killed server.
func (c *Cluster) remove() error {
	var err error
	if p := c.getProc(); p != nil && !p.Ended() {
		err = killAll(p.Cmd.Process.Pid)
		<-p.Done
	}
	if c.dir == "" {
		return err
	}
	err = errors.Join(err, removeSegment(filepath.Join(c.data(), "postmaster.pid")), os.RemoveAll(c.dir))
	if c.lock != nil {
		err = errors.Join(err, c.lock.Close())
	}
	return err
}

func (c *Cluster) setProc(p *conntest.Process) { c.mu.Lock(); defer c.mu.Unlock(); c.proc = p }
func (c *Cluster) getProc() *conntest.Process  { c.mu.Lock(); defer c.mu.Unlock(); return c.proc }

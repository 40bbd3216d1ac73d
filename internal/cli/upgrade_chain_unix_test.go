//go:build unix

package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// chain is a gateway that is upgraded again and again, with a client of each process.
type chain struct {
	*upgraded
	pids    []int      // of all processes, the one that serves last
	clients []net.Conn // of each process, of the TCP listener
}

// startChain runs a gateway with a PostgreSQL listener, if there is a server, and a TCP listener.
func startChain(t *testing.T, db *pgtest.Cluster) *chain {
	t.Helper()
	u := &upgraded{dir: t.TempDir(), tcp: conntest.FreeAddress(t), web: conntest.FreeAddress(t), admin: conntest.FreeAddress(t)}
	text := fmt.Sprintf("admin: %q\ndrain_timeout: 5m\nupstreams:\n  echo: {endpoints: [%q]}\n", u.admin, conntest.Serve(t, conntest.Echo))
	listeners := fmt.Sprintf("listeners:\n  - {name: tcp, protocol: tcp, listen: %q, upstream: echo}\n", u.tcp)
	if db != nil {
		text += fmt.Sprintf("  pg: {endpoints: [%q], postgres: {user: %q, dbname: postgres}}\n", db.Addr(), db.Superuser())
		listeners += fmt.Sprintf("  - {name: db, protocol: postgres, listen: %q, upstream: pg, postgres: {auth: trust}}\n", u.web)
	}
	if err := os.WriteFile(filepath.Join(u.dir, "c.yaml"), []byte(text+listeners), 0o600); err != nil {
		t.Fatal(err)
	}
	u.process = startProcess(t, "", "serve", filepath.Join(u.dir, "c.yaml"))
	u.until(t, "admin page")
	u.pid = u.Cmd.Process.Pid
	c := &chain{upgraded: u, pids: []int{u.pid}}
	c.connect(t)
	return c
}

// connect adds a client of the process that serves.
func (c *chain) connect(t *testing.T) {
	t.Helper()
	client := conntest.Dial(t, c.tcp)
	conntest.Exchange(t, client, "hello")
	c.clients = append(c.clients, client)
}

// next has another process take over, which gets a client.
func (c *chain) next(t *testing.T) {
	t.Helper()
	c.upgrade(t)
	c.pids = append(c.pids, c.pid)
	c.until(t, "msg=draining")
	c.connect(t)
}

// ctl runs an action of `headpond ctl`, which must succeed.
func (c *chain) ctl(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := execute(append([]string{"ctl", "-admin", c.admin}, args...)...)
	if code != exitOK {
		t.Fatalf("ctl %v: %d %s%s", args, code, stdout, stderr)
	}
	return stdout
}

// shown waits until `ctl clients` shows a client, and returns its ID. On a busy machine a process may answer late.
func (c *chain) shown(t *testing.T, client net.Conn) (id string) {
	t.Helper()
	conntest.Eventually(t, "the client is shown", func() bool { id = c.idOf(t, client); return id != "" })
	return id
}

// idOf returns the ID that `ctl clients` shows for a client, "" if it does not show it.
func (c *chain) idOf(t *testing.T, client net.Conn) string {
	t.Helper()
	for line := range strings.Lines(c.ctl(t, "clients")) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == client.LocalAddr().String() {
			return fields[0]
		}
	}
	return ""
}

// shows waits until `ctl status` has a line with these words.
func (c *chain) shows(t *testing.T, words ...any) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + strings.ReplaceAll(strings.TrimSpace(fmt.Sprintln(words...)), " ", ` +`))
	conntest.Eventually(t, line.String(), func() bool { return line.MatchString(c.ctl(t, "status")) })
}

// TestUpgradeChain: three processes, of which the last lists and ends the sessions of all. One that hangs delays nobody, and
// is shown as such until it goes on; another may be killed.
func TestUpgradeChain(t *testing.T) {
	c := startChain(t, nil)
	c.next(t)
	c.next(t)
	ids := make([]string, len(c.clients))
	for i, client := range c.clients {
		ids[i] = c.shown(t, client)
		if want := fmt.Sprintf("@%d", c.pids[i]); strings.HasSuffix(ids[i], want) != (i < 2) {
			t.Errorf("the client of process %d of %v has the ID %q", i, c.pids, ids[i])
		}
	}
	for _, old := range c.pids[:2] {
		c.shows(t, old, "draining", 1)
	}
	if err := syscall.Kill(c.pids[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "a process that hangs lists no session", func() bool { return c.idOf(t, c.clients[0]) == "" })
	c.shows(t, c.pids[0], "does not answer", 1)
	if id := c.shown(t, c.clients[1]); id != ids[1] {
		t.Errorf("the client of the other process has the ID %q, had %q", id, ids[1])
	}
	if code, _, stderr := execute("ctl", "-admin", c.admin, "kill", ids[0]); code != exitProblem {
		t.Errorf("a session of a process that hangs was killed: %s", stderr)
	}
	c.next(t) // without a link to the first process
	if err := syscall.Kill(c.pids[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.pids[0], syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	conntest.Exchange(t, c.clients[0], "still there")
	conntest.Eventually(t, "the killed process is gone", func() bool { return !strings.Contains(c.ctl(t, "status"), fmt.Sprint(c.pids[1], " ")) })
	third := c.shown(t, c.clients[2])
	conntest.Eventually(t, "the session was killed", func() bool {
		_, _, _ = execute("ctl", "-admin", c.admin, "kill", third) // may be late
		_ = c.clients[2].SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := c.clients[2].Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	})
	conntest.Exchange(t, c.clients[3], "still there")
}

// TestUpgradeOnlyOnce: two signals in succession start one new process, and a process that has handed over starts none.
func TestUpgradeOnlyOnce(t *testing.T) {
	c := startChain(t, nil)
	for range 3 {
		c.signal(t, syscall.SIGUSR2)
	}
	c.next(t)
	c.signal(t, syscall.SIGUSR2)
	c.shows(t, c.pids[0], "draining", 1)
	if status := c.ctl(t, "status"); strings.Count(status, " draining ") != 1 {
		t.Errorf("more than one old process:\n%s", status)
	}
	c.next(t)
	c.shows(t, c.pids[0], "draining", 1)
	c.shows(t, c.pids[1], "draining", 1)
}

// TestUpgradeAndPsql: Ctrl-C of psql cancels statements of sessions of old processes.
func TestUpgradeAndPsql(t *testing.T) {
	db := pgtest.Start(t)
	c := startChain(t, db)
	host, port, _ := net.SplitHostPort(c.web)
	watch := db.Connect(t)
	sleep := func(name string) (*conntest.Process, *strings.Builder) {
		said := &strings.Builder{}
		cmd := exec.Command(db.Bin("psql"), "-X", "-h", host, "-p", port, "-U", "u", "-c", "select pg_sleep(600) /* "+name+" */", "postgres")
		cmd.Env, cmd.Stderr = append(os.Environ(), "PGSSLMODE=disable"), said
		p := conntest.Start(t, cmd)
		conntest.Eventually(t, name+" sleeps", func() (sleeps bool) {
			err := watch.QueryRow(t.Context(), "select count(*) > 0 from pg_stat_activity where wait_event = 'PgSleep' and query like $1", "%/* "+name+" */%").Scan(&sleeps)
			return err == nil && sleeps
		})
		return p, said
	}
	first, firstSaid := sleep("first")
	c.next(t)
	second, secondSaid := sleep("second")
	c.next(t)
	for p, said := range map[*conntest.Process]*strings.Builder{first: firstSaid, second: secondSaid} {
		if err := p.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		_ = p.Wait()
		if !strings.Contains(said.String(), "canceling statement due to user request") {
			t.Errorf("psql: %s", said)
		}
	}
}

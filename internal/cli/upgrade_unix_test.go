//go:build unix

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// TestUpgrade: another process gets the address as soon as the drain has begun, while sessions of the old one continue.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	serve := func(name, listen, backend string) *process {
		text := fmt.Sprintf("admin: 127.0.0.1:0\nlisteners: [{name: raw, protocol: tcp, listen: %q, upstream: u}]\nupstreams: {u: {endpoints: [%q]}}\n", listen, backend)
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return startProcess(t, "", "serve", file)
	}
	echo := conntest.Serve(t, conntest.Echo)
	before := serve("a.yaml", "127.0.0.1:0", echo)
	address := addressAttr.FindStringSubmatch(before.until(t, "msg=listening"))[1]
	before.until(t, "admin page")
	session := conntest.Dial(t, address)
	conntest.Exchange(t, session, "before")

	before.signal(t, syscall.SIGTERM)
	before.until(t, "msg=draining")
	after := serve("b.yaml", address, echo)
	after.until(t, "admin page")
	if err := conntest.RoundTrip(address, "to the new one"); err != nil {
		t.Error(err)
	}
	conntest.Exchange(t, session, "still there")
	_ = session.Close()
	before.until(t, "msg=stopped")
	if err := before.Wait(); err != nil {
		t.Error(err)
	}
}

// upgraded is the gateway of an upgrade: its present process and its clients.
type upgraded struct {
	*process
	pid                  int // of the process that serves
	dir, tcp, web, admin string
}

// startUpgraded runs a gateway with a TCP, a Unix and a UDP listener.
func startUpgraded(t *testing.T, engine string) *upgraded {
	t.Helper()
	u := &upgraded{dir: t.TempDir(), tcp: conntest.FreeAddress(t), web: conntest.FreeAddress(t), admin: conntest.FreeAddress(t)}
	u.configure(t, engine, "")
	u.process = startProcess(t, "", "serve", filepath.Join(u.dir, "c.yaml"))
	u.until(t, "admin page")
	u.pid = u.Cmd.Process.Pid
	return u
}

// configure writes the configuration; more is added to it.
func (u *upgraded) configure(t *testing.T, engine, more string) {
	t.Helper()
	text := fmt.Sprintf(`
engine: %s
admin: %q
drain_timeout: 1m
listeners:
  - {name: tcp, protocol: tcp, listen: %q, upstream: u}
  - {name: unix, protocol: tcp, listen: "unix:%s/a socket", upstream: u}
  - {name: udp, protocol: udp, listen: %q, upstream: datagrams}
  - {name: web, protocol: http, listen: %q, upstream: server}
upstreams:
  u: {endpoints: [%q]}
  server: {endpoints: [%q]}
  datagrams: {endpoints: [%q]}
`, engine, u.admin, u.tcp, u.dir, u.tcp, u.web, conntest.Serve(t, conntest.Echo), conntest.Serve(t, answer), echoUDP(t)) + more
	if err := os.WriteFile(filepath.Join(u.dir, "c.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// echoUDP answers datagrams with their payload.
func echoUDP(t *testing.T) (address string) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
	return c.LocalAddr().String()
}

var successorAttr = regexp.MustCompile(`successor=(\d+)`)

// upgrade asks the present process for an upgrade and waits until the next one serves.
func (u *upgraded) upgrade(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(u.pid, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(successorAttr.FindStringSubmatch(u.until(t, "upgraded"))[1])
	if err != nil {
		t.Fatal(err)
	}
	u.pid = pid
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
}

// exchange connects, sends a word, and reads it back; "http" is a request.
func (u *upgraded) exchange(network string) error {
	address := u.tcp
	switch network {
	case "unix":
		address = filepath.Join(u.dir, "a socket")
	case "http":
		resp, err := http.Get("http://" + u.web)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	}
	c, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	buf := make([]byte, 4)
	if _, err := io.WriteString(c, "word"); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "word" {
		return fmt.Errorf("%q, %w", buf, err)
	}
	return nil
}

// TestUpgradeBySignal: SIGUSR2 starts the program again, clients that connect meanwhile are all served, sessions continue
// where they are, and the addresses stay with the last process.
func TestUpgradeBySignal(t *testing.T) {
	for _, engine := range []string{"auto", "epoll", "goroutine"} {
		t.Run(engine, func(t *testing.T) { testUpgradeBySignal(t, engine) })
	}
}

func testUpgradeBySignal(t *testing.T, engine string) {
	u := startUpgraded(t, engine)
	before := u.process
	session := conntest.Dial(t, u.tcp)
	conntest.Exchange(t, session, "before")
	var clients sync.WaitGroup
	var done atomic.Bool
	var served atomic.Int64
	for i := range 9 {
		network := []string{"tcp", "unix", "http"}[i%3]
		clients.Go(func() {
			for !done.Load() {
				if err := u.exchange(network); err != nil {
					t.Errorf("%s, after %d: %v", network, served.Load(), err)
					return
				}
				served.Add(1)
			}
		})
	}
	for range 4 {
		u.upgrade(t)
		for now := served.Load(); !t.Failed() && served.Load() < now+100; {
			_ = u.exchange("tcp")
		}
	}
	done.Store(true)
	clients.Wait()
	conntest.Exchange(t, session, "still there")
	conntest.Eventually(t, "UDP is served again", func() bool {
		c, err := net.Dial("udp", u.tcp)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "datagram")
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, _ := c.Read(make([]byte, 100))
		return n == len("datagram")
	})
	resp, err := http.Get("http://" + u.admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %s", body)
	}
	_ = session.Close()
	if err := before.Wait(); err != nil {
		t.Error(err)
	}
	for _, network := range []string{"tcp", "unix", "http"} {
		if err := u.exchange(network); err != nil {
			t.Error(err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if err := syscall.Kill(u.pid, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	u.until(t, "msg=stopped")
	conntest.Eventually(t, "the last process removes its socket", func() bool {
		_, err := os.Stat(filepath.Join(u.dir, "a socket"))
		return os.IsNotExist(err)
	})
}

// TestUpgradeFails: a process whose successor cannot start goes on, and has the Unix socket still.
func TestUpgradeFails(t *testing.T) {
	u := startUpgraded(t, "auto")
	u.configure(t, "auto", "nonsense: 1\n")
	u.signal(t, syscall.SIGUSR2)
	if line := u.until(t, "upgrade failed"); !strings.Contains(line, "exit status 1") {
		t.Error(line)
	}
	for _, network := range []string{"tcp", "unix"} {
		if err := u.exchange(network); err != nil {
			t.Error(err)
		}
	}
	u.configure(t, "auto", "")
	u.upgrade(t)
	if err := u.exchange("unix"); err != nil {
		t.Error(err)
	}
}

// TestUpgradeLeavesClientsTime: a client that connected to the old process just before can still use its connection.
func TestUpgradeLeavesClientsTime(t *testing.T) {
	u := startUpgraded(t, "auto")
	requests := func(c net.Conn) error { // more than one, because a drain lets the first finish
		for range 10 {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
				return err
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
		}
		return nil
	}
	var err error
	for range 3 { // on a busy machine the client may be late
		c := conntest.Dial(t, u.web)
		if err := requests(c); err != nil {
			t.Fatal(err)
		}
		u.upgrade(t)
		if err = requests(c); err == nil {
			return
		}
	}
	t.Error(err)
}

// TestUpgradeMovesAdminClients: a probe that keeps its connection to the admin page gets the new process's answer, not that
// the old one drains. That one reports when the new process ends.
func TestUpgradeMovesAdminClients(t *testing.T) {
	u := startUpgraded(t, "auto")
	session := conntest.Dial(t, u.tcp)
	conntest.Exchange(t, session, "before")
	probe := &http.Client{Transport: &http.Transport{}}
	defer probe.CloseIdleConnections()
	ready := func() {
		t.Helper()
		resp, err := probe.Get("http://" + u.admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("/readyz: %s", body)
		}
	}
	ready()
	u.upgrade(t)
	u.until(t, "msg=draining")
	ready()
	if err := syscall.Kill(u.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	u.until(t, "the successor has ended")
	conntest.Exchange(t, session, "after")
}

func TestMayUpgrade(t *testing.T) {
	if err := mayUpgrade(1); !errors.Is(err, errFirstProcess) {
		t.Error(err)
	}
	if err := mayUpgrade(2); err != nil {
		t.Error(err)
	}
}

// TestReloadDuringUpgrade: the new process has a change that was made, and that the old one applied, after the new one had
// begun to read the file.
func TestReloadDuringUpgrade(t *testing.T) {
	u := startUpgraded(t, "auto")
	file := filepath.Join(u.dir, "c.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	u.signal(t, syscall.SIGUSR2)
	w, err := os.OpenFile(file, os.O_WRONLY, 0) // waits until the new process reads
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(u.dir, "changed")
	later := strings.Replace(string(text), "drain_timeout: 1m", "drain_timeout: 2m", 1)
	if err := errors.Join(os.WriteFile(changed, []byte(later), 0o600), os.Rename(changed, file)); err != nil {
		t.Fatal(err)
	}
	u.signal(t, syscall.SIGHUP)
	u.until(t, "drain_timeout changed")
	_, err = w.Write(text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for reloaded := false; pid == 0 || !reloaded; { // in either order
		if !u.log.Scan() {
			t.Fatalf("the log ends; pid %d, reloaded %t", pid, reloaded)
		}
		line := u.log.Text()
		reloaded = reloaded || strings.Contains(line, "drain_timeout changed")
		if m := successorAttr.FindStringSubmatch(line); m != nil && pid == 0 {
			pid, _ = strconv.Atoi(m[1])
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		} else if strings.Contains(line, "msg=stopped") && !reloaded {
			_ = syscall.Kill(pid, syscall.SIGTERM) // the old process has ended, and the log of the new one shall
		}
	}
}

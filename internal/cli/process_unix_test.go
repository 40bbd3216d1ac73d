//go:build unix

package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/freeport"
)

// runVariable makes this test binary run as headpond.
const runVariable = "HEADPOND_TEST_RUN"

func init() {
	if os.Getenv(runVariable) != "" {
		os.Exit(run(env{os.Stdout, os.Stderr}, os.Args[1:]))
	}
}

// process is headpond, running.
type process struct {
	*conntest.Process
	log *bufio.Scanner
	out io.ReadCloser // the source of log
}

// startProcess runs headpond; shell, if not empty, is a shell command to run before.
func startProcess(t *testing.T, shell string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, shell, args...)
}

// startWith is startProcess with files that are open from the start.
func startWith(t *testing.T, files []*os.File, shell string, args ...string) *process {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", shell + ` exec "$0" "$@"`, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), runVariable+"=1", "TMPDIR="+t.TempDir())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = w, w, files
	p := &process{conntest.Start(t, cmd), bufio.NewScanner(r), r}
	_ = w.Close()
	return p
}

// until reads the log up to a line that contains text, and returns the line.
func (p *process) until(t *testing.T, text string) string {
	t.Helper()
	var read strings.Builder
	for p.log.Scan() {
		if strings.Contains(p.log.Text(), text) {
			return p.log.Text()
		}
		read.WriteString(p.log.Text() + "\n")
	}
	t.Fatalf("the log ends without %q:\n%s", text, read.String())
	return ""
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

var addressAttr = regexp.MustCompile(`address=(\S+)`)

// configFile writes a configuration; more is added to its upstreams.
func configFile(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "admin: 127.0.0.1:0\nlisteners: [{name: raw, protocol: tcp, listen: \"127.0.0.1:0\", upstream: u}]\nupstreams:\n  u: {endpoints: [\"127.0.0.1:1\"]}\n" + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLogReaderGoes: clients stay connected after the reader of the log has ended.
func TestLogReaderGoes(t *testing.T) {
	p := startProcess(t, "", "serve", configFile(t, ""))
	page := addressAttr.FindStringSubmatch(p.until(t, "admin page"))[1]
	_ = p.out.Close()
	p.signal(t, syscall.SIGHUP)
	for reloads := ""; !strings.Contains(reloads, `"applied": 1`); { // a line logged without a reader
		resp, err := http.Get("http://" + page + "/api/v1/status")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if reloads = string(body); err != nil {
			t.Fatal(err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	p.signal(t, syscall.SIGTERM)
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// TestLogReaderPauses: clients are served while the log's reader pauses, and the gateway ends
// without delay.
func TestLogReaderPauses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "listeners: [{name: web, protocol: http, listen: \"127.0.0.1:0\", upstream: u, access_log: true}]\nupstreams: {u: {endpoints: [\"127.0.0.1:1\"]}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "", "serve", file)
	address := addressAttr.FindStringSubmatch(p.until(t, "msg=listening"))[1]
	long := strings.Repeat("x", 1000) // appears in the log, so that the pipe is soon full
	for range 200 {
		resp, err := http.Get("http://" + address + "/" + long)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	p.signal(t, syscall.SIGTERM)
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// TestHangupWhileStarting: SIGHUP during the start reloads later and does not end the process.
func TestHangupWhileStarting(t *testing.T) {
	file := configFile(t, "  pg: {endpoints: [\"127.0.0.1:1\"], postgres: {user: u, password: \"file:secret\"}}\n")
	secret := filepath.Join(filepath.Dir(file), "secret")
	if err := syscall.Mkfifo(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "", "serve", file)
	for _, line := range []string{"admin page", "msg=reloaded"} {
		w, err := os.OpenFile(secret, os.O_WRONLY, 0) // waits until the file is read
		if err != nil {
			t.Fatal(err)
		}
		if line == "admin page" {
			p.signal(t, syscall.SIGHUP)
		}
		if _, err := io.WriteString(w, "secret\n"); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		p.until(t, line)
	}
	p.signal(t, syscall.SIGTERM)
	p.until(t, "msg=stopped")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// TestDemoEndsWithItsTerminal: the demo ends and removes its database, but not under nohup.
func TestDemoEndsWithItsTerminal(t *testing.T) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // not ignored: a process inherits ignored signals, which nohup uses
	defer signal.Stop(hup)
	p := startProcess(t, "", "demo", "-port-offset", strconv.Itoa(demoOffset(t)))
	database := strings.Fields(p.until(t, "  database "))[1]
	p.signal(t, syscall.SIGHUP)
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(database); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the database: %v", err)
	}
	p = startProcess(t, `trap "" HUP;`, "demo", "-port-offset", strconv.Itoa(demoOffset(t)))
	p.until(t, "  database ")
	p.signal(t, syscall.SIGHUP)
	p.signal(t, syscall.SIGTERM)
	p.until(t, "msg=stopped")
}

// TestTooFewOpenFiles: they are reported at the start, unless the limit can be raised.
func TestTooFewOpenFiles(t *testing.T) {
	p := startProcess(t, "ulimit -n 300;", "serve", configFile(t, ""))
	if line := p.until(t, "limit of open files"); !strings.Contains(line, "=300 ") || !strings.Contains(line, "=21125") {
		t.Error(line)
	}
	p.until(t, "admin page")
}

// TestAdminPageWithoutFiles: a liveness probe gets an answer even when clients have taken every descriptor.
func TestAdminPageWithoutFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := `admin: 127.0.0.1:0
listeners: [{name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo, max_conns: 1, max_queue: 150, queue_timeout: 1h}]
upstreams: {echo: {endpoints: ["` + conntest.Serve(t, conntest.Echo) + `"]}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	p := startWith(t, slices.Repeat([]*os.File{null}, 220), "ulimit -n 300;", "serve", file)
	raw := addressAttr.FindStringSubmatch(p.until(t, "msg=listening"))[1]
	page := addressAttr.FindStringSubmatch(p.until(t, "admin page"))[1]
	for range 80 {
		conntest.Dial(t, raw)
	}
	p.until(t, "cannot accept a connection")
	// Repeat, because clients wait for every descriptor that becomes free.
	client := &http.Client{Timeout: conntest.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range slices.Repeat([]string{"/livez", "/readyz", "/metrics", "/api/v1/status", "/"}, 10) {
		resp, err := client.Get("http://" + page + path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK && path != "/readyz" { // a listener that cannot accept is not ready
			t.Errorf("%s: %s, %v", path, resp.Status, err)
		}
		_ = resp.Body.Close()
	}
}

// TestClientsLeaveFilesForBackends: max_conns is higher than the limit of open files, which cannot be raised. Idle
// clients then leave enough descriptors for the backend connection of an active one, and a client that finds no room is
// served later.
func TestClientsLeaveFilesForBackends(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "upstreams: {u: {endpoints: [\"" + conntest.Serve(t, answer) + "\"]}}\nlisteners:\n"
	for i := range 60 { // together more than any system's limit
		text += fmt.Sprintf("  - {name: web%d, protocol: http, listen: \"127.0.0.1:0\", upstream: u, max_conns: 10000000, max_queue: 10000000}\n", i)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "ulimit -n 300;", "serve", file)
	p.until(t, "limit of open files is too low")
	web := addressAttr.FindStringSubmatch(p.until(t, "listener=web0"))[1]
	var clients []net.Conn
	for range 290 {
		clients = append(clients, conntest.Dial(t, web))
	}
	dialed := time.Now()
	p.until(t, "cannot accept a connection")
	for _, c := range clients {
		err := asksOnce(c)
		if err != nil && time.Since(dialed) > 10*time.Second { // the time for a head has passed: the machine is busy
			err = asksOnce(conntest.Dial(t, web))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// asksOnce sends a request, wants 200, and closes the connection.
func asksOnce(c net.Conn) error {
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return err
}

// answer is a web server that answers one request of a connection.
func answer(c *net.TCPConn) {
	if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	}
}

// TestRestartAfterAKill: the successor of a killed process gets its address, however soon it starts. Both read a
// password from a pipe, which shows their progress.
func TestRestartAfterAKill(t *testing.T) {
	file := configFile(t, "  pg: {endpoints: [\"127.0.0.1:1\"], postgres: {user: u, password: \"file:secret\"}}\n")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"127.0.0.1:0"`), fmt.Appendf(nil, `"127.0.0.1:%d"`, port), 1)
	secret := filepath.Join(filepath.Dir(file), "secret")
	if err := errors.Join(os.WriteFile(file, text, 0o600), syscall.Mkfifo(secret, 0o600)); err != nil {
		t.Fatal(err)
	}
	var running *process
	for range 4 {
		p := startProcess(t, "", "serve", file)
		w, err := os.OpenFile(secret, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if running != nil {
			_, _ = running.Cmd.Process.Kill(), running.Wait()
		}
		_, _ = io.WriteString(w, "secret\n")
		_ = w.Close()
		p.until(t, "admin page")
		running = p
	}
}

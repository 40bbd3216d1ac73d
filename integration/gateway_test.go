package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

const (
	patience     = conntest.Patience
	drainTimeout = 20 * time.Second // in the configurations of these tests
)

var (
	address  = conntest.FreeAddress
	dial     = conntest.Dial
	exchange = conntest.RoundTrip
)

// gateway is a running headpond.
type gateway struct {
	*process
	t      testing.TB
	config string // path of its configuration file
	admin  string // address
	drain  time.Duration
	log    string // configuration of the log
	built  func() (string, error)
	as     *syscall.SysProcAttr
}

// option changes how a gateway is started.
type option func(*gateway)

// verbose logs at level debug, which includes everyday events such as a client's disconnect.
func verbose(g *gateway) { g.log = "log: {level: debug}\n" }

// plain runs the released binary instead of the one with the race detector.
func plain(g *gateway) { g.built = plainBinary }

// withDrainTimeout sets drain_timeout.
func withDrainTimeout(d time.Duration) option { return func(g *gateway) { g.drain = d } }

func built(t testing.TB, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// startGateway starts `headpond serve` with the configuration plus admin and drain_timeout, and
// waits until it is ready. At the end of the test the gateway must end within its drain timeout plus patience,
// with exit code 0 and without a data race or panic in its log.
func startGateway(t testing.TB, config string, opts ...option) *gateway {
	t.Helper()
	g := &gateway{
		t: t, admin: address(t), config: filepath.Join(sharedDir(t), "headpond.yaml"),
		drain: drainTimeout, built: gatewayBinary,
	}
	for _, opt := range opts {
		opt(g)
	}
	g.write(config)
	cmd := exec.Command(built(t, g.built), "serve", g.config)
	cmd.SysProcAttr = g.as
	g.process = start(t, cmd)
	t.Cleanup(g.finish)
	eventually(t, "the gateway is ready", func() error {
		if g.Ended() {
			t.Fatalf("the gateway ended at start: %v\n%s", g.Err, g.out)
		}
		if code, body := g.get("/readyz"); code != http.StatusOK {
			return fmt.Errorf("/readyz: %d %s", code, body)
		}
		return nil
	})
	return g
}

// sharedDir is a temporary directory that a gateway of another user can read.
func sharedDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hp-it-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write replaces the configuration file. A running gateway reads it at a reload.
func (g *gateway) write(config string) {
	g.t.Helper()
	text := fmt.Sprintf("admin: %s\ndrain_timeout: %s\n%s%s", g.admin, g.drain, g.log, config)
	if engine := os.Getenv("HEADPOND_ENGINE"); engine != "" { // runs the whole suite on one engine
		text += "engine: " + engine + "\n" // last: tests ask for line numbers
	}
	if err := os.WriteFile(g.config, []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// finish ends the gateway as an operator does, unless the test has ended it, and reads its log.
func (g *gateway) finish() {
	if !g.Ended() {
		g.signal(syscall.SIGTERM)
		select {
		case <-g.Done:
		case <-time.After(min(g.drain, patience) + patience):
			g.signal(syscall.SIGQUIT) // writes the goroutines to the log
			<-g.Done
			g.t.Errorf("the gateway did not end after SIGTERM")
		}
		if code := g.Cmd.ProcessState.ExitCode(); code != 0 {
			g.t.Errorf("the gateway's exit code is %d", code)
		}
	}
	for _, bad := range []string{"DATA RACE", "panic:", "goroutine 1 ["} {
		if strings.Contains(g.out.String(), bad) {
			g.t.Errorf("the gateway's output has %q", bad)
		}
	}
	if g.t.Failed() {
		g.t.Logf("configuration:\n%s\nend of the gateway's log:\n%s", readFile(g.t, g.config), tail(g.out.String(), 60))
	}
}

// tail returns the last n lines.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (g *gateway) signal(sig os.Signal) {
	g.t.Helper()
	if err := g.Cmd.Process.Signal(sig); err != nil {
		g.t.Errorf("signal %v: %v", sig, err)
	}
}

// adminClient keeps no connections: they would change the measurements.
var adminClient = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

// get fetches an admin page; code 0 means that there was no answer.
func (g *gateway) get(path string) (code int, body string) {
	resp, err := adminClient.Get("http://" + g.admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(data)
}

// awaitLog waits for a log line that contains all words, in any order and case.
func (g *gateway) awaitLog(words ...string) string {
	g.t.Helper()
	var line string
	eventually(g.t, fmt.Sprintf("a log line with %q", words), func() error {
		if line = g.out.Line(words...); line == "" {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	return line
}

// eventually polls until the condition holds. It fails the test after patience.
func eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	for began := time.Now(); ; {
		err := condition()
		if err == nil {
			return
		}
		waited := time.Since(began)
		if waited > patience {
			t.Fatalf("not within %s: %s: %v", patience, what, err)
		}
		<-time.After(min(max(waited/10, 20*time.Millisecond), 200*time.Millisecond))
	}
}

package integration

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/demo"
	"github.com/headpond/headpond/internal/freeport"
)

// TestDemo runs the commands of the README's first screen literally, except for ports that may be in use on this
// machine.
func TestDemo(t *testing.T) {
	first, err := freeport.Get(demo.TCPPort-demo.PostgresPort, demo.HTTPPort-demo.PostgresPort, demo.AdminPort-demo.PostgresPort)
	if err != nil {
		t.Fatal(err)
	}
	offset := first - demo.PostgresPort
	var ports []string
	for _, port := range []int{demo.PostgresPort, demo.TCPPort, demo.HTTPPort, demo.AdminPort} {
		ports = append(ports, strconv.Itoa(port), strconv.Itoa(port+offset))
	}
	at := strings.NewReplacer(ports...).Replace
	cmd := exec.Command(built(t, plainBinary), "demo", "-port-offset", strconv.Itoa(offset))
	cmd.Dir = sharedDir(t)
	p := start(t, cmd)
	eventually(t, "the demo is ready", func() error {
		if p.Ended() {
			t.Fatalf("the demo ended: %v\n%s", p.Err, p.out)
		}
		code, body, err := get(adminClient, at("http://127.0.0.1:9090/readyz"))
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	for _, c := range []struct{ command, want string }{
		{"psql -h 127.0.0.1 -p 6432 -U demo demo -c 'select count(*) from users' </dev/null", "(1 row)"},
		{"curl -sS --fail 127.0.0.1:8080/", ""},
		{"curl -sS --fail 127.0.0.1:9090/", "<html"},
		{"curl -sS --fail 127.0.0.1:9090/metrics", "headpond_pool_idle"},
		{"curl -sS --fail 127.0.0.1:9090/healthz", "ok"},
		{"curl -sS --fail 127.0.0.1:9090/api/v1/pools", `"pools"`},
	} {
		out, code := shell(t, at(c.command))
		if code != 0 || out == "" || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit code %d, want %q in:\n%s", c.command, code, c.want, out)
		}
	}
	if try := at("psql -h 127.0.0.1 -p 6432 -U demo demo"); !strings.Contains(p.out.String(), try) {
		t.Errorf("the demo does not print the psql line to try:\n%s", p.out)
	}
	netcat(t, at("7000"))
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.awaitEnd(t, patience); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.out)
	}
}

// netcat types a line into `nc 127.0.0.1 port` and reads it back.
func netcat(t *testing.T, port string) {
	t.Helper()
	nc := exec.Command("nc", "127.0.0.1", port)
	in, err := nc.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, nc)
	if _, err := io.WriteString(in, "hello, pond\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nc shows the echo", func() error {
		if got := p.out.String(); got != "hello, pond\n" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	_ = in.Close()
}

func TestVersionAndUsage(t *testing.T) {
	bin := built(t, plainBinary)
	if out, code := run(t, patience, bin, "version"); code != 0 || !strings.Contains(out, "integration") {
		t.Errorf("version: exit code %d: %s", code, out)
	}
	if out, code := run(t, patience, bin, "no-such-command"); code == 0 || !strings.Contains(out, "no-such-command") {
		t.Errorf("an unknown command: exit code %d: %s", code, out)
	}
	if out, code := run(t, patience, bin, "serve", "/nonexistent/headpond.yaml"); code == 0 || !strings.Contains(out, "/nonexistent/headpond.yaml") {
		t.Errorf("a missing file: exit code %d: %s", code, out)
	}
}

// httpClient makes a client whose connections end with the test.
func httpClient(t testing.TB) *http.Client {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 5 * time.Minute}
}

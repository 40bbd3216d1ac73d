package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
)

// TestEveryProtocol serves TCP, HTTP and PostgreSQL (from a SQLite file) at once.
func TestEveryProtocol(t *testing.T) {
	g := run(t, parse(t, `
admin: 127.0.0.1:0
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: web}
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: lite}
upstreams:
  echo: {endpoints: ["{echo}"], pool: {min_idle: 1}}
  web: {endpoints: ["{a}", "{b}"], health: {tcp: true}}
  lite: {endpoints: ["sqlite:{dir}/app.db"], pool: {acquire_timeout: 1m}}
`, "{echo}", echoServer(t), "{a}", webServer(t, "a"), "{b}", webServer(t, "b"), "{dir}", t.TempDir()))
	echo(t, dial(t, g.Addr("raw")), "hello")
	if code, body, err := get(client(t), "http://"+g.Addr("web")+"/"); err != nil || code != 200 || body != "a" && body != "b" {
		t.Errorf("web: %d %q %v", code, body, err)
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "postgres://me@"+g.Addr("db")+"/app")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var n int64
	if err := conn.QueryRow(ctx, "select 40 + 2").Scan(&n); err != nil || n != 42 {
		t.Errorf("select: %d, %v", n, err)
	}
	code, body, err := get(client(t), "http://"+g.Addr("admin")+"/metrics")
	if err != nil || code != 200 || !strings.Contains(body, `headpond_listener_connections_accepted_total{listener="db",protocol="postgres"} `) {
		t.Errorf("metrics: %d %v\n%s", code, err, body)
	}
	lastMinute(t, g, "raw", func() error {
		_, _, err := get(client(t), "http://"+g.Addr("web")+"/")
		return errors.Join(err, conn.QueryRow(ctx, "select 1").Scan(&n))
	})
	for _, u := range g.Snapshot().Upstreams { // what the status advises about depends on it
		if u.Heavy != (u.Name == "lite") || u.Reuses != (u.Name != "echo") {
			t.Errorf("upstream %s: heavy %v, reuses %v", u.Name, u.Heavy, u.Reuses)
		}
	}
	if g.Addr("nobody") != "" {
		t.Error("an address for a listener that does not exist")
	}
}

// lastMinute checks the API's figures of the last minute, after do has used every listener except one that does not
// count.
func lastMinute(t *testing.T, g *gatewaytest.Gateway, uncounted string, do func() error) {
	t.Helper()
	conntest.Eventually(t, "the last minute has the activity", func() bool {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		_, body, err := get(client(t), "http://"+g.Addr("admin")+"/api/v1/status")
		var s admin.Status
		if err == nil {
			err = json.Unmarshal([]byte(body), &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range s.Listeners {
			m := l.LastMinute
			if (m == nil) != (l.Name == uncounted) {
				t.Fatalf("the last minute of %s is %v", l.Name, m)
			}
			if m != nil && (m.Done == 0 || m.PerSecond <= 0 || m.Failed != 0 || m.Seconds.P99 <= 0 || m.Seconds.P99 < m.Seconds.P50) {
				return false
			}
		}
		return true
	})
}

func TestPortInUseNamesListenerAndAddress(t *testing.T) {
	l := conntest.Listen(t)
	defer func() { _ = l.Close() }()
	address := l.Addr().String()
	_, err := gateway.New(parse(t, tcpText, "{listen}", address, "{echo}", echoServer(t)), gateway.Options{})
	if !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), `listener "raw"`) || !strings.Contains(err.Error(), address) {
		t.Errorf("error = %v", err)
	}
}

// TestLogBeginsWithTheStart: before whatever health checks say, and with the file's warnings as lines of the log.
func TestLogBeginsWithTheStart(t *testing.T) {
	text := strings.Replace(tcpText, "upstreams:", "upstreams:\n  spare: {endpoints: [\"127.0.0.1:1\"], health: {tcp: true}}", 1)
	cfg, warnings := config.Parse("test.yaml", []byte(strings.NewReplacer("{listen}", "127.0.0.1:0", "{echo}", echoServer(t)).Replace(text)))
	if cfg == nil || len(warnings) != 1 {
		t.Fatal(warnings)
	}
	r, w := io.Pipe()
	lines := make(chan string, 100)
	go func() {
		for scan := bufio.NewScanner(r); scan.Scan(); {
			lines <- scan.Text()
		}
		close(lines)
	}()
	g, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.NewTextHandler(w, nil)), Warnings: warnings})
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	_ = w.Close()
	first, second := <-lines, <-lines
	if !strings.Contains(first, "msg=starting ") || !strings.Contains(second, "level=WARN") || !strings.Contains(second, "no listener uses it") {
		t.Errorf("the log begins with\n%s\n%s", first, second)
	}
	for range lines {
	}
}

// TestDrainLetsSessionsFinish: the running session continues, new ones are refused, /readyz reports the drain, and Run
// returns nil once the session has ended.
func TestDrainLetsSessionsFinish(t *testing.T) {
	g := run(t, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)))
	address, adminURL := g.Addr("raw"), "http://"+g.Addr("admin")
	if code, body, err := get(client(t), adminURL+"/readyz"); code != 200 {
		t.Fatalf("readyz before: %d %s %v", code, body, err)
	}
	c := dial(t, address)
	echo(t, c, "before")
	g.Stop()
	for code := 200; code != 503; {
		var err error
		if code, _, err = get(client(t), adminURL+"/readyz"); err != nil {
			t.Fatal(err)
		}
	}
	if code, body, err := get(client(t), adminURL+"/metrics"); code != 200 || !strings.Contains(body, "headpond_draining 1") {
		t.Errorf("metrics while draining: %d, %v", code, err)
	}
	echo(t, c, "while draining")
	if err := g.Reload(parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", "127.0.0.1:1")); !errors.Is(err, gateway.ErrClosed) {
		t.Errorf("reload: %v", err)
	}
	_ = c.Close()
	if err := <-g.Result; err != nil {
		t.Errorf("Run = %v", err)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("still listening")
	}
}

func TestDrainTimeoutCutsSessionsOff(t *testing.T) {
	g := run(t, parse(t, strings.Replace(tcpText, "drain_timeout: 10s", "drain_timeout: 1ms", 1), "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)))
	c := dial(t, g.Addr("raw"))
	echo(t, c, "x")
	g.Stop()
	if err := <-g.Result; !errors.Is(err, gateway.ErrCutOff) || !strings.Contains(err.Error(), `"raw"`) {
		t.Errorf("Run = %v", err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the session lives")
	}
}

// TestCloseEndsADrainAtOnce: a second signal does this.
func TestCloseEndsADrainAtOnce(t *testing.T) {
	g := run(t, parse(t, strings.Replace(tcpText, "drain_timeout: 10s", "drain_timeout: 24h", 1), "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)))
	c := dial(t, g.Addr("raw"))
	echo(t, c, "x")
	g.Stop()
	g.Close()
	if err := <-g.Result; !errors.Is(err, gateway.ErrCutOff) {
		t.Errorf("Run = %v", err)
	}
	g.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the session lives")
	}
}

func TestCloseWithoutRun(t *testing.T) {
	address := freeAddresses(t, 1)[0]
	gw, err := gateway.New(parse(t, tcpText, "{listen}", address, "{echo}", echoServer(t)), gateway.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gw.Close()
	if err := gw.Run(context.Background()); !errors.Is(err, gateway.ErrClosed) {
		t.Errorf("Run after Close = %v", err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the address is still bound: %v", err)
	}
	_ = l.Close()
}

// TestStaleSocketIsReplaced: a killed process leaves its unix socket behind; one that is in use is not touched.
func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := parse(t, tcpText, "{listen}", "unix:"+path, "{echo}", echoServer(t))
	if _, err := gateway.New(cfg, gateway.Options{}); !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), `"ss -lxp"`) {
		t.Errorf("a socket in use: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	g := run(t, cfg)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	echo(t, c, "over unix")
	if got := g.Addr("raw"); got != "unix:"+path {
		t.Errorf("address = %s", got)
	}
	file := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(file, []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = gateway.New(parse(t, tcpText, "{listen}", "unix:"+file, "{echo}", "127.0.0.1:1"), gateway.Options{})
	if text, _ := os.ReadFile(file); !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), "no socket") || string(text) != "keep me" {
		t.Errorf("a file in the way: %v, and it is %q", err, text)
	}
}

// TestAdviceToBind: for each reason why a port cannot be bound, the message gives advice.
func TestAdviceToBind(t *testing.T) {
	for err, want := range map[syscall.Errno]string{
		syscall.EADDRINUSE: "ss -ltnp", syscall.EACCES: "CAP_NET_BIND_SERVICE", syscall.ENOENT: "create it", syscall.EADDRNOTAVAIL: "no such address",
		syscall.EMFILE: "LimitNOFILE", syscall.ENFILE: "fs.file-max", syscall.EINVAL: "",
	} {
		if got := gateway.AdviceToBind("127.0.0.1:1", &net.OpError{Op: "listen", Err: os.NewSyscallError("socket", err)}); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%v: %q", err, got)
		}
	}
}

package demo_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/demo"
	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var discard = slog.New(slog.DiscardHandler)

// start runs the demo through the real gateway.
func start(t *testing.T, o demo.Options) (*demo.Demo, *gateway.Gateway) {
	t.Helper()
	o.AnyPort, o.Logger = true, discard
	d, err := demo.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	ready := make(chan struct{})
	gw, err := gateway.New(d.Config, gateway.Options{Logger: discard, Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gw.Close)
	go func() { _ = gw.Run(context.Background()) }()
	<-ready
	return d, gw
}

// TestPrintedCommands runs the commands that the demo prints.
func TestPrintedCommands(t *testing.T) {
	d, gw := start(t, demo.Options{})
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "postgres://demo@"+gw.Addr("db")+"/demo")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for query, want := range map[string]int64{
		"select count(*) from users": 500, "select count(*) from orders": 2000, "select count(*) from products": 12, "select count(*) from sales": 12,
	} {
		var n int64
		if err := conn.QueryRow(ctx, query).Scan(&n); err != nil || n != want {
			t.Errorf("%s = %d, %v; want %d", query, n, err, want)
		}
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	for path, want := range map[string]string{"/": "Hello from backend ", "/headers": `"X-Forwarded-For"`} {
		resp, err := c.Get("http://" + gw.Addr("web") + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %q, %v", path, body, err)
		}
	}
	resp, err := c.Get("http://" + gw.Addr("web") + "/sse")
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("data: event 1 from backend"))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: event 1 from backend" {
		t.Errorf("stream: %q, %v", first, err)
	}
	_ = resp.Body.Close()
	resp, err = c.Post("http://"+gw.Addr("web")+"/v1/chat/completions", "application/json", strings.NewReader(`{"model": "mock", "stream": true, "messages": []}`))
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || !strings.Contains(string(said), `"content":"mock "`) || !strings.HasSuffix(string(said), "data: [DONE]\n\n") {
		t.Errorf("language model: %q, %v", said, err)
	}
	echoes(t, gw.Addr("echo"))
	lines := d.Lines(gw.Addr)
	for _, name := range []string{"db", "web", "echo", "admin"} {
		if _, port, _ := net.SplitHostPort(gw.Addr(name)); !strings.Contains(lines, port) {
			t.Errorf("no line to try for %s:\n%s", name, lines)
		}
	}
}

func echoes(t *testing.T, address string) {
	t.Helper()
	tcp, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	if _, err := io.WriteString(tcp, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = tcp.(*net.TCPConn).CloseWrite()
	if back, err := io.ReadAll(tcp); err != nil || string(back) != "hello" {
		t.Errorf("echo: %q, %v", back, err)
	}
}

func TestDataIsKeptOrRemoved(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "deep", "data")
	for range 2 { // the second time with the database of the first
		d, err := demo.Start(demo.Options{Data: folder, Logger: discard})
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if _, err := os.Stat(filepath.Join(folder, "demo.db")); err != nil {
			t.Errorf("kept database: %v", err)
		}
	}
	d, err := demo.Start(demo.Options{Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if _, err := os.Stat(d.Database()); err == nil {
		t.Error("the temporary database is left behind")
	}
}

func TestConfigIsWhatDesignPromises(t *testing.T) {
	d, err := demo.Start(demo.Options{Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got := map[string]string{"admin": d.Config.Admin}
	for _, l := range d.Config.Listeners {
		got[string(l.Protocol)] = l.Listen
	}
	for what, want := range map[string]string{
		"admin": "127.0.0.1:9090", string(config.Postgres): "127.0.0.1:6432", string(config.HTTP): "127.0.0.1:8080", string(config.TCP): "127.0.0.1:7000",
	} {
		if got[what] != want {
			t.Errorf("%s listens on %s, want %s", what, got[what], want)
		}
	}
	if _, problems := config.Parse("demo.yaml", []byte(d.YAML)); len(problems) > 0 {
		t.Errorf("problems:\n%s", problems)
	}
}

func TestPortsOutOfRange(t *testing.T) {
	for _, offset := range []int{60000, -7000} {
		if _, err := demo.Start(demo.Options{PortOffset: offset}); !errors.Is(err, demo.ErrPorts) {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
}

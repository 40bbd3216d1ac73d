package gateway_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
)

// TestReloadUnderLoad changes endpoints, pool, time-outs and listener settings while clients ask; not one request may fail.
func TestReloadUnderLoad(t *testing.T) {
	a, b := webServer(t, "a"), webServer(t, "b")
	g := run(t, parse(t, webText, "{listen}", "127.0.0.1:0", "{web}", a, "{more}", ""))
	url := "http://" + g.Addr("web") + "/"
	var done atomic.Bool
	var asked atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		c := client(t)
		wg.Go(func() {
			for !done.Load() {
				if code, body, err := get(c, url); err != nil || code != 200 {
					t.Errorf("request failed: %d %q %v", code, body, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	versions := [][]string{
		{"{web}", b, "{more}", ""},                                   // another endpoint
		{"{web}", a, "{more}", ", pool: {max_size: 3, min_idle: 1}"}, // other limits
		{"{web}", a, "{more}", ", connect_timeout: 7s"},              // an upstream built anew
		{"{web}", a + `", "` + b, "{more}", ", balance: round_robin"},
		{"{web}", b, "{more}", ", connect_timeout: 2s, health: {tcp: true}"},
	}
	for i := range 20 {
		before := asked.Load()
		cfg := parse(t, webText, append([]string{"{listen}", "127.0.0.1:0"}, versions[i%len(versions)]...)...)
		if err := g.Reload(cfg); err != nil {
			t.Fatal(err)
		}
		for asked.Load() < before+20 && !t.Failed() {
			if _, _, err := get(client(t), url); err != nil {
				t.Fatal(err)
			}
		}
	}
	done.Store(true)
	wg.Wait()
	if s := g.Snapshot(); s.Reloads.Applied != 20 || s.Reloads.Refused != 0 {
		t.Errorf("reloads = %+v", s.Reloads)
	}
}

// TestReloadMovesAListener: sessions stay, the new address serves, the old one does not.
func TestReloadMovesAListener(t *testing.T) {
	server := echoServer(t)
	old := freeAddresses(t, 1)[0]
	g := run(t, parse(t, tcpText, "{listen}", old, "{echo}", server))
	c := dial(t, old)
	echo(t, c, "before")
	if err := g.Reload(parse(t, tcpText, "{listen}", "localhost:0", "{echo}", server)); err != nil {
		t.Fatal(err)
	}
	echo(t, c, "after")
	if g.Addr("raw") == old {
		t.Fatal("the address did not change")
	}
	echo(t, dial(t, g.Addr("raw")), "new")
	if l, err := net.Listen("tcp", old); err != nil {
		t.Errorf("the old address is still bound: %v", err)
	} else {
		_ = l.Close()
	}
	if got := g.Snapshot().Listeners[0].Address; got != g.Addr("raw") {
		t.Errorf("shown address = %s", got)
	}
}

// TestReloadAddsADatabase: a listener and its upstream come in one reload, from nothing and in place of another protocol.
func TestReloadAddsADatabase(t *testing.T) {
	text := `
listeners: [{name: {name}, protocol: postgres, listen: "{listen}", upstream: lite}]
upstreams: {lite: {endpoints: ["sqlite:{dir}/app.db"], pool: {acquire_timeout: 1m}}}
`
	for _, name := range []string{"raw", "db"} {
		t.Run(name, func(t *testing.T) {
			g := run(t, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)))
			if err := g.Reload(parse(t, text, "{name}", name, "{listen}", "127.0.0.1:0", "{dir}", t.TempDir())); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), "postgres://me@"+g.Addr(name)+"/app")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(context.Background()) }()
			var n int64
			if err := conn.QueryRow(t.Context(), "select 40 + 2").Scan(&n); err != nil || n != 42 {
				t.Errorf("select: %d, %v", n, err)
			}
		})
	}
}

// TestReloadIsAtomicForReaders: the admin page, metrics and Addr may be read at any moment of a reload that moves, adds and removes listeners.
func TestReloadIsAtomicForReaders(t *testing.T) {
	server := echoServer(t)
	versions := []*config.Config{
		parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", server),
		parse(t, tcpText, "{listen}", "localhost:0", "{echo}", server),
		parse(t, strings.Replace(tcpText, "name: raw", "name: other", 1), "{listen}", "127.0.0.1:0", "{echo}", server),
	}
	g := run(t, versions[0])
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			s := g.Snapshot()
			if len(s.Listeners) != 1 || s.Listeners[0].Address == "" {
				t.Errorf("listeners = %+v", s.Listeners)
				return
			}
			_ = g.Addr("raw")
		}
	})
	for i := range 30 {
		if err := g.Reload(versions[i%len(versions)]); err != nil {
			t.Error(err)
			break
		}
	}
	done.Store(true)
	wg.Wait()
}

// TestReloadIsAllOrNothing: one listener can be bound, the other cannot; afterwards everything is as before.
func TestReloadIsAllOrNothing(t *testing.T) {
	taken := conntest.Listen(t)
	defer func() { _ = taken.Close() }()
	freeAddress := freeAddresses(t, 1)[0]
	server := echoServer(t)
	g := run(t, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", server))
	err := g.Reload(parse(t, `
admin: 127.0.0.1:0
listeners:
  - {name: raw, protocol: tcp, listen: "{free}", upstream: other}
  - {name: more, protocol: tcp, listen: "{taken}", upstream: other}
upstreams:
  other: {endpoints: ["127.0.0.1:1"]}
`, "{free}", freeAddress, "{taken}", taken.Addr().String()))
	if !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), `"more"`) {
		t.Fatalf("Reload = %v", err)
	}
	echo(t, dial(t, g.Addr("raw")), "as before")
	s := g.Snapshot()
	if len(s.Listeners) != 1 || len(s.Upstreams) != 1 || s.Upstreams[0].Name != "echo" || s.Reloads.Refused != 1 {
		t.Errorf("snapshot = %+v", s)
	}
	if l, err := net.Listen("tcp", freeAddress); err != nil {
		t.Errorf("an address of the refused reload is still bound: %v", err)
	} else {
		_ = l.Close()
	}
}

// TestReloadAddsAndRemovesListeners: a removed listener's session may finish.
func TestReloadAddsAndRemovesListeners(t *testing.T) {
	server := echoServer(t)
	g := run(t, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", server))
	c := dial(t, g.Addr("raw"))
	echo(t, c, "before")
	err := g.Reload(parse(t, `
listeners: [{name: other, protocol: tcp, listen: "127.0.0.1:0", upstream: echo2}]
upstreams: {echo2: {endpoints: ["{echo}"]}}
`, "{echo}", server))
	if err != nil {
		t.Fatal(err)
	}
	echo(t, c, "still served")
	echo(t, dial(t, g.Addr("other")), "new")
	if g.Addr("raw") != "" || g.Addr("admin") != "" {
		t.Error("the removed listener or admin page is still there")
	}
}

func TestReloadFileRefusesABadFileWhole(t *testing.T) {
	server := echoServer(t)
	file := filepath.Join(t.TempDir(), "headpond.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(strings.NewReplacer("{listen}", "127.0.0.1:0", "{echo}", server).Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tcpText)
	cfg, problems := config.Load(file)
	if cfg == nil {
		t.Fatal(problems)
	}
	g := run(t, cfg)
	write(strings.Replace(tcpText, "upstream: echo", "upstream: ehco", 1) + "nonsense: true\n")
	err := g.ReloadFile()
	if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), `did you mean "echo"?`) || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("ReloadFile = %v", err)
	}
	echo(t, dial(t, g.Addr("raw")), "as before")
	if s := g.Snapshot(); s.Reloads.LastError == "" || s.Reloads.Refused != 1 {
		t.Errorf("reloads = %+v", s.Reloads)
	}
	write(strings.Replace(tcpText, "upstream: echo}", "upstream: echo, max_conns: 7}", 1))
	if err := g.ReloadFile(); err != nil {
		t.Fatal(err)
	}
	if s := g.Snapshot(); s.Reloads.LastError != "" || s.Listeners[0].MaxConns != 7 {
		t.Errorf("snapshot = %+v", s)
	}
}

// TestReloadSaysWhatChanged: also changes outside of listeners and upstreams.
func TestReloadSaysWhatChanged(t *testing.T) {
	var log conntest.Log
	ready := make(chan struct{})
	pairs := []string{"{listen}", "127.0.0.1:0", "{echo}", echoServer(t)}
	g, err := gateway.New(parse(t, tcpText, pairs...), gateway.Options{Logger: log.Logger(), Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Run(t.Context()) }()
	<-ready
	for _, c := range []struct{ text, want string }{
		{tcpText, `changes=nothing`},
		{strings.Replace(tcpText, "10s", "11s", 1), `changes="drain_timeout changed"`},
		{strings.Replace(tcpText, "10s", "11s\nlog: {level: debug}", 1), `changes="log changed"`},
		{strings.Replace(strings.Replace(tcpText, "10s", "11s\nlog: {level: debug}", 1), "admin: 127.0.0.1:0", "", 1), `changes="admin page moves from 127.0.0.1:0 to nowhere"`},
	} {
		if err := g.Reload(parse(t, c.text, pairs...)); err != nil {
			t.Fatal(err)
		}
		if log.Line("msg=reloaded", c.want) == "" {
			t.Errorf("no %s in\n%s", c.want, log.String())
		}
	}
	g.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestReloadWithoutFile(t *testing.T) {
	cfg := parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echoServer(t))
	cfg.File = ""
	if err := run(t, cfg).ReloadFile(); !errors.Is(err, gateway.ErrNoFile) {
		t.Errorf("ReloadFile = %v", err)
	}
}

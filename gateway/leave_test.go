package gateway_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
)

const leaveText = `
drain_timeout: 10s
listeners:
  - {name: a, protocol: tcp, listen: "unix:{dir}/a", upstream: echo}
{more}
upstreams: {echo: {endpoints: ["{echo}"]}}
`

const secondListener = `  - {name: b, protocol: tcp, listen: "unix:{dir}/b", upstream: echo}`

// takeOver starts a gateway that takes sockets over.
func takeOver(t *testing.T, cfg *config.Config, sockets []gateway.Socket) *gateway.Gateway {
	t.Helper()
	ready := make(chan struct{})
	g, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.DiscardHandler), Sockets: sockets, Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- g.Run(context.Background()) }()
	t.Cleanup(func() { g.Close(); <-result })
	<-ready
	return g
}

// TestLeaveKeepsSocketFiles: the file of a socket that the next process serves stays; that of another one is removed.
func TestLeaveKeepsSocketFiles(t *testing.T) {
	server, dir := echoServer(t), t.TempDir()
	before := run(t, parse(t, leaveText, "{more}", strings.ReplaceAll(secondListener, "{dir}", dir), "{echo}", server, "{dir}", dir))
	sockets, err := before.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	cfg := parse(t, leaveText, "{more}", "", "{echo}", server, "{dir}", dir)
	next := takeOver(t, cfg, sockets)
	if err := before.Leave(); err != nil {
		t.Fatal(err)
	}
	if err := before.Reload(cfg); !errors.Is(err, gateway.ErrClosed) {
		t.Errorf("a reload after Leave: %v", err)
	}
	before.Close()
	if _, err := os.Stat(filepath.Join(dir, "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket without a listener: %v", err)
	}
	c, err := net.Dial("unix", filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	echo(t, c, "hello")
	_ = c.Close()
	next.Close()
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of the gateway that has ended: %v", err)
	}
}

// TestLeaveDuringADrain is refused: the drain removes the files of Unix sockets, which another process must not rely on.
func TestLeaveDuringADrain(t *testing.T) {
	dir := t.TempDir()
	g := run(t, parse(t, leaveText, "{more}", "", "{echo}", echoServer(t), "{dir}", dir))
	c, err := net.Dial("unix", filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	echo(t, c, "hello")
	drained := make(chan error, 1)
	go func() { drained <- g.Drain(context.Background()) }()
	conntest.Eventually(t, "it drains", func() bool { return g.Snapshot().Draining })
	if err := g.Leave(); !errors.Is(err, gateway.ErrClosed) {
		t.Error(err)
	}
	_ = c.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// TestReloadWhileAddressIsAwaited: the previous process still has a UDP address. Its listener can be changed meanwhile,
// the gateway is ready, and the address is served as soon as it is free.
func TestReloadWhileAddressIsAwaited(t *testing.T) {
	holder, err := net.ListenPacket("udp", conntest.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	address := holder.LocalAddr().String()
	text := func(upstream, server string) *config.Config {
		return parse(t, udpText, "{engine}", "auto", "{name}", "datagrams", "{address}", address, "{upstream}", upstream, "{server}", server)
	}
	g := takeOver(t, text("one", udpEcho(t, "1")), []gateway.Socket{})
	for _, cfg := range []*config.Config{text("two", udpEcho(t, "2")), text("three", udpEcho(t, "3"))} {
		if err := g.Reload(cfg); err != nil {
			t.Fatal(err)
		}
		if problems := g.Snapshot().NotReady; len(problems) > 0 {
			t.Error(problems)
		}
	}
	_ = holder.Close()
	conntest.Eventually(t, "the address is served", func() bool {
		c, err := net.Dial("udp", address)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		_, _ = c.Write([]byte("hello"))
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		b := make([]byte, 100)
		n, _ := c.Read(b)
		return string(b[:n]) == "3hello"
	})
}

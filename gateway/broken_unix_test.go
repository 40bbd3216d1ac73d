//go:build unix

package gateway_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
)

// breakListener makes accepting from this process's socket at address fail for good.
func breakListener(t *testing.T, address string) {
	t.Helper()
	for fd := range 4096 {
		if n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil || n == 0 {
			continue
		}
		if sa, err := syscall.Getsockname(fd); err != nil {
			t.Fatal(err)
		} else if in, ok := sa.(*syscall.SockaddrInet4); ok && (&net.TCPAddr{IP: in.Addr[:], Port: in.Port}).String() == address {
			if err := syscall.Shutdown(fd, syscall.SHUT_RD); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no such socket")
}

// TestReloadRevivesAListener: a reload restarts a listener that has failed, as its message advises.
func TestReloadRevivesAListener(t *testing.T) {
	address, server := freeAddresses(t, 1)[0], echoServer(t)
	cfg := parse(t, tcpText, "{listen}", address, "{echo}", server)
	g := run(t, cfg)
	breakListener(t, address)
	for len(g.Snapshot().NotReady) == 0 {
		if c, err := net.Dial("tcp", address); err == nil { // wakes the accept loop
			_ = c.Close()
		}
	}
	if err := g.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	if why := g.Snapshot().NotReady; len(why) > 0 {
		t.Error(why)
	}
	echo(t, dial(t, address), "again")
}

// TestReloadWhileAnAddressIsTaken: another program has the address of a listener whose socket has failed. Reloads are applied nevertheless, also one
// that replaces the listener, and the address is opened once it is free. A new address that is taken refuses the reload.
func TestReloadWhileAnAddressIsTaken(t *testing.T) {
	addresses, server := freeAddresses(t, 2), echoServer(t)
	address := addresses[0]
	const text = `
listeners:
  - {name: web, protocol: {protocol}, listen: "{listen}", upstream: {upstream}, max_conns: {conns}}
  - {name: more, protocol: tcp, listen: "{more}", upstream: echo}
upstreams:
  echo: {endpoints: ["{echo}"]}
  site: {endpoints: ["{echo}"]}
`
	with := func(protocol, upstream, conns string) *config.Config {
		return parse(t, text, "{protocol}", protocol, "{upstream}", upstream, "{conns}", conns, "{listen}", address, "{more}", addresses[1], "{echo}", server)
	}
	g := run(t, with("tcp", "echo", "5"))
	session := dial(t, address)
	echo(t, session, "before")
	var taken net.Listener
	for err := error(syscall.EADDRINUSE); err != nil; taken, err = net.Listen("tcp", address) { // the gateway may be first
		breakListener(t, address)
	}
	defer func() { _ = taken.Close() }()
	stopped := func() bool {
		why := strings.Join(g.Snapshot().NotReady, "\n")
		return strings.Contains(why, "stopped on TCP "+address) && strings.Contains(why, "in use by another program")
	}
	if err := g.Reload(with("tcp", "echo", "6")); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the gateway says that the address is taken", stopped)
	if err := g.Reload(with("tcp", "echo", "7")); err != nil {
		t.Fatal(err)
	}
	if s := g.Snapshot(); s.Listeners[0].MaxConns != 7 || !stopped() {
		t.Errorf("max_conns is %d, not ready: %q", s.Listeners[0].MaxConns, s.NotReady)
	}
	echo(t, session, "after")
	echo(t, dial(t, addresses[1]), "the other listener")
	moved := parse(t, tcpText, "{listen}", address, "{echo}", server)
	moved.Listeners[0].Name = "new"
	if err := g.Reload(moved); !errors.Is(err, gateway.ErrListen) {
		t.Errorf("a new listener at a taken address: %v", err)
	}
	if err := g.Reload(with("http", "site", "8")); err != nil {
		t.Fatal(err)
	}
	if s := g.Snapshot(); s.Listeners[0].MaxConns != 8 || !stopped() {
		t.Errorf("replaced: max_conns is %d, not ready: %q", s.Listeners[0].MaxConns, s.NotReady)
	}
	_ = taken.Close()
	conntest.Eventually(t, "the gateway is ready", func() bool { return len(g.Snapshot().NotReady) == 0 })
	_ = dial(t, address)
}

// TestTheLastFileIsApplied: of two reloads at once the one that read the file first, and is slow, does not undo the other.
func TestTheLastFileIsApplied(t *testing.T) {
	dir, server := t.TempDir(), echoServer(t)
	file, secret := filepath.Join(dir, "headpond.yaml"), filepath.Join(dir, "secret")
	write := func(conns, more string) {
		text := strings.NewReplacer("{listen}", "127.0.0.1:0", "{echo}", server, "upstream: echo}", "upstream: echo, max_conns: "+conns+"}").Replace(tcpText) + more
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("1", "")
	cfg, problems := config.Load(file)
	if cfg == nil {
		t.Fatal(problems)
	}
	g := run(t, cfg)
	if err := syscall.Mkfifo(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		var wg sync.WaitGroup
		reload := func() {
			if err := g.ReloadFile(); err != nil {
				t.Error(err)
			}
		}
		write("2", "  pg: {endpoints: [\"127.0.0.1:1\"], postgres: {user: u, password: \"file:secret\"}}\n")
		wg.Go(reload)
		slow, err := os.OpenFile(secret, os.O_WRONLY, 0) // waits until it is read
		if err != nil {
			t.Fatal(err)
		}
		write("3", "")
		wg.Go(reload)
		_, _ = io.WriteString(slow, "secret")
		_ = slow.Close()
		wg.Wait()
		if got := g.Snapshot().Listeners[0].MaxConns; got != 3 {
			t.Fatalf("max_conns is %d", got)
		}
	}
}

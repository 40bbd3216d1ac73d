//go:build unix

package gateway_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/headpond/headpond/gateway/config"
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

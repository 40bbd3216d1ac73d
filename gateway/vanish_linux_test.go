package gateway_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/conntest"
)

// optionsOf returns the options of this process's socket at one address that is connected to another, as the kernel has them.
func optionsOf(t *testing.T, local, peer net.Addr) string {
	t.Helper()
	at := func(address net.Addr, sa unix.Sockaddr, err error) bool {
		in, ok := sa.(*unix.SockaddrInet4)
		return err == nil && ok && in.Port == address.(*net.TCPAddr).Port
	}
	for fd := 3; fd < 1<<12; fd++ {
		to, err := unix.Getpeername(fd)
		if !at(peer, to, err) {
			continue
		}
		if from, err := unix.Getsockname(fd); !at(local, from, err) {
			continue
		}
		get := func(level, option int) int {
			n, err := unix.GetsockoptInt(fd, level, option)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		return fmt.Sprintf("on %d, idle %d, interval %d, count %d, user timeout %d", get(unix.SOL_SOCKET, unix.SO_KEEPALIVE),
			get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT),
			get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
	}
	t.Fatalf("no socket at %v is connected to %v", local, peer)
	return ""
}

// TestKeepAliveOfBothSides reads the options of the gateway's sockets, which are this process's.
func TestKeepAliveOfBothSides(t *testing.T) {
	l := conntest.Listen(t)
	defer func() { _ = l.Close() }()
	const text = `
drain_timeout: 1ms
listeners:
  - {name: l, protocol: tcp, listen: "127.0.0.1:0", upstream: u{clients}}
upstreams:
  u: {endpoints: ["{server}"]{servers}}
`
	file := func(clients, servers string) []string {
		return []string{"{clients}", clients, "{servers}", servers, "{server}", l.Addr().String()}
	}
	g := run(t, parse(t, text, file(", keep_alive: {idle: 20s, interval: 7s, count: 2, tcp_user_timeout: 30s}", ", keep_alive: {count: 4}")...))
	look := func(clients, servers string) {
		t.Helper()
		c := dial(t, g.Addr("l"))
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
		conntest.Want(t, server, "hello") // the session runs
		if got := optionsOf(t, c.RemoteAddr(), c.LocalAddr()); got != clients {
			t.Errorf("clients: %s, want %s", got, clients)
		}
		if got := optionsOf(t, server.RemoteAddr(), l.Addr()); !strings.HasPrefix(got, servers) {
			t.Errorf("servers: %s, want %s", got, servers)
		}
		_ = c.Close()
	}
	look("on 1, idle 20, interval 7, count 2, user timeout 30000", "on 1, idle 15, interval 15, count 4, user timeout 0")
	reload := func(clients, servers string) {
		t.Helper()
		if err := g.Reload(parse(t, text, file(clients, servers)...)); err != nil {
			t.Fatal(err)
		}
	}
	reload("", ", keep_alive: {tcp_user_timeout: 1500ms}")
	look("on 1, idle 15, interval 15, count 9, user timeout 0", "on 1, idle 15, interval 15, count 9, user timeout 1500")
	reload("", "")
	look("on 1, idle 15, interval 15, count 9, user timeout 0", "on 0, ") // the others are the system's
}

//go:build netns

package integration

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/conntest"
)

// netns is a network namespace, until the end of the test.
type netns struct {
	t    *testing.T
	name string
}

func newNetns(t *testing.T, name string) *netns {
	t.Helper()
	n := &netns{t, fmt.Sprintf("hpi%d-%s", os.Getpid(), name)}
	onShell(t, "ip netns add "+n.name)
	t.Cleanup(func() { onShell(t, "ip netns del "+n.name) })
	n.run("ip link set lo up")
	return n
}

// run runs the lines of a script in the namespace.
func (n *netns) run(script string) {
	n.t.Helper()
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line != "" {
			onShell(n.t, "ip netns exec "+n.name+" "+line)
		}
	}
}

func onShell(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// do calls f in the namespace: sockets that it makes belong there.
func (n *netns) do(f func() error) {
	n.t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+n.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		n.t.Fatal(err)
	}
}

// The commands of docs/tcp.md on the gateway's machine.
const transparentRoutes = `
	nft add table inet headpond
	nft add chain inet headpond divert '{ type filter hook prerouting priority mangle; }'
	nft add rule inet headpond divert meta l4proto tcp socket transparent 1 meta mark set 1 accept
	ip rule add fwmark 1 lookup 100
	ip route add local default dev lo table 100
	ip -6 rule add fwmark 1 lookup 100
	ip -6 route add local default dev lo table 100
`

// TestTransparent: a server on another machine sees the addresses of the clients, which are on a third one.
func TestTransparent(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("network namespaces need root")
	}
	client, middle, server := newNetns(t, "client"), newNetns(t, "gateway"), newNetns(t, "server")
	for i, n := range []*netns{client, server} {
		onShell(t, fmt.Sprintf("ip link add gw netns %s type veth peer name %s netns %s", n.name, []string{"clients", "servers"}[i], middle.name))
		own, other := []int{5, 2}[i], []int{1, 1}[i]
		n.run(fmt.Sprintf(`
			ip addr add 10.81.%[1]d.%[2]d/24 dev gw
			ip addr add fd81:%[1]d::%[2]d/64 dev gw nodad
			ip link set gw up
			ip route add default via 10.81.%[1]d.%[3]d
			ip -6 route add default via fd81:%[1]d::%[3]d`, i+1, own, other))
	}
	for i, name := range []string{"clients", "servers"} {
		middle.run(fmt.Sprintf(`
			ip addr add 10.81.%[1]d.1/24 dev %[2]s
			ip addr add fd81:%[1]d::1/64 dev %[2]s nodad
			ip link set %[2]s up`, i+1, name))
	}
	middle.run(transparentRoutes)
	for _, address := range []string{"10.81.2.2:7000", "[fd81:2::2]:7000"} {
		server.do(func() error {
			l, err := net.Listen("tcp", address)
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
				go tellAddresses(l)
			}
			return err
		})
	}
	for _, engine := range []string{"uring", "epoll", "goroutine"} {
		t.Run(engine, func(t *testing.T) { transparentOn(t, engine, client, middle) })
	}
}

func tellAddresses(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String()+"\n")
			_, _ = io.Copy(c, c)
		}()
	}
}

func transparentOn(t *testing.T, engine string, client, middle *netns) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	config := "engine: " + engine + `
listeners:
  - {name: four, protocol: tcp, listen: "10.81.1.1:7004", upstream: four}
  - {name: six, protocol: tcp, listen: "[fd81:1::1]:7006", upstream: six}
upstreams:
  four: {endpoints: ["10.81.2.2:7000"], transparent: true}
  six: {endpoints: ["[fd81:2::2]:7000"], transparent: true}
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", middle.name, built(t, plainBinary), "serve", file)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	for to, from := range map[string]string{"10.81.1.1:7004": "10.81.1.5", "[fd81:1::1]:7006": "fd81:1::5"} {
		var c net.Conn
		conntest.Eventually(t, "the gateway listens", func() bool {
			client.do(func() error { c, _ = net.Dial("tcp", to); return nil })
			return c != nil
		})
		conntest.Want(t, c, from+"\n")
		conntest.Exchange(t, c, strings.Repeat("x", 1<<16))
		_ = c.Close()
	}
}

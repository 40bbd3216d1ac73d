//go:build blackhole

package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// Addresses of the namespace made by scripts/test-blackhole.sh. None is a loopback address, so that the gateway treats
// their owners as other machines.
const (
	hereAddress  = "10.98.0.10"
	soundAddress = "10.98.0.1"
	holeAddress  = "10.98.0.2"
)

// blackHole silently drops all packets from and to holeAddress until the test ends or restore is called.
func blackHole(t *testing.T) (restore func()) {
	t.Helper()
	nft := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("nft", args...).CombinedOutput(); err != nil {
			t.Fatalf("nft %v: %v\n%s", args, err, out)
		}
	}
	nft("add", "table", "ip", "hole")
	nft("add", "chain", "ip", "hole", "in", "{ type filter hook input priority 0; }")
	nft("add", "rule", "ip", "hole", "in", "ip", "saddr", holeAddress, "drop")
	nft("add", "rule", "ip", "hole", "in", "ip", "daddr", holeAddress, "drop")
	open := true
	restore = func() {
		if open {
			open = false
			nft("delete", "table", "ip", "hole")
		}
	}
	t.Cleanup(restore)
	return restore
}

// echoAt runs an echo server at an address. Its connections end with the test; the hole must be gone then.
func echoAt(t *testing.T, host string) string {
	t.Helper()
	address, _ := conntest.ServeAt(t, host+":0", conntest.Echo)
	return address
}

// awaitReset waits until a connection is reset and logs how long that took.
func awaitReset(t *testing.T, what string, c net.Conn, since time.Time) {
	t.Helper()
	if err := conntest.WantGone(t, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: %v, want a reset", what, err)
	}
	t.Logf("%s: reset after %v", what, time.Since(since).Round(10*time.Millisecond))
}

// Settings of keep_alive. The defaults end a silent session after 150 seconds, and one with unacknowledged data after
// 15 minutes: longer than conntest.Patience.
const soonGone = "keep_alive: {idle: 1s, interval: 1s, count: 3, tcp_user_timeout: 3s}"

// TestBlackHoleOfAServer: keep_alive ends the sessions of a server whose packets are dropped, with and without data in
// flight.
func TestBlackHoleOfAServer(t *testing.T) {
	wantNamespace(t)
	listen, server := address(t), echoAt(t, holeAddress)
	g := startGateway(t, fmt.Sprintf(`listeners:
  - {name: raw, protocol: tcp, listen: %q, upstream: u}
upstreams:
  u: {endpoints: [%q], %s}
`, listen, server, soonGone), withDrainTimeout(100*time.Millisecond))
	before := g.footprint()
	silent, asking := dial(t, listen), dial(t, listen)
	conntest.Exchange(t, silent, "hello")
	conntest.Exchange(t, asking, "hello")
	restore, since := blackHole(t), time.Now()
	if _, err := asking.Write([]byte("anybody there?")); err != nil {
		t.Fatal(err)
	}
	awaitReset(t, "a client that has sent something", asking, since)
	awaitReset(t, "a silent client", silent, since)
	eventually(t, "both sessions are counted", func() error { // which may be after their clients have noticed
		if n := g.scrape().errors("raw", "backend_gone"); n != 2 {
			return fmt.Errorf("counted %v of backend_gone, want 2", n)
		}
		return nil
	})
	g.awaitLog("session broke off", "connection timed out")
	restore()
	c := dial(t, listen)
	conntest.Exchange(t, c, "there it is again")
	_ = c.Close()
	g.awaitFootprint(before)
}

// TestBlackHoleOfAClient: keep_alive ends the sessions of clients whose packets are dropped, and their connections to
// servers.
func TestBlackHoleOfAClient(t *testing.T) {
	wantNamespace(t)
	_, port, err := net.SplitHostPort(address(t))
	if err != nil {
		t.Fatal(err)
	}
	listen := net.JoinHostPort(hereAddress, port)
	g := startGateway(t, fmt.Sprintf(`listeners:
  - {name: raw, protocol: tcp, listen: %q, upstream: u, %s}
upstreams:
  u: {endpoints: [%q]}
`, listen, soonGone, echoAt(t, soundAddress)), withDrainTimeout(100*time.Millisecond))
	before := g.footprint()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(holeAddress)}}
	for range 2 {
		c, err := from.Dial("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		conntest.Exchange(t, c, "hello")
	}
	restore, since := blackHole(t), time.Now()
	eventually(t, "the sessions are over", func() error {
		if n := g.scrape().errors("raw", "client_gone"); n != 2 {
			return fmt.Errorf("counted %v of client_gone, want 2", n)
		}
		return nil
	})
	t.Logf("clients that vanished: gone after %v", time.Since(since).Round(10*time.Millisecond))
	g.awaitLog("session broke off", "connection timed out")
	restore()
	g.awaitFootprint(before)
}

// TestBlackHoleBehindHealthChecks: health checks find a server whose packets are dropped. Its sessions end, new ones
// use the other server, and it is used again when its packets arrive. Sessions of the other server continue.
func TestBlackHoleBehindHealthChecks(t *testing.T) {
	wantNamespace(t)
	listen, lost, sound := address(t), echoAt(t, holeAddress), echoAt(t, soundAddress)
	g := startGateway(t, fmt.Sprintf(`listeners:
  - {name: raw, protocol: tcp, listen: %q, upstream: u}
upstreams:
  u: {endpoints: [%q, %q], balance: round_robin, health: {tcp: true, interval: 500ms, timeout: 1s, fall: 2, stagger: 200ms}}
`, listen, lost, sound), withDrainTimeout(100*time.Millisecond))
	healthy := func(want float64) {
		t.Helper()
		eventually(t, fmt.Sprintf("the health of the lost server is %v", want), func() error {
			if got := g.scrape().sum("headpond_upstream_endpoint_healthy", `endpoint="`+lost+`"`); got != want {
				return fmt.Errorf("it is %v", got)
			}
			return nil
		})
	}
	healthy(1)
	byAddress, conns := map[string]net.Conn{}, map[string][]net.Conn{}
	for range 8 {
		c := dial(t, listen)
		conntest.Exchange(t, c, "hello")
		byAddress[c.LocalAddr().String()] = c
	}
	for _, s := range g.clients(8) {
		conns[s.Endpoint] = append(conns[s.Endpoint], byAddress[s.Client])
	}
	if len(conns[lost]) != 4 || len(conns[sound]) != 4 {
		t.Fatalf("%d and %d sessions, want 4 at each server", len(conns[lost]), len(conns[sound]))
	}
	restore, since := blackHole(t), time.Now()
	for _, c := range conns[lost] {
		awaitReset(t, "a session of the lost server", c, since)
	}
	for range 6 {
		conntest.Exchange(t, dial(t, listen), "elsewhere")
	}
	for _, c := range conns[sound] {
		conntest.Exchange(t, c, "still here")
	}
	if n := g.scrape().errors("raw", "endpoint_out"); n != 4 {
		t.Errorf("closed %v sessions, want 4", n)
	}
	restore()
	healthy(1)
}

// wantNamespace stops tests that would drop packets of the machine itself.
func wantNamespace(t *testing.T) {
	t.Helper()
	if os.Getenv("HEADPOND_BLACKHOLE") != "1" {
		t.Fatal("these tests run in a network namespace: make test-blackhole")
	}
}

package tunnels_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/tunnels"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/tunnel"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const farText = `
listeners:
  - {name: peers, protocol: tunnel, listen: "{listen}", tunnel: {psk: a key of these two gateways, upstreams: [echo], allow: [{allow}]}}
upstreams:
  echo: {endpoints: ["{echo}"], health: {tcp: true}, pool: {min_idle: 2}}
`

const nearText = `
tunnels:
  far: {connect: "{far}", as: near, psk: a key of these two gateways{more}}
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}
upstreams:
  echo: {endpoints: ["upstream:echo"], tunnel: far, health: {tcp: true, interval: 50ms}}
`

// TestTunnelIsReplacedAndRemoved runs both gateways here, where goleak sees leaked goroutines.
func TestTunnelIsReplacedAndRemoved(t *testing.T) {
	echo := conntest.Serve(t, conntest.Echo)
	far := gatewaytest.Run(t, gatewaytest.Parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", echo))
	peers := far.Addr("peers")
	near := gatewaytest.Run(t, gatewaytest.Parse(t, nearText, "{far}", peers, "{more}", ""))
	raw := near.Addr("raw")
	for range 5 {
		if err := conntest.RoundTrip(raw, strings.Repeat("through ", 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	before := tunnelOf(t, near.Gateway)
	if before.Side != tunnels.Connects || before.Sessions != 1 || before.Opened < 5 {
		t.Errorf("%+v", before)
	}
	if err := near.Reload(gatewaytest.Parse(t, nearText, "{far}", peers, "{more}", ", allow: [\"127.0.0.1:1\"]")); err != nil { // policy only
		t.Fatal(err)
	}
	if s := tunnelOf(t, near.Gateway); s.Made != before.Made || s.Opened < before.Opened {
		t.Errorf("another session for another policy: %+v", s)
	}
	if err := near.Reload(gatewaytest.Parse(t, nearText, "{far}", peers, "{more}", ", sessions: 3")); err != nil {
		t.Fatal(err)
	}
	if err := conntest.RoundTrip(raw, "again"); err != nil {
		t.Fatal(err)
	}
	if err := far.Reload(gatewaytest.Parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", `"10.0.0.0/8:*"`, "{echo}", echo)); err != nil {
		t.Fatal(err)
	}
	if err := conntest.RoundTrip(raw, "and again"); err != nil {
		t.Fatal(err)
	}
	plain := "listeners: [{name: raw, protocol: tcp, listen: \"127.0.0.1:0\", upstream: echo}]\nupstreams: {echo: {endpoints: [\"{echo}\"]}}"
	if err := near.Reload(gatewaytest.Parse(t, plain, "{echo}", echo)); err != nil { // no tunnel any more
		t.Fatal(err)
	}
	if err := conntest.RoundTrip(near.Addr("raw"), "direct"); err != nil {
		t.Fatal(err)
	}
	if left := tunnelsOf(t, near.Gateway); len(left) != 0 {
		t.Errorf("%+v", left)
	}
}

// TestTunnelIsReplacedUnderLoad: no connection that is opened at that moment is refused.
func TestTunnelIsReplacedUnderLoad(t *testing.T) {
	far := gatewaytest.Run(t, gatewaytest.Parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", conntest.Serve(t, conntest.Echo)))
	peers := far.Addr("peers")
	near := gatewaytest.Run(t, gatewaytest.Parse(t, nearText, "{far}", peers, "{more}", ""))
	raw := near.Addr("raw")
	var done atomic.Bool
	var served atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !done.Load() {
				if err := conntest.RoundTrip(raw, "through"); err != nil {
					t.Errorf("after %d: %v", served.Load(), err)
					return
				}
				served.Add(1)
			}
		})
	}
	for i := range 8 {
		before := served.Load()
		if err := near.Reload(gatewaytest.Parse(t, nearText, "{far}", peers, "{more}", fmt.Sprintf(", sessions: %d", 1+i%2))); err != nil {
			t.Error(err)
		}
		for served.Load() < before+20 && !t.Failed() {
			if err := conntest.RoundTrip(raw, "and I"); err != nil {
				t.Error(err)
			}
		}
	}
	done.Store(true)
	clients.Wait()
}

func tunnelOf(t *testing.T, g *gateway.Gateway) tunnels.Status {
	t.Helper()
	all := tunnelsOf(t, g)
	if len(all) != 1 {
		t.Fatalf("%d tunnels", len(all))
	}
	return all[0]
}

// tunnelsOf returns the tunnels on the admin pages.
func tunnelsOf(t *testing.T, g *gateway.Gateway) []tunnels.Status {
	t.Helper()
	for _, a := range g.Snapshot().Additions {
		if rows, ok := a.Rows.([]tunnels.Status); ok && a.Key == "tunnels" {
			return rows
		}
	}
	t.Fatal("the snapshot knows no tunnels")
	return nil
}

// TestTunnelReloadIsAllOrNothing: a configuration that is refused leaves no tunnel behind.
func TestTunnelReloadIsAllOrNothing(t *testing.T) {
	echo := conntest.Serve(t, conntest.Echo)
	far := gatewaytest.Run(t, gatewaytest.Parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", echo))
	near := gatewaytest.Run(t, gatewaytest.Parse(t, nearText, "{far}", far.Addr("peers"), "{more}", ""))
	taken := conntest.Listen(t)
	defer taken.Close()
	bad := strings.Replace(nearText, "listen: \"127.0.0.1:0\"", "listen: \""+taken.Addr().String()+"\"", 1)
	if err := near.Reload(gatewaytest.Parse(t, bad, "{far}", far.Addr("peers"), "{more}", ", sessions: 5")); !errors.Is(err, gateway.ErrListen) {
		t.Fatal(err)
	}
	if err := conntest.RoundTrip(near.Addr("raw"), "still there"); err != nil {
		t.Error(err)
	}
}

// TestTunnelsSayWhyTheyAreNotConnected: at the end that connects, and at the one that waits for a peer it has a use for.
func TestTunnelsSayWhyTheyAreNotConnected(t *testing.T) {
	address := conntest.FreeAddress(t)
	near := gatewaytest.Run(t, gatewaytest.Parse(t, nearText, "{far}", address, "{more}", ""))
	conntest.Eventually(t, "an attempt has failed", func() bool { return tunnelOf(t, near.Gateway).LastError != "" })
	if s := tunnelOf(t, near.Gateway); !strings.Contains(s.LastError, address) || s.FailingSince.IsZero() {
		t.Errorf("%v since %v", s.LastError, s.FailingSince)
	}
	text := farText + "  back: {endpoints: [\"upstream:any\"], tunnel: near}\ntunnels:\n  near: {listener: peers, peer: near}\n" // which no listener uses
	far := gatewaytest.Run(t, gatewaytest.Parse(t, text, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", conntest.Serve(t, conntest.Echo)))
	if s := tunnelOf(t, far.Gateway); s.LastError == "" || !strings.Contains(s.LastError, `"near"`) || s.FailingSince.IsZero() {
		t.Errorf("%v since %v", s.LastError, s.FailingSince)
	}
	if err := near.Reload(gatewaytest.Parse(t, nearText, "{far}", far.Addr("peers"), "{more}", "")); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "neither end complains", func() bool {
		return tunnelOf(t, near.Gateway).LastError == "" && tunnelOf(t, near.Gateway).Sessions == 1 && tunnelOf(t, far.Gateway).LastError == ""
	})
}

// TestBackendThatClosesAtOnce behind a tunnel is connected to once for each client, which sees the end, and not again
// and again.
func TestBackendThatClosesAtOnce(t *testing.T) {
	var accepted atomic.Int64
	server := conntest.Serve(t, func(*net.TCPConn) { accepted.Add(1) })
	far := gatewaytest.Run(t, gatewaytest.Parse(t, `
listeners:
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:0", tunnel: {psk: a key of these two gateways, upstreams: [closer]}}
upstreams:
  closer: {endpoints: ["{server}"]}
`, "{server}", server))
	near := gatewaytest.Run(t, gatewaytest.Parse(t, `
tunnels:
  far: {connect: "{far}", as: near, psk: a key of these two gateways}
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: closer}
upstreams:
  closer: {endpoints: ["upstream:closer"], tunnel: far}
`, "{far}", far.Addr("peers")))
	const clients = 20
	for range clients {
		if text, err := io.ReadAll(conntest.Dial(t, near.Addr("raw"))); err != nil || len(text) > 0 {
			t.Fatalf("%q, %v", text, err)
		}
	}
	if n := accepted.Load(); n != clients {
		t.Errorf("%d connections for %d clients", n, clients)
	}
}

// TestDrainWaitsForARemovedTunnel: the other side's connections through it may finish, also when the gateway ends
// meanwhile.
func TestDrainWaitsForARemovedTunnel(t *testing.T) {
	far := gatewaytest.Run(t, gatewaytest.Parse(t, `
listeners:
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:0", tunnel: {psk: a key of these two gateways}}
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: back}
upstreams:
  back: {endpoints: ["upstream:echo"], tunnel: near, connect_timeout: 1m, pool: {acquire_timeout: 1m}}
tunnels:
  near: {listener: peers, peer: near}
`))
	const text = `
drain_timeout: 10m
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: direct}
upstreams:
  direct: {endpoints: ["{echo}"]}
`
	pairs := []string{"{echo}", conntest.Serve(t, conntest.Echo), "{far}", far.Addr("peers")}
	near := gatewaytest.Run(t, gatewaytest.Parse(t, text+"  echo: {endpoints: [\"{echo}\"]}\ntunnels: {far: {connect: \"{far}\", as: near, psk: a key of these two gateways, upstreams: [echo]}}\n", pairs...))
	conntest.Eventually(t, "the tunnel stands", func() bool { return tunnelOf(t, far.Gateway).Sessions == 1 })
	c := conntest.Dial(t, far.Addr("raw"))
	conntest.Exchange(t, c, "before")
	if err := near.Reload(gatewaytest.Parse(t, text, pairs...)); err != nil {
		t.Fatal(err)
	}
	conntest.Exchange(t, c, "after the reload")
	near.Stop()
	conntest.Eventually(t, "it drains", func() bool { return near.Snapshot().Draining })
	for range 200 {
		conntest.Exchange(t, c, "and while it drains")
	}
	_ = c.Close()
	if err := <-near.Result; err != nil {
		t.Error(err)
	}
}

// TestDrainOfATunnelThatIsDown: a gateway whose tunnel has lost its socket stops when its clients have left. It does not wait for the
// other side to learn that.
func TestDrainOfATunnelThatIsDown(t *testing.T) {
	answering := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the first half")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-answering:
		case <-r.Context().Done():
		}
	}))
	defer web.Close()
	defer close(answering)
	far := gatewaytest.Run(t, gatewaytest.Parse(t, `
listeners:
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:0", tunnel: {psk: a key of these two gateways, allow: ["{web}"]}}
`, "{web}", web.Listener.Addr().String()))
	way, block := conntest.ServeAt(t, "127.0.0.1:0", func(c *net.TCPConn) {
		onward := conntest.Dial(t, far.Addr("peers"))
		go func() { _, _ = io.Copy(c, onward) }()
		_, _ = io.Copy(onward, c)
	})
	near := gatewaytest.Run(t, gatewaytest.Parse(t, `
drain_timeout: 1h
tunnels:
  far: {connect: "{way}", as: near, psk: a key of these two gateways, resume_window: 2h}
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: web}
upstreams:
  web: {endpoints: ["{web}"], tunnel: far}
`, "{way}", way, "{web}", web.Listener.Addr().String()))
	c := conntest.Dial(t, near.Addr("web"))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for all, buf := "", make([]byte, 1<<10); !strings.Contains(all, "half"); { // so the other side's acknowledgement has come, too
		n, err := c.Read(buf)
		if all += string(buf[:n]); err != nil {
			t.Fatal(err)
		}
	}
	block()
	conntest.Eventually(t, "the session has lost its socket", func() bool { return tunnelOf(t, near.Gateway).Suspended == 1 })
	near.Stop()
	conntest.Eventually(t, "it drains", func() bool { return near.Snapshot().Draining })
	if s := tunnelOf(t, near.Gateway); s.Sessions != 1 {
		t.Errorf("%d sessions while a client is there", s.Sessions)
	}
	_ = c.SetLinger(0)
	_ = c.Close()
	select {
	case err := <-near.Result:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(conntest.Patience):
		t.Errorf("it does not stop: %+v", tunnelOf(t, near.Gateway))
	}
}

// TestWarmConnectionsBehindATunnel: connections that the server has ended are replaced before a client gets one, also
// if the server speaks first.
func TestWarmConnectionsBehindATunnel(t *testing.T) {
	const idle = 2
	over := make(chan struct{})
	var accepted atomic.Int64
	server := conntest.Serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "220 ready\r\n")
		if accepted.Add(1) <= idle {
			<-over
			return
		}
		conntest.Echo(c)
	})
	far := gatewaytest.Run(t, gatewaytest.Parse(t, `
listeners:
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:0", tunnel: {psk: a key of these two gateways, upstreams: [mail]}}
upstreams:
  mail: {endpoints: ["{server}"], pool: {min_idle: 2, check_interval: 10ms}}
`, "{server}", server))
	near := gatewaytest.Run(t, gatewaytest.Parse(t, `
tunnels:
  far: {connect: "{far}", as: near, psk: a key of these two gateways}
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: mail}
upstreams:
  mail: {endpoints: ["upstream:mail"], tunnel: far}
`, "{far}", far.Addr("peers")))
	conntest.Eventually(t, "warm connections", func() bool { return accepted.Load() == idle })
	close(over)
	conntest.Eventually(t, "others in their place", func() bool { return accepted.Load() == 2*idle })
	c := conntest.Dial(t, near.Addr("raw"))
	conntest.Want(t, c, "220 ready\r\n")
	conntest.Exchange(t, c, "HELO")
}

// TestStateThroughATunnel: a connection through a tunnel that has ended, or whose tunnel drains, is not given to anybody.
func TestStateThroughATunnel(t *testing.T) {
	server := conntest.Serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "220 ready\r\n")
		_, _ = c.Read(make([]byte, 1))
	})
	far := gatewaytest.Run(t, gatewaytest.Parse(t, `
listeners:
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:0", tunnel: {psk: a key of these two gateways, allow: ["{server}"]}}
`, "{server}", server))
	client, err := tunnel.NewClient(tunnel.ClientConfig{
		Tunnel: "far", Address: far.Addr("peers"), Config: tunnel.Config{Name: "near", PSK: []byte("a key of these two gateways")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var looks []fiber.Stream
	for range 2 {
		c, err := client.Dial(t.Context(), server)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		through := tunnel.Pooled(c)
		looks = append(looks, fiber.StreamOf(through))
		conntest.Eventually(t, "a banner", func() bool { return looks[len(looks)-1].State() == fiber.Pending })
		conntest.Want(t, through, "220 ready\r\n")
		if state := looks[len(looks)-1].State(); state != fiber.Silent {
			t.Errorf("a connection whose banner was read is %v", state)
		}
		if len(looks) == 1 {
			_, _ = through.Write([]byte("x"))
		}
	}
	conntest.Eventually(t, "the end", func() bool { return looks[0].State() == fiber.Dead })
	if state := looks[1].State(); state != fiber.Silent {
		t.Errorf("the other one is %v", state)
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	_ = client.Drain(now)
	if state := looks[1].State(); state != fiber.Dead {
		t.Errorf("a connection through a tunnel that drains is %v", state)
	}
}

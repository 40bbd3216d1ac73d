package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/conntest"
)

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

// TestTunnelIsReplacedAndRemoved runs both gateways here, where goleak sees what they leave.
func TestTunnelIsReplacedAndRemoved(t *testing.T) {
	echo := echoServer(t)
	far := run(t, parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", echo))
	peers := far.Addr("peers")
	near := run(t, parse(t, nearText, "{far}", peers, "{more}", ""))
	raw := near.Addr("raw")
	for range 5 {
		if err := exchange(raw, strings.Repeat("through ", 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	before := tunnelOf(t, near.Gateway)
	if before.Side != admin.Connects || before.Sessions != 1 || before.Opened < 5 {
		t.Errorf("%+v", before)
	}
	if err := near.Reload(parse(t, nearText, "{far}", peers, "{more}", ", allow: [\"127.0.0.1:1\"]")); err != nil { // policy only
		t.Fatal(err)
	}
	if s := tunnelOf(t, near.Gateway); s.Made != before.Made || s.Opened < before.Opened {
		t.Errorf("another session for another policy: %+v", s)
	}
	if err := near.Reload(parse(t, nearText, "{far}", peers, "{more}", ", sessions: 3")); err != nil {
		t.Fatal(err)
	}
	if err := exchange(raw, "again"); err != nil {
		t.Fatal(err)
	}
	if err := far.Reload(parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", `"10.0.0.0/8:*"`, "{echo}", echo)); err != nil {
		t.Fatal(err)
	}
	if err := exchange(raw, "and again"); err != nil {
		t.Fatal(err)
	}
	plain := "listeners: [{name: raw, protocol: tcp, listen: \"127.0.0.1:0\", upstream: echo}]\nupstreams: {echo: {endpoints: [\"{echo}\"]}}"
	if err := near.Reload(parse(t, plain, "{echo}", echo)); err != nil { // no tunnel any more
		t.Fatal(err)
	}
	if err := exchange(near.Addr("raw"), "direct"); err != nil {
		t.Fatal(err)
	}
	if s := near.Snapshot(); len(s.Tunnels) != 0 {
		t.Errorf("%+v", s.Tunnels)
	}
}

// TestTunnelIsReplacedUnderLoad: nobody is turned away who asks at that moment.
func TestTunnelIsReplacedUnderLoad(t *testing.T) {
	far := run(t, parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", echoServer(t)))
	peers := far.Addr("peers")
	near := run(t, parse(t, nearText, "{far}", peers, "{more}", ""))
	raw := near.Addr("raw")
	var done atomic.Bool
	var served atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !done.Load() {
				if err := exchange(raw, "through"); err != nil {
					t.Errorf("after %d: %v", served.Load(), err)
					return
				}
				served.Add(1)
			}
		})
	}
	for i := range 8 {
		before := served.Load()
		if err := near.Reload(parse(t, nearText, "{far}", peers, "{more}", fmt.Sprintf(", sessions: %d", 1+i%2))); err != nil {
			t.Error(err)
		}
		for served.Load() < before+20 && !t.Failed() {
			if err := exchange(raw, "and I"); err != nil {
				t.Error(err)
			}
		}
	}
	done.Store(true)
	clients.Wait()
}

func tunnelOf(t *testing.T, g *gateway.Gateway) admin.Tunnel {
	t.Helper()
	s := g.Snapshot()
	if len(s.Tunnels) != 1 {
		t.Fatalf("%d tunnels", len(s.Tunnels))
	}
	return s.Tunnels[0]
}

// TestTunnelReloadIsAllOrNothing: a configuration that cannot be had leaves no tunnel behind.
func TestTunnelReloadIsAllOrNothing(t *testing.T) {
	echo := echoServer(t)
	far := run(t, parse(t, farText, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", echo))
	near := run(t, parse(t, nearText, "{far}", far.Addr("peers"), "{more}", ""))
	taken := conntest.Listen(t)
	defer taken.Close()
	bad := strings.Replace(nearText, "listen: \"127.0.0.1:0\"", "listen: \""+taken.Addr().String()+"\"", 1)
	if err := near.Reload(parse(t, bad, "{far}", far.Addr("peers"), "{more}", ", sessions: 5")); !errors.Is(err, gateway.ErrListen) {
		t.Fatal(err)
	}
	if err := exchange(near.Addr("raw"), "still there"); err != nil {
		t.Error(err)
	}
}

// TestTunnelsSayWhyTheyAreNotConnected: at the end that connects, and at the one that waits for a peer it has a use for.
func TestTunnelsSayWhyTheyAreNotConnected(t *testing.T) {
	address := freeAddresses(t, 1)[0]
	near := run(t, parse(t, nearText, "{far}", address, "{more}", ""))
	conntest.Eventually(t, "an attempt has failed", func() bool { return tunnelOf(t, near.Gateway).LastError != nil })
	if s := tunnelOf(t, near.Gateway); !strings.Contains(s.LastError.Error(), address) || s.FailingSince.IsZero() {
		t.Errorf("%v since %v", s.LastError, s.FailingSince)
	}
	text := farText + "  back: {endpoints: [\"upstream:any\"], tunnel: near}\ntunnels:\n  near: {listener: peers, peer: near}\n" // which nobody uses
	far := run(t, parse(t, text, "{listen}", "127.0.0.1:0", "{allow}", "", "{echo}", echoServer(t)))
	if s := tunnelOf(t, far.Gateway); s.LastError == nil || !strings.Contains(s.LastError.Error(), `"near"`) || s.FailingSince.IsZero() {
		t.Errorf("%v since %v", s.LastError, s.FailingSince)
	}
	if err := near.Reload(parse(t, nearText, "{far}", far.Addr("peers"), "{more}", "")); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "neither end complains", func() bool {
		return tunnelOf(t, near.Gateway).LastError == nil && tunnelOf(t, near.Gateway).Sessions == 1 && tunnelOf(t, far.Gateway).LastError == nil
	})
}

// TestBackendThatClosesAtOnce behind a tunnel is connected to once for each client, who sees that end, and not again and again.
func TestBackendThatClosesAtOnce(t *testing.T) {
	var accepted atomic.Int64
	server := conntest.Serve(t, func(*net.TCPConn) { accepted.Add(1) })
	far := run(t, parse(t, `
listeners:
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:0", tunnel: {psk: a key of these two gateways, upstreams: [closer]}}
upstreams:
  closer: {endpoints: ["{server}"]}
`, "{server}", server))
	near := run(t, parse(t, `
tunnels:
  far: {connect: "{far}", as: near, psk: a key of these two gateways}
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: closer}
upstreams:
  closer: {endpoints: ["upstream:closer"], tunnel: far}
`, "{far}", far.Addr("peers")))
	const clients = 20
	for range clients {
		if text, err := io.ReadAll(dial(t, near.Addr("raw"))); err != nil || len(text) > 0 {
			t.Fatalf("%q, %v", text, err)
		}
	}
	if n := accepted.Load(); n != clients {
		t.Errorf("%d connections for %d clients", n, clients)
	}
}

// TestDrainWaitsForARemovedTunnel: what the other side has connected through it may end by itself, also when the gateway ends meanwhile.
func TestDrainWaitsForARemovedTunnel(t *testing.T) {
	far := run(t, parse(t, `
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
	pairs := []string{"{echo}", echoServer(t), "{far}", far.Addr("peers")}
	near := run(t, parse(t, text+"  echo: {endpoints: [\"{echo}\"]}\ntunnels: {far: {connect: \"{far}\", as: near, psk: a key of these two gateways, upstreams: [echo]}}\n", pairs...))
	conntest.Eventually(t, "the tunnel stands", func() bool { return tunnelOf(t, far.Gateway).Sessions == 1 })
	c := dial(t, far.Addr("raw"))
	echo(t, c, "before")
	if err := near.Reload(parse(t, text, pairs...)); err != nil {
		t.Fatal(err)
	}
	echo(t, c, "after the reload")
	near.stop()
	conntest.Eventually(t, "it drains", func() bool { return near.Snapshot().Draining })
	for range 200 {
		echo(t, c, "and while it drains")
	}
	_ = c.Close()
	if err := <-near.result; err != nil {
		t.Error(err)
	}
}

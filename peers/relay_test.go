package peers_test

import (
	"context"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// behind starts a node that is reached through a relay, and waits until it is.
func behind(t *testing.T, relay *peers.Node, cfg peers.Config) *peers.Node {
	t.Helper()
	cfg.Relays, cfg.Bootstrap = relay.Addrs(), relay.Addrs()
	n, _ := start(t, cfg)
	conntest.Eventually(t, "it has a place at the relay", func() bool { return strings.Contains(strings.Join(n.Addrs(), " "), relay.ID()+"/p2p-circuit") })
	return n
}

// circuits are the addresses of a node through its relay.
func circuits(n *peers.Node) (all []string) {
	for _, a := range n.Addrs() {
		if strings.Contains(a, "/p2p-circuit") {
			all = append(all, a)
		}
	}
	return all
}

// TestRelay: a node that nobody can connect to is called by name through a relay, and once there is a direct way, what is open goes on there.
func TestRelay(t *testing.T) {
	key := newKey(t)
	relay, _ := start(t, peers.Config{RelayFor: []string{idOf(t, key)}})
	far := behind(t, relay, peers.Config{Key: key, NoHolePunching: true, Services: []peers.Service{echo(t)}})
	near, log := start(t, peers.Config{Bootstrap: circuits(far), NoHolePunching: true})
	connected(t, near, far)
	if s := statusOf(near, far); !s.Relayed || !strings.Contains(s.Path, relay.ID()) {
		t.Fatalf("%+v", s)
	}
	knows(t, near, "echo", far)
	exchange(t, near, peers.Target{Service: "echo"}, strings.Repeat("more than the 128 KiB of libp2p's own relays ", 10_000))
	c, err := near.Dial(soon(t), peers.Target{Service: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conntest.Exchange(t, c, "relayed")

	// A direct way, as a hole that was punched.
	ctx, cancel := context.WithCancel(network.WithForceDirectDial(soon(t), "test"))
	defer cancel()
	var direct []ma.Multiaddr
	for _, a := range far.Host().Network().ListenAddresses() {
		if !strings.Contains(a.String(), "p2p-circuit") {
			direct = append(direct, a)
		}
	}
	if err := near.Host().Connect(ctx, peer.AddrInfo{ID: far.Host().ID(), Addrs: direct}); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "it is direct", func() bool { return !statusOf(near, far).Relayed })
	conntest.Eventually(t, "the session goes on there", func() bool { return statusOf(near, far).Calls.Resumed == 1 })
	conntest.Exchange(t, c, "direct")
	if s := statusOf(near, far).Calls; s.Lost != 0 || s.Made != 1 {
		t.Errorf("%+v", s)
	}
	conntest.Eventually(t, "the log tells", func() bool { return log.Line("a direct way to a peer was found", far.ID()) != "" })
}

// TestRelayRefuses: a node that is not listed gets no place.
func TestRelayRefuses(t *testing.T) {
	relay, _ := start(t, peers.Config{RelayFor: []string{someID}})
	n, _ := start(t, peers.Config{Relays: relay.Addrs(), Bootstrap: relay.Addrs()})
	connected(t, n, relay)
	friend := newKey(t)
	open, _ := start(t, peers.Config{RelayForAnyone: true})
	behind(t, open, peers.Config{Key: friend}) // so long as another one takes
	if got := circuits(n); len(got) > 0 {
		t.Error(got)
	}
}

// TestHolePunchingAndAutoNAT run, and leave nothing behind.
func TestHolePunchingAndAutoNAT(t *testing.T) {
	relay, _ := start(t, peers.Config{RelayForAnyone: true, AutoNAT: true})
	far := behind(t, relay, peers.Config{AutoNAT: true, Services: []peers.Service{echo(t)}})
	near, _ := start(t, peers.Config{AutoNAT: true, Bootstrap: circuits(far)})
	connected(t, near, far)
	for range 10 {
		exchange(t, near, peers.Target{Peer: far.ID(), Service: "echo"}, "over whichever way")
	}
}

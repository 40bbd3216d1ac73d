package peers_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// unnamed is a service that echoes and is told to nobody, so that other nodes do not learn from records where its node is.
func unnamed(t *testing.T) peers.Service {
	s := echo(t)
	s.Healthy = func() bool { return false }
	return s
}

// joined waits until a node has so many others in its routing table.
func joined(t *testing.T, n *peers.Node, nodes int) {
	t.Helper()
	conntest.Eventually(t, "it is in the DHT", func() bool { return n.Status().DHT.Nodes >= nodes })
}

// TestDHTFindsANode: A and C know B alone. C finds A's address by A's ID in the DHT, and calls its service.
func TestDHTFindsANode(t *testing.T) {
	b, _ := start(t, peers.Config{DHT: true})
	a, _ := start(t, peers.Config{Bootstrap: b.Addrs(), Services: []peers.Service{unnamed(t)}}) // it is in no routing table: nobody connects to it by itself
	connected(t, a, b)
	target := peers.Target{Peer: a.ID(), Service: "echo"}

	without, _ := start(t, peers.Config{Bootstrap: b.Addrs()})
	connected(t, without, b)
	if _, err := without.Dial(soon(t), target); !errors.Is(err, peers.ErrNotConnected) || !strings.Contains(err.Error(), "no address of it is known") {
		t.Fatal("the address is known without the DHT:", err)
	}
	if s := without.Status().DHT; s != (peers.DHTStats{}) {
		t.Errorf("%+v", s)
	}

	c, _ := start(t, peers.Config{Bootstrap: b.Addrs(), DHT: true})
	joined(t, c, 1)
	if statusOf(c, a).Connected {
		t.Fatal("it is connected already")
	}
	exchange(t, c, target, "found")
	exchange(t, c, target, "and known")
	if s := c.Status().DHT; !s.On || !s.Server || s.Lookups == 0 || s.Found == 0 {
		t.Errorf("%+v", s)
	}
}

// TestDHTFindsARelayedNode: a node that nobody can connect to is found by its ID, at its relay.
func TestDHTFindsARelayedNode(t *testing.T) {
	b, _ := start(t, peers.Config{DHT: true, RelayForAnyone: true})
	a := behind(t, b, peers.Config{Listen: []string{}, Services: []peers.Service{unnamed(t)}})
	c, _ := start(t, peers.Config{Bootstrap: b.Addrs(), DHT: true})
	joined(t, c, 1)
	target := peers.Target{Peer: a.ID(), Service: "echo"}
	conntest.Eventually(t, "it is found", func() bool { // once it has told b of its place
		conn, err := c.Dial(soon(t), target)
		if err != nil {
			return false
		}
		defer conn.Close()
		conntest.Exchange(t, conn, "at its relay")
		return true
	})
	if s := statusOf(c, a); !s.Relayed || c.Status().DHT.Found == 0 {
		t.Errorf("%+v", s)
	}
}

// TestDHTFindsAMovedNode: a node that is called has another address after a restart, and is found there.
func TestDHTFindsAMovedNode(t *testing.T) {
	b, _ := start(t, peers.Config{DHT: true})
	key := newKey(t)
	tcp := []string{"/ip4/127.0.0.1/tcp/0"} // a connection to where it was is refused at once
	a, _ := start(t, peers.Config{Key: key, Listen: tcp, Bootstrap: b.Addrs(), Services: []peers.Service{unnamed(t)}})
	connected(t, a, b)
	c, _ := start(t, peers.Config{Bootstrap: b.Addrs(), DHT: true})
	joined(t, c, 1)
	target := peers.Target{Peer: a.ID(), Service: "echo"}
	exchange(t, c, target, "here")
	a.Close()
	conntest.Eventually(t, "it is gone", func() bool { return !statusOf(c, a).Connected && !statusOf(b, a).Connected })
	again, _ := start(t, peers.Config{Key: key, Listen: tcp, Bootstrap: b.Addrs(), Services: []peers.Service{unnamed(t)}})
	connected(t, again, b)
	conntest.Eventually(t, "it is found there", func() bool {
		conn, err := c.Dial(soon(t), target)
		if err != nil {
			return false
		}
		defer conn.Close()
		conntest.Exchange(t, conn, "there")
		return true
	})
}

// TestDHTNeedsNoHub: nodes with the DHT connect to others by themselves, and know each other's services when the one that they began with is gone.
func TestDHTNeedsNoHub(t *testing.T) {
	b, _ := start(t, peers.Config{DHT: true})
	a, _ := start(t, peers.Config{Bootstrap: b.Addrs(), DHT: true, Services: []peers.Service{echo(t)}})
	joined(t, a, 1)
	c, _ := start(t, peers.Config{Bootstrap: b.Addrs(), DHT: true})
	conntest.Eventually(t, "they are connected", func() bool { return statusOf(c, a).Connected })
	b.Close()
	knows(t, c, "echo", a)
	conntest.Eventually(t, "the hub is gone", func() bool { return !statusOf(a, b).Connected && !statusOf(c, b).Connected })
	exchange(t, c, peers.Target{Service: "echo"}, "without a hub")
}

// TestDHTHasNone: an ID that no node has is looked for once in a while, however often it is called.
func TestDHTHasNone(t *testing.T) {
	b, _ := start(t, peers.Config{DHT: true})
	c, _ := start(t, peers.Config{Bootstrap: b.Addrs(), DHT: true})
	joined(t, c, 1)
	unknown := idOf(t, newKey(t))
	for range 20 {
		_, err := c.Dial(soon(t), peers.Target{Peer: unknown, Service: "echo"})
		if !errors.Is(err, peers.ErrNotConnected) || !strings.Contains(err.Error(), "no address of it is known") || !strings.Contains(err.Error(), "DHT") {
			t.Fatal(err)
		}
	}
	if s := c.Status().DHT; s.Lookups == 0 || s.Lookups == 20 || s.Found != 0 || c.Links() != 0 {
		t.Errorf("%+v, %d links", s, c.Links())
	}
	// A node that asks for more and more IDs is told that it asks too much, before others think so.
	busy := 0
	ctx, cancel := context.WithCancel(soon(t))
	cancel()
	for range 1000 {
		if _, err := c.Dial(ctx, peers.Target{Peer: idOf(t, newKey(t)), Service: "echo"}); errors.Is(err, peers.ErrBusy) && strings.Contains(err.Error(), "too many nodes are being looked up in the DHT") {
			busy++
		}
	}
	if busy == 0 || b.Blocks(c.Host().ID()) {
		t.Errorf("%d calls were refused; blocked: %v", busy, b.Blocks(c.Host().ID()))
	}
}

// TestDHTOfOthers: nothing of the public DHT is spoken, a node that cannot be connected to only asks, and one that is alone says so.
func TestDHTOfOthers(t *testing.T) {
	b, _ := start(t, peers.Config{DHT: true})
	only, _ := start(t, peers.Config{Listen: []string{}, Bootstrap: b.Addrs(), DHT: true})
	off, _ := start(t, peers.Config{Bootstrap: b.Addrs()})
	joined(t, only, 1)
	for n, want := range map[*peers.Node]bool{b: true, only: false, off: false} {
		if n.Status().DHT.Server != want {
			t.Errorf("%+v, want a server: %v", n.Status().DHT, want)
		}
		kad := slices.DeleteFunc(n.Host().Mux().Protocols(), func(p protocol.ID) bool { return !strings.Contains(string(p), "/kad/") })
		if (len(kad) == 1 && kad[0] == peers.ProtocolDHT) != want || len(kad) > 1 {
			t.Errorf("it answers %v, want a server: %v", kad, want)
		}
	}
	alone, _ := start(t, peers.Config{DHT: true})
	if _, err := alone.Dial(soon(t), peers.Target{Peer: b.ID(), Service: "echo"}); err == nil || !strings.Contains(err.Error(), "the DHT has no other node yet") {
		t.Error(err)
	}
}

// TestDHTFlood: a node that asks without end is blocked, and the others are served.
func TestDHTFlood(t *testing.T) {
	b, log := start(t, peers.Config{DHT: true})
	flooder, _ := start(t, peers.Config{Bootstrap: b.Addrs()})
	connected(t, flooder, b)
	ctx := soon(t)
	for ctx.Err() == nil && !b.Blocks(flooder.Host().ID()) {
		askAll(ctx, flooder.Host(), b.Host().ID())
	}
	conntest.Eventually(t, "the log names it", func() bool { return log.Line("a peer is blocked", flooder.ID(), "too many questions to the DHT") != "" })
	c, _ := start(t, peers.Config{Bootstrap: b.Addrs(), DHT: true})
	joined(t, c, 1)
}

// askAll asks a node of the DHT as fast as it reads, until it ends the stream.
func askAll(ctx context.Context, h host.Host, id peer.ID) {
	s, err := h.NewStream(ctx, id, peers.ProtocolDHT)
	if err != nil {
		return
	}
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = io.Copy(io.Discard, s) })
	defer reader.Wait()
	defer func() { _ = s.Reset() }()
	deadline, _ := ctx.Deadline()
	_ = s.SetDeadline(deadline)
	findNode := append([]byte{byte(4 + len(id)), 0x08, 4, 0x12, byte(len(id))}, id...) // a message of Kademlia: its length, type and key
	for err == nil {
		_, err = s.Write(findNode)
	}
}

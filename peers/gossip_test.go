package peers_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// offered are the peers that a node knows to offer a service.
func offered(n *peers.Node, service string) (ids []string) {
	for _, o := range n.Status().Offers {
		if o.Name == service {
			ids = append(ids, o.Peer)
		}
	}
	return ids
}

// knows waits until a node knows exactly these providers.
func knows(t *testing.T, n *peers.Node, service string, providers ...*peers.Node) {
	t.Helper()
	var want []string
	for _, p := range providers {
		want = append(want, p.ID())
	}
	slices.Sort(want)
	conntest.Eventually(t, fmt.Sprintf("%s knows %d providers of %s", n.ID(), len(want), service), func() bool {
		got := offered(n, service)
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// TestServicesByName: nodes that know one and the same bootstrap node find each other's services, call them by name, and notice who leaves.
func TestServicesByName(t *testing.T) {
	hub, _ := start(t, peers.Config{})
	join := func(cfg peers.Config) *peers.Node {
		cfg.Bootstrap = hub.Addrs()
		n, _ := start(t, cfg)
		return n
	}
	a, b := join(peers.Config{Services: []peers.Service{echo(t)}}), join(peers.Config{Services: []peers.Service{echo(t)}})
	near := join(peers.Config{})
	knows(t, near, "echo", a, b)
	knows(t, hub, "echo", a, b)
	knows(t, a, "echo", b)
	called := map[string]bool{}
	for i := 0; len(called) < 2 && i < 200; i++ {
		exchange(t, near, peers.Target{Service: "echo"}, "by name")
		for _, n := range []*peers.Node{a, b} {
			if n.Status().Served.Accepted > 0 {
				called[n.ID()] = true
			}
		}
	}
	if len(called) < 2 {
		t.Error("one of two that are alike is never called")
	}
	_, err := near.Dial(soon(t), peers.Target{Service: "unknown"})
	if !errors.Is(err, peers.ErrNoProvider) || !strings.Contains(err.Error(), "service unknown") {
		t.Error(err)
	}
	if err := b.Drain(soon(t)); err != nil {
		t.Error(err)
	}
	knows(t, near, "echo", a)
	late := join(peers.Config{}) // which has heard nothing of it
	knows(t, late, "echo", a)
	exchange(t, late, peers.Target{Service: "echo"}, "from a newcomer")
	a.Close()
	knows(t, near, "echo")
	knows(t, late, "echo")
}

// TestDeadNode: a node that is gone without a word is in no table soon, and calls go to another meanwhile.
func TestDeadNode(t *testing.T) {
	hub, _ := start(t, peers.Config{})
	var nodes []*peers.Node
	for range 2 {
		n, _ := start(t, peers.Config{Bootstrap: hub.Addrs(), Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Services: []peers.Service{echo(t)}})
		nodes = append(nodes, n)
	}
	near, _ := start(t, peers.Config{Bootstrap: hub.Addrs()})
	knows(t, near, "echo", nodes...)
	for range 20 {
		exchange(t, near, peers.Target{Service: "echo"}, "before")
	}
	_ = nodes[0].Host().Close() // it says nothing
	for range 50 {
		exchange(t, near, peers.Target{Service: "echo"}, "after")
	}
	knows(t, near, "echo", nodes[1])
}

// TestUnhealthyIsNotOffered, and is again when it works.
func TestUnhealthyIsNotOffered(t *testing.T) {
	var well atomic.Bool
	s := echo(t)
	s.Healthy = well.Load
	far, _ := start(t, peers.Config{Services: []peers.Service{s, to("other", "127.0.0.1:1")}})
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	knows(t, near, "other", far)
	knows(t, near, "echo")
	well.Store(true)
	knows(t, near, "echo", far)
	well.Store(false)
	knows(t, near, "echo")
	knows(t, near, "other", far)
}

// TestBusyNodesAreSpared: of two, the one with fewer connections for its capacity is called.
func TestBusyNodesAreSpared(t *testing.T) {
	small, large := echo(t), echo(t)
	small.Capacity, large.Capacity = 1, 100
	one, _ := start(t, peers.Config{Services: []peers.Service{small}})
	two, _ := start(t, peers.Config{Services: []peers.Service{large}})
	near, _ := start(t, peers.Config{Bootstrap: slices.Concat(one.Addrs(), two.Addrs())})
	knows(t, near, "echo", one, two)
	var open []interface{ Close() error }
	for range 22 {
		c, err := near.Dial(soon(t), peers.Target{Service: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if s := statusOf(near, one).Calls; s.Streams > 2 {
		t.Errorf("%d of 22 connections go to the node that is good for one", s.Streams)
	}
	for _, c := range open {
		_ = c.Close()
	}
}

// TestTrustedProviders: connections to a service by name go to nodes that are trusted with it only, whoever else offers it.
func TestTrustedProviders(t *testing.T) {
	hub, _ := start(t, peers.Config{})
	good, _ := start(t, peers.Config{Bootstrap: hub.Addrs(), Services: []peers.Service{echo(t)}})
	claims, _ := start(t, peers.Config{Bootstrap: hub.Addrs(), Services: []peers.Service{echo(t), to("other", "127.0.0.1:1")}})
	near, _ := start(t, peers.Config{Bootstrap: hub.Addrs()})
	knows(t, near, "echo", good, claims)
	for range 20 {
		c, err := near.DialService(soon(t), "echo", peers.Choice{Providers: []string{someID, good.ID()}})
		if err != nil {
			t.Fatal(err)
		}
		conntest.Exchange(t, c, "to whom it may concern")
		_ = c.Close()
	}
	if n := claims.Status().Served.Accepted; n > 0 {
		t.Errorf("%d connections went to a node that is not trusted", n)
	}
	for service, words := range map[string]string{"other": "no node offers the service and may be used: 1 others offer it", "unknown": "no node offers the service"} {
		_, err := near.DialService(soon(t), service, peers.Choice{Providers: []string{good.ID()}})
		if !errors.Is(err, peers.ErrNoProvider) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", service, err)
		}
	}
}

// forger is a libp2p host that says what it likes to a node.
type forger struct {
	host  host.Host
	topic *pubsub.Topic
	key   ed25519.PrivateKey
}

func newForger(t *testing.T, victim *peers.Node) *forger {
	t.Helper()
	f := newStranger(t)
	if err := f.connect(t, victim); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the victim listens", func() bool { return f.hears(victim) })
	return f
}

// newStranger makes a forger that is not connected.
func newStranger(t *testing.T) *forger {
	t.Helper()
	key := newKey(t)
	identity, err := crypto.UnmarshalEd25519PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	h, err := libp2p.New(libp2p.Identity(identity), libp2p.Transport(tcp.NewTCPTransport), libp2p.Transport(quic.NewTransport), libp2p.NoListenAddrs, libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	ps, err := pubsub.NewGossipSub(ctx, h, pubsub.WithMessageSignaturePolicy(pubsub.StrictNoSign), pubsub.WithNoAuthor(), pubsub.WithFloodPublish(true),
		pubsub.WithMessageIdFn(func(m *pb.Message) string { return string(m.Data) }))
	if err != nil {
		t.Fatal(err)
	}
	topic, err := ps.Join(peers.TopicServices)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topic.Relay(); err != nil {
		t.Fatal(err)
	}
	return &forger{h, topic, key}
}

// hears reports whether a node has opened its stream for records to the forger.
func (f *forger) hears(n *peers.Node) bool {
	return slices.Contains(f.topic.ListPeers(), n.Host().ID())
}

func (f *forger) connect(t *testing.T, victim *peers.Node) error {
	t.Helper()
	return f.host.Connect(soon(t), peer.AddrInfo{ID: victim.Host().ID(), Addrs: victim.Host().Addrs()})
}

func (f *forger) id() string { return f.host.ID().String() }

// seen reports whether a node is connected to the forger.
func (f *forger) seen(by *peers.Node) bool {
	return slices.ContainsFunc(by.Status().Peers, func(p peers.PeerStatus) bool { return p.ID == f.id() && p.Connected })
}

func (f *forger) say(t *testing.T, data []byte) {
	t.Helper()
	if err := f.topic.Publish(t.Context(), data); err != nil {
		t.Error(err)
	}
}

// TestForgedRecords: a node that says of another what that has not signed is not believed, named in the log, and blocked when it goes on.
func TestForgedRecords(t *testing.T) {
	victim, log := start(t, peers.Config{})
	f := newForger(t, victim)
	key := newKey(t)
	forge := func(i int) []byte {
		data := peers.Seal(key, time.Now(), 10*time.Second, peers.Offer{Name: fmt.Sprint("forged", i)})
		data[len(data)-1] ^= 1 // of the signature
		return data
	}
	f.say(t, peers.Seal(key, time.Now(), 10*time.Second, peers.Offer{Name: "relayed"})) // of a third node, which has signed it
	conntest.Eventually(t, "what is signed is believed", func() bool { return len(offered(victim, "relayed")) == 1 })
	for i := 0; !victim.Blocks(f.host.ID()); i++ {
		before := victim.Status().Gossip.Forged
		_ = f.topic.Publish(t.Context(), forge(i))
		conntest.Eventually(t, "it is heard", func() bool {
			return victim.Status().Gossip.Forged > before || victim.Blocks(f.host.ID()) || !f.seen(victim)
		})
	}
	conntest.Eventually(t, "it is disconnected", func() bool { return !f.seen(victim) })
	for _, words := range [][]string{{"a peer misbehaves", f.id(), "forged"}, {"a peer is blocked", f.id()}} {
		conntest.Eventually(t, "the log says "+strings.Join(words, " "), func() bool { return log.Line(words...) != "" })
	}
	for _, o := range victim.Status().Offers {
		if strings.HasPrefix(o.Name, "forged") {
			t.Errorf("%+v", o)
		}
	}
	if f.connect(t, victim) == nil { // who it is shows at the end of the handshake
		conntest.Eventually(t, "it is turned away", func() bool { return !f.seen(victim) })
	}
}

// TestFlood: a node that says more than it may is bounded and named. Who is known to have said it is the neighbour alone: records of
// others it may have kept, to bring them all at once.
func TestFlood(t *testing.T) {
	victim, log := start(t, peers.Config{})
	f := newForger(t, victim)
	other := newKey(t)
	say := func(key ed25519.PrivateKey) {
		for i := range 20 {
			f.say(t, peers.Seal(key, time.Now(), 10*time.Second, peers.Offer{Name: "flood", Load: i}))
		}
	}
	conntest.Eventually(t, "it is too much", func() bool { say(other); return victim.Status().Gossip.Flooded > 0 })
	conntest.Eventually(t, "the log names it", func() bool { say(f.key); return log.Line("a peer misbehaves", f.id(), "too many records") != "" })
	if line := log.Line("a peer misbehaves", idOf(t, other)); line != "" {
		t.Errorf("another is blamed: %s", line)
	}
	if n := len(victim.Status().Offers); n > 2 {
		t.Errorf("%d entries of two nodes", n)
	}
}

// TestNewcomerGetsTheTable: over each transport, completely.
func TestNewcomerGetsTheTable(t *testing.T) {
	const told = 100
	for _, listen := range loopback {
		hub, _ := start(t, peers.Config{Listen: []string{listen}})
		f := newForger(t, hub)
		f.serveTable(t, told)
		conntest.Eventually(t, "a table is read", func() bool { return hub.Fetch(f.host.ID()) == nil })
		near, _ := start(t, peers.Config{Listen: []string{}, Bootstrap: hub.Addrs()})
		connected(t, near, hub)
		conntest.Eventually(t, "it is told over "+listen, func() bool { return near.Fetch(hub.Host().ID()) == nil })
		if n := len(near.Status().Offers); n != told {
			t.Errorf("%s: %d of %d nodes are known", listen, n, told)
		}
	}
}

// TestHostileTable: a neighbour whose table is garbage is named.
func TestHostileTable(t *testing.T) {
	victim, log := start(t, peers.Config{})
	f := newForger(t, victim)
	for _, text := range []string{"", "\x00\x00", "\x00\x00\x00\x09\x00\x00\x10\x00abc", "\x00\x00\x00\x03\x00\x00\x10\x00abc", "\xff\xff\xff\xff\x00\x00\x00\x01"} {
		f.host.SetStreamHandler(peers.ProtocolTable, func(st network.Stream) {
			_, _ = st.Write([]byte(text))
			_ = st.Close()
		})
		err := victim.Fetch(f.host.ID())
		if (err == nil) != (text == "") || errors.Is(err, peers.ErrForged) != (len(text) > 7 && text[3] != 9) {
			t.Errorf("%q: %v", text, err)
		}
	}
	conntest.Eventually(t, "the log names it", func() bool { return log.Line("a peer misbehaves", f.id(), "forged") != "" })
}

package peers_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// TestTransports: a service is called over each, and in a private network.
func TestTransports(t *testing.T) {
	for name, c := range map[string]struct {
		listen  string
		private []byte
		path    string
	}{
		"quic":        {"/ip4/127.0.0.1/udp/0/quic-v1", nil, "/quic-v1"},
		"tcp":         {"/ip4/127.0.0.1/tcp/0", nil, "/tcp/"},
		"ws":          {"/ip4/127.0.0.1/tcp/0/ws", nil, "/ws"},
		"private tcp": {"/ip4/127.0.0.1/tcp/0", []byte(strings.Repeat("k", 32)), "/tcp/"},
		"private ws":  {"/ip4/127.0.0.1/tcp/0/ws", []byte(strings.Repeat("k", 32)), "/ws"},
	} {
		t.Run(name, func(t *testing.T) {
			far, _ := start(t, peers.Config{Listen: []string{c.listen}, NetworkKey: c.private, Services: []peers.Service{echo(t)}})
			near, _ := start(t, peers.Config{Listen: []string{}, NetworkKey: c.private, Bootstrap: far.Addrs()})
			connected(t, near, far)
			exchange(t, near, peers.Target{Peer: far.ID(), Service: "echo"}, strings.Repeat("hello ", 50_000))
			if s := statusOf(near, far); !s.Bootstrap || s.Relayed || !strings.Contains(s.Path, c.path) || s.Calls.Opened != 1 || s.Err != nil {
				t.Errorf("%+v", s)
			}
			if s := far.Status(); s.Served.Accepted != 1 || len(s.Served.Connected) != 1 || s.Served.Connected[0] != near.ID() {
				t.Errorf("%+v", s.Served)
			}
		})
	}
}

// TestWhoMayCall: nobody may that is not listed, whatever it says of itself.
func TestWhoMayCall(t *testing.T) {
	friend, stranger := newKey(t), newKey(t)
	far, log := start(t, peers.Config{Services: []peers.Service{
		echo(t, idOf(t, friend)), to("down", conntest.FreeAddress(t), idOf(t, friend)),
		{Name: "closed", Connect: func(context.Context) (net.Conn, error) { panic("nobody may call it") }},
	}})
	near, _ := start(t, peers.Config{Key: friend, Bootstrap: far.Addrs()})
	other, _ := start(t, peers.Config{Key: stranger, Bootstrap: far.Addrs()})
	connected(t, near, far)
	connected(t, other, far)
	call := func(n *peers.Node, service string) error {
		c, err := n.Dial(soon(t), peers.Target{Peer: far.ID(), Service: service})
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	for _, c := range []struct {
		by      *peers.Node
		service string
		want    error
	}{
		{near, "echo", nil}, {near, "down", peers.ErrUnreachable}, {near, "closed", peers.ErrNotOffered}, {near, "unknown", peers.ErrNotOffered},
		{other, "echo", peers.ErrNotConnected},
	} {
		err := call(c.by, c.service)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.service, err, c.want)
		}
		if err != nil && (!strings.Contains(err.Error(), "service "+c.service+" of peer "+far.ID())) {
			t.Errorf("the error does not say of whom: %v", err)
		}
	}
	conntest.Eventually(t, "the log names the stranger", func() bool { return log.Line("no session with a peer", "peer "+other.ID()+" may call none") != "" })

	// What is offered changes: the stranger may call now, and the friend no more.
	if err := far.SetServices([]peers.Service{echo(t, other.ID())}); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the other may call", func() bool { return call(other, "echo") == nil })
	conntest.Eventually(t, "the friend may not", func() bool { return errors.Is(call(near, "echo"), peers.ErrNotConnected) })
	if err := far.SetServices([]peers.Service{{}}); !errors.Is(err, peers.ErrConfig) {
		t.Error(err)
	}
	if err := call(other, "echo"); err != nil {
		t.Error("a refused change has changed something:", err)
	}
}

// TestWrongPeer: whoever answers at an address has to be who the address says.
func TestWrongPeer(t *testing.T) {
	far, _ := start(t, peers.Config{Services: []peers.Service{echo(t)}})
	other := idOf(t, newKey(t))
	addr := strings.Replace(far.Addrs()[0], far.ID(), other, 1)
	near, log := start(t, peers.Config{Bootstrap: []string{addr}})
	conntest.Eventually(t, "the log says so", func() bool { return log.Line("bootstrap peer not connected", other, "peer id mismatch") != "" })
	if _, err := near.Dial(soon(t), peers.Target{Peer: other, Service: "echo"}); !errors.Is(err, peers.ErrNotConnected) {
		t.Error(err)
	}
	if len(far.Status().Peers) != 0 {
		t.Errorf("%+v", far.Status().Peers)
	}
}

// TestPrivateNetwork: a node without the key, or with another, is not even answered.
func TestPrivateNetwork(t *testing.T) {
	listen := []string{"/ip4/127.0.0.1/tcp/0"}
	far, _ := start(t, peers.Config{Listen: listen, NetworkKey: []byte(strings.Repeat("a", 32)), Services: []peers.Service{echo(t)}})
	for _, key := range [][]byte{nil, []byte(strings.Repeat("b", 32))} {
		near, log := start(t, peers.Config{Listen: listen, NetworkKey: key, Bootstrap: far.Addrs(), DialTimeout: 2 * time.Second})
		conntest.Eventually(t, "it does not connect", func() bool { return log.Line("bootstrap peer not connected", far.ID()) != "" })
		if statusOf(near, far).Connected || statusOf(near, far).Err == nil {
			t.Errorf("%+v", statusOf(near, far))
		}
	}
}

// TestUnknownPeers: every error says which peer, and why.
func TestUnknownPeers(t *testing.T) {
	near, _ := start(t, peers.Config{})
	for target, want := range map[peers.Target]struct {
		is   error
		text string
	}{
		{Peer: someID, Service: "echo"}:    {peers.ErrNotConnected, "no address of it is known"},
		{Peer: "bob", Service: "echo"}:     {nil, `"bob" is no peer ID`},
		{Peer: near.ID(), Service: "echo"}: {peers.ErrConfig, "it is this node"},
		{Peer: someID, Service: "a/b"}:     {nil, "cannot be in the name"},
	} {
		_, err := near.Dial(soon(t), target)
		var e *peers.Error
		if !errors.As(err, &e) || want.is != nil && !errors.Is(err, want.is) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%v: %v, want %q", target, err, want.text)
		}
	}
}

// reach connects to a node's service, and goes on trying on a machine that is busy, unless it is refused for want of room.
func reach(t *testing.T, n, other *peers.Node) (c io.Closer) {
	t.Helper()
	conntest.Eventually(t, "it is called", func() bool {
		conn, err := n.Dial(soon(t), peers.Target{Peer: other.ID(), Service: "echo"})
		if errors.Is(err, peers.ErrBusy) {
			t.Fatal(err)
		}
		c = conn
		return err == nil
	})
	return c
}

// TestCallsToUnknownNodes: however many, they keep no real node out, and are forgotten.
func TestCallsToUnknownNodes(t *testing.T) {
	const most, failing = 6, 3
	var far []*peers.Node
	var addrs []string
	for range most {
		n, _ := start(t, peers.Config{Services: []peers.Service{echo(t)}})
		far, addrs = append(far, n), append(addrs, n.Addrs()...)
	}
	near, _ := start(t, peers.Config{Bootstrap: addrs})
	near.BoundLinks(most, failing)
	for range 2 * most {
		id, err := peers.ParseID(idOf(t, newKey(t)))
		if err != nil {
			t.Fatal(err)
		}
		near.Host().Peerstore().AddAddrs(id, []ma.Multiaddr{ma.StringCast("/ip4/127.0.0.1/tcp/1")}, time.Hour)
		if _, err := near.Dial(soon(t), peers.Target{Peer: id.String(), Service: "echo"}); !errors.Is(err, peers.ErrNotConnected) {
			t.Fatal(err)
		}
		if n := near.Links(); n > failing {
			t.Fatalf("%d links to nobody, of %d", n, failing)
		}
	}
	var open []io.Closer
	for _, n := range far { // those to nobody give way
		connected(t, near, n)
		open = append(open, reach(t, near, n))
	}
	more, _ := start(t, peers.Config{Services: []peers.Service{echo(t)}})
	if err := near.SetBootstrap(append(addrs, more.Addrs()...)); err != nil {
		t.Fatal(err)
	}
	connected(t, near, more)
	target := peers.Target{Peer: more.ID(), Service: "echo"}
	if _, err := near.Dial(soon(t), target); !errors.Is(err, peers.ErrBusy) || !strings.Contains(err.Error(), "services of 6 peers are in use") {
		t.Error(err)
	}
	_ = open[0].Close()
	conntest.Eventually(t, "one is idle", func() bool { return near.Active() == most-1 })
	open[0] = reach(t, near, more) // in the place of the idle one
	for _, c := range open {
		_ = c.Close()
	}
	conntest.Eventually(t, "all are idle", func() bool { return near.Active() == 0 })
	near.Tidy(time.Now().Add(time.Hour))
	if n := near.Links(); n != 0 {
		t.Errorf("%d links are kept for ever", n)
	}
	if _, err := near.Dial(soon(t), peers.Target{Peer: someID, Service: "echo"}); !errors.Is(err, peers.ErrNotConnected) || near.Links() != 0 {
		t.Errorf("%v, %d links: one is made to a peer without an address", err, near.Links())
	}
}

// TestAddressInUse: the error names the address, and nothing is left.
func TestAddressInUse(t *testing.T) {
	far, _ := start(t, peers.Config{Listen: []string{"/ip4/127.0.0.1/udp/0/quic-v1"}})
	addr, _, _ := strings.Cut(far.Addrs()[0], "/p2p/")
	n, err := peers.New(peers.Config{Key: newKey(t), Listen: []string{"/ip4/127.0.0.1/tcp/0", addr}})
	if !errors.Is(err, peers.ErrListen) || !strings.Contains(err.Error(), addr) {
		t.Errorf("%v", err)
	}
	if n != nil {
		n.Close()
	}
}

// TestBootstrapPeerComesBack: a node that was restarted, with the same key and address, is connected and called again.
func TestBootstrapPeerComesBack(t *testing.T) {
	key := newKey(t)
	cfg := peers.Config{Key: key, Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Services: []peers.Service{echo(t)}}
	far, _ := start(t, cfg)
	target := peers.Target{Peer: far.ID(), Service: "echo"}
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	connected(t, near, far)
	exchange(t, near, target, "before")
	addr, _, _ := strings.Cut(far.Addrs()[0], "/p2p/")
	far.Close()
	conntest.Eventually(t, "it is gone", func() bool { return !statusOf(near, far).Connected })
	cfg.Listen = []string{addr}
	again, _ := start(t, cfg)
	connected(t, near, again)
	conntest.Eventually(t, "it is called again", func() bool {
		c, err := near.Dial(soon(t), target)
		if err != nil {
			return false
		}
		defer c.Close()
		conntest.Exchange(t, c, "after")
		return true
	})
	if err := near.SetBootstrap(nil); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "nothing is wrong with it any more", func() bool { // a session is there a moment before that is noted
		s := statusOf(near, again)
		return !s.Bootstrap && s.Err == nil
	})
	if err := near.SetBootstrap([]string{"nowhere"}); !errors.Is(err, peers.ErrConfig) {
		t.Error(err)
	}
}

// TestDrain: connections that are open finish, and no others are taken.
func TestDrain(t *testing.T) {
	far, _ := start(t, peers.Config{Services: []peers.Service{echo(t)}})
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	connected(t, near, far)
	target := peers.Target{Peer: far.ID(), Service: "echo"}
	c, err := near.Dial(soon(t), target)
	if err != nil {
		t.Fatal(err)
	}
	conntest.Exchange(t, c, "before")
	drained := make(chan error, 1)
	go func() { drained <- far.Drain(soon(t)) }()
	conntest.Eventually(t, "the caller is told", func() bool { return near.Leaving(far.ID()) })
	if _, err := near.Dial(soon(t), target); err == nil {
		t.Error("a node that drains takes a connection")
	}
	conntest.Exchange(t, c, "after")
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Error(rest, err)
	}
	_ = c.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	far.Close()
	if _, err := far.Dial(soon(t), peers.Target{Peer: near.ID(), Service: "echo"}); !errors.Is(err, peers.ErrClosed) {
		t.Error(err)
	}
}

// TestDrainIsCutOff when its time is over.
func TestDrainIsCutOff(t *testing.T) {
	far, _ := start(t, peers.Config{Services: []peers.Service{echo(t)}})
	near, _ := start(t, peers.Config{Bootstrap: far.Addrs()})
	connected(t, near, far)
	c, err := near.Dial(soon(t), peers.Target{Peer: far.ID(), Service: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := near.Drain(over); err == nil || !strings.Contains(err.Error(), "1") {
		t.Error(err)
	}
	conntest.WantGone(t, c)
}

// TestConnectionLimit: a node that is full refuses, and the others stay.
func TestConnectionLimit(t *testing.T) {
	far, log := start(t, peers.Config{MaxConns: 8, Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Services: []peers.Service{echo(t)}})
	var all []*peers.Node
	for range 12 {
		n, _ := start(t, peers.Config{Listen: []string{}, Bootstrap: far.Addrs(), DialTimeout: 2 * time.Second})
		all = append(all, n)
	}
	conntest.Eventually(t, "some are turned away", func() bool {
		in, out := 0, 0
		for _, n := range all {
			if s := statusOf(n, far); s.Connected {
				in++
			} else if s.Err != nil {
				out++
			}
		}
		return in >= 4 && in+out == len(all) && out >= 4
	})
	if conns := far.Status().Conns; conns > 8 {
		t.Errorf("%d connections, of at most 8", conns)
	}
	conntest.Eventually(t, "refusals are counted", func() bool { return far.Status().Exhausted > 0 })
	conntest.Eventually(t, "the log says why", func() bool { return log.Line("a limit of this node is reached", "resource limit exceeded") != "" })
}

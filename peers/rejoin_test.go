package peers_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/peers"
)

// TestUnidentifiedPeer: a connected peer whose identification failed hears records, and is asked for its table.
func TestUnidentifiedPeer(t *testing.T) {
	victim, _ := start(t, peers.Config{Services: []peers.Service{echo(t)}})
	f := newStranger(t)
	f.host.SetStreamHandler(identify.ID, func(s network.Stream) { _ = s.Reset() })
	f.serveTable(t, 10)
	if err := f.connect(t, victim); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "records go to it", func() bool { return f.hears(victim) })
	conntest.Eventually(t, "its table is known", func() bool { return len(victim.Offers()) == 10 })
}

// TestIdentifiedLater: a connected peer whose identification failed is asked again, and then its addresses are known.
func TestIdentifiedLater(t *testing.T) {
	victim, _ := start(t, peers.Config{Listen: []string{"/ip4/127.0.0.1/tcp/0"}})
	victim.Host().RemoveStreamHandler(identify.IDPush) // it must not learn the address otherwise
	f := newStranger(t)
	if err := f.host.Network().Listen(ma.StringCast("/ip4/127.0.0.1/tcp/0")); err != nil {
		t.Fatal(err)
	}
	identifies, err := peers.HandlerOf(f.host, identify.ID)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	f.host.SetStreamHandler(identify.ID, func(s network.Stream) {
		if asked.Add(1) == 1 {
			_ = s.Reset()
			return
		}
		_ = identifies(identify.ID, s)
	})
	if err := f.connect(t, victim); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "its address is known", func() bool { return len(victim.Host().Peerstore().Addrs(f.host.ID())) > 0 })
	if n := asked.Load(); n < 2 {
		t.Errorf("it was asked %d times", n)
	}
}

// cable is a way between two nodes that can be cut: connections through it end, and no new ones begin.
type cable struct {
	address string // a multiaddress

	mu    sync.Mutex
	to    string
	cut   bool
	mute  chan struct{} // not nil: nothing passes until it is closed
	conns map[net.Conn]bool
}

// newCable leads nowhere yet.
func newCable(t *testing.T) *cable {
	t.Helper()
	c := &cable{conns: map[net.Conn]bool{}, cut: true}
	address := conntest.Serve(t, func(near *net.TCPConn) {
		if !c.add(near) {
			return
		}
		defer c.remove(near)
		far, err := netaddr.Dial(t.Context(), c.target())
		if err != nil || !c.add(far) {
			return
		}
		defer c.remove(far)
		var both sync.WaitGroup
		for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
			both.Go(func() {
				_, _ = io.Copy(way[0], passing{way[1], c})
				_, _ = way[0].Close(), way[1].Close()
			})
		}
		both.Wait()
	})
	_, port, _ := net.SplitHostPort(address)
	c.address = "/ip4/127.0.0.1/tcp/" + port
	return c
}

// passing is an end of a cable.
type passing struct {
	net.Conn
	cable *cable
}

func (p passing) Read(b []byte) (n int, err error) {
	n, err = p.Conn.Read(b)
	p.cable.mu.Lock()
	mute := p.cable.mute
	p.cable.mu.Unlock()
	if mute != nil {
		<-mute
	}
	return n, err
}

// silence lets nothing pass, on connections that stay open and on new ones, until end is called, or the test ends.
func (c *cable) silence(t *testing.T) (end func()) {
	mute := make(chan struct{})
	c.mu.Lock()
	c.mute = mute
	c.mu.Unlock()
	end = sync.OnceFunc(func() {
		c.mu.Lock()
		c.mute = nil
		c.mu.Unlock()
		close(mute)
	})
	t.Cleanup(end)
	return end
}

func (c *cable) target() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.to
}

// lead connects the cable to a node.
func (c *cable) lead(n *peers.Node) {
	c.mu.Lock()
	c.to = net.JoinHostPort("127.0.0.1", portOf(n))
	c.mu.Unlock()
	c.set(false)
}

// portOf is the port at which a node listens, by TCP alone.
func portOf(n *peers.Node) (port string) {
	for _, a := range n.Host().Network().ListenAddresses() {
		if p, err := a.ValueForProtocol(ma.P_TCP); err == nil {
			port = p
		}
	}
	return port
}

// add notes a connection, unless the cable is cut.
func (c *cable) add(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		_ = conn.Close()
		return false
	}
	c.conns[conn] = true
	return true
}

func (c *cable) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	_ = conn.Close()
}

// set cuts the cable, or mends it.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	for conn := range c.conns {
		if cut {
			_ = conn.Close()
		}
	}
}

// TestPartition: when the network falls in two, each part forgets the other one. When it is whole again, all tables are equal.
func TestPartition(t *testing.T) {
	tcp := []string{"/ip4/127.0.0.1/tcp/0"}
	between := newCable(t)
	east, _ := start(t, peers.Config{Listen: tcp, Announce: []string{between.address}, Services: []peers.Service{echo(t)}})
	between.lead(east)
	west, _ := start(t, peers.Config{Listen: tcp, Bootstrap: east.Addrs(), Services: []peers.Service{echo(t)}})
	join := func(hub []string) *peers.Node {
		n, _ := start(t, peers.Config{Listen: tcp, Bootstrap: hub, Services: []peers.Service{echo(t)}})
		return n
	}
	inEast, inWest := []*peers.Node{east, join([]string{"/ip4/127.0.0.1/tcp/" + portOf(east) + "/p2p/" + east.ID()})}, []*peers.Node{west, join(west.Addrs())}
	all := append(append([]*peers.Node{}, inEast...), inWest...)
	alike := func(nodes []*peers.Node) {
		t.Helper()
		for _, n := range nodes {
			var others []*peers.Node
			for _, o := range nodes {
				if o != n {
					others = append(others, o)
				}
			}
			knows(t, n, "echo", others...)
		}
	}
	alike(all)
	between.set(true)
	alike(inEast)
	alike(inWest)
	between.set(false)
	healed := time.Now()
	alike(all)
	t.Logf("all tables are equal %v after the partition", time.Since(healed).Round(time.Millisecond))
}

package peers_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/peers"
)

// loopback is where nodes of tests listen.
var loopback = []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}

// newKey makes an identity.
func newKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// start runs a node until the end of the test. What of the configuration is missing is filled in.
func start(t testing.TB, cfg peers.Config) (*peers.Node, *conntest.Log) {
	t.Helper()
	log := &conntest.Log{}
	if cfg.Key == nil {
		cfg.Key = newKey(t)
	}
	if cfg.Listen == nil {
		cfg.Listen = loopback
	}
	if cfg.Logger == nil {
		cfg.Logger = log.Logger()
	}
	n, err := peers.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n, log
}

// idOf is the peer ID of a key.
func idOf(t testing.TB, key ed25519.PrivateKey) string {
	t.Helper()
	id, err := peers.IDOf(key)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// to is a service behind which there is an address.
func to(name, address string, callers ...string) peers.Service {
	s := peers.Service{Name: name, Peers: callers, Connect: func(ctx context.Context) (net.Conn, error) { return netaddr.Dial(ctx, address) }}
	if len(callers) == 0 {
		s.Anyone = true
	}
	return s
}

// echo is a service that echoes.
func echo(t testing.TB, callers ...string) peers.Service {
	t.Helper()
	return to("echo", conntest.Serve(t, conntest.Echo), callers...)
}

// soon is a context that ends when a test has failed anyway.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// exchange calls a service that echoes.
func exchange(t testing.TB, n *peers.Node, target peers.Target, text string) {
	t.Helper()
	c, err := n.Dial(soon(t), target)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conntest.Exchange(t, c, text)
}

// connected waits until one node is connected to another.
func connected(t testing.TB, n, other *peers.Node) {
	t.Helper()
	conntest.Eventually(t, n.ID()+" is connected to "+other.ID(), func() bool { return statusOf(n, other).Connected })
}

func statusOf(n, other *peers.Node) peers.PeerStatus {
	for _, p := range n.Status().Peers {
		if p.ID == other.ID() {
			return p
		}
	}
	return peers.PeerStatus{}
}

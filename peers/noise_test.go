package peers_test

import (
	"context"
	"net"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/gostream"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/tunnel"
)

// noiseHost is a host without TLS and QUIC: connections to it are secured by Noise, or not at all.
func noiseHost(t *testing.T) host.Host {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.Transport(tcp.NewTCPTransport), libp2p.Security(noise.ID, noise.New),
		libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// callFrom calls the service echo of a node in the connection that a host has to it, and checks how that is secured.
func callFrom(t *testing.T, h host.Host, n *peers.Node) {
	t.Helper()
	id := n.Host().ID()
	client, err := tunnel.NewClient(tunnel.ClientConfig{Address: id.String(), Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		return gostream.Dial(ctx, h, id, peers.ProtocolTunnel)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := client.Dial(soon(t), tunnel.UpstreamPrefix+"echo")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conntest.Exchange(t, c, "over Noise")
	for _, conn := range h.Network().ConnsToPeer(id) {
		if s := conn.ConnState().Security; s != noise.ID {
			t.Errorf("the connection over %s is secured by %q, want %q", conn.RemoteMultiaddr(), s, noise.ID)
		}
	}
}

// TestNoise: a node and a peer that cannot speak TLS use Noise, whichever of them connects.
func TestNoise(t *testing.T) {
	t.Run("from the peer", func(t *testing.T) {
		h := noiseHost(t)
		n, _ := start(t, peers.Config{Services: []peers.Service{echo(t, h.ID().String())}})
		to, err := peer.AddrInfoFromString(byTCP(t, n.Host()) + "/p2p/" + n.ID())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Connect(soon(t), *to); err != nil {
			t.Fatal(err)
		}
		callFrom(t, h, n)
	})
	t.Run("from the node", func(t *testing.T) {
		h := noiseHost(t)
		n, _ := start(t, peers.Config{
			Listen: []string{}, Services: []peers.Service{echo(t, h.ID().String())},
			Bootstrap: []string{byTCP(t, h) + "/p2p/" + h.ID().String()},
		})
		conntest.Eventually(t, "the node has connected to the peer", func() bool { return len(h.Network().ConnsToPeer(n.Host().ID())) > 0 })
		callFrom(t, h, n)
	})
}

// byTCP is an address of a host for TCP.
func byTCP(t *testing.T, h host.Host) string {
	t.Helper()
	for _, a := range h.Network().ListenAddresses() {
		if _, err := a.ValueForProtocol(ma.P_TCP); err == nil {
			return a.String()
		}
	}
	t.Fatalf("no address for TCP: %v", h.Network().ListenAddresses())
	return ""
}

package peers_test

import (
	"strings"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/peers"
)

// TestDialOrder: TCP is dialled before QUIC, QUIC before WebSocket, each at once if there is nothing before it.
func TestDialOrder(t *testing.T) {
	const (
		tcp  = "/ip4/192.168.0.1/tcp/4001"
		quic = "/ip4/192.168.0.1/udp/4001/quic-v1"
		ws   = "/ip4/192.168.0.1/tcp/80/ws"
		far  = "/ip4/11.0.0.1/tcp/4001"
	)
	relayed := quic + "/p2p/" + someID + "/p2p-circuit"
	for _, c := range []struct {
		addrs []string
		want  map[string]time.Duration
	}{
		{[]string{quic, tcp, ws}, map[string]time.Duration{tcp: 0, quic: peers.TransportDelay, ws: 2 * peers.TransportDelay}},
		{[]string{ws, quic}, map[string]time.Duration{quic: 0, ws: peers.TransportDelay}},
		{[]string{ws}, map[string]time.Duration{ws: 0}},
		{[]string{relayed, quic}, map[string]time.Duration{relayed: 0, quic: 0}},
		{[]string{relayed, far}, map[string]time.Duration{relayed: 500 * time.Millisecond, far: 0}},
		{nil, nil},
	} {
		var addrs []ma.Multiaddr
		for _, a := range c.addrs {
			addrs = append(addrs, ma.StringCast(a))
		}
		ranked := peers.RankAddrs(addrs)
		if len(ranked) != len(c.want) {
			t.Errorf("%v: %v", c.addrs, ranked)
		}
		for _, r := range ranked {
			if want, ok := c.want[r.Addr.String()]; !ok || r.Delay != want {
				t.Errorf("%v: %v after %v, want %v", c.addrs, r.Addr, r.Delay, want)
			}
		}
	}
}

// TestQUICWhereTCPFails: a peer whose TCP port does not answer is connected by QUIC.
func TestQUICWhereTCPFails(t *testing.T) {
	far, _ := start(t, peers.Config{Listen: []string{"/ip4/127.0.0.1/udp/0/quic-v1"}, Services: []peers.Service{echo(t)}})
	host, port, _ := strings.Cut(conntest.FreeAddress(t), ":")
	closed := "/ip4/" + host + "/tcp/" + port + "/p2p/" + far.ID()
	near, _ := start(t, peers.Config{Listen: []string{}, Bootstrap: append(far.Addrs(), closed)})
	connected(t, near, far)
	if s := statusOf(near, far); !strings.Contains(s.Path, "/quic-v1") {
		t.Errorf("%+v", s)
	}
	exchange(t, near, peers.Target{Peer: far.ID(), Service: "echo"}, "by QUIC")
}

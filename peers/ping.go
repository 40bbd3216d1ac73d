package peers

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
)

// Ping connects to the peer at a multiaddress that ends in /p2p/ID, unless it is connected, and measures one round trip; path is the
// multiaddress of the connection. The error wraps ErrConfig or ErrNotConnected.
func (n *Node) Ping(ctx context.Context, addr string) (rtt time.Duration, path string, err error) {
	info, err := ParsePeer(addr)
	if err != nil {
		return 0, "", err
	}
	if err := n.connect(ctx, info); err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result, ok := <-ping.Ping(ctx, n.host, info.ID)
	switch {
	case !ok:
		return 0, "", explain(info.ID, context.Cause(ctx))
	case result.Error != nil:
		return 0, "", explain(info.ID, result.Error)
	}
	return result.RTT, n.peerStatus(info.ID).Path, nil
}

// pingInterval is how often the node measures the round trip to bootstrap peers and called peers.
// firstPing is how often it looks for such peers whose round trip is not known yet.
const (
	pingInterval = 15 * time.Second
	firstPing    = time.Second
)

// measure measures round trips until the node ends.
func (n *Node) measure() {
	look := time.NewTicker(firstPing)
	defer look.Stop()
	var all time.Time
	for {
		var now time.Time
		select {
		case <-n.life.Done():
			return
		case now = <-look.C:
		}
		again := now.Sub(all) >= pingInterval
		if again {
			all = now
		}
		ids := n.bootstrap.ids()
		for _, l := range n.links.all() {
			ids = append(ids, l.peer)
		}
		for _, id := range ids {
			if len(n.host.Network().ConnsToPeer(id)) == 0 || !again && n.host.Peerstore().LatencyEWMA(id) > 0 {
				continue
			}
			ctx, cancel := context.WithTimeout(n.life, n.cfg.KeepAlive)
			<-ping.Ping(ctx, n.host, id) // the peerstore records the result
			cancel()
		}
	}
}

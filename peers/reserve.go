package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
)

// tagRelay protects the connections to relays.
const tagRelay = "relay"

// circuits keeps a reservation at each configured relay, and has this node's addresses there.
// libp2p's AutoRelay is not used, because it ignores relays with private addresses, which private
// networks have.
type circuits struct {
	node *Node

	mu    sync.Mutex // held for a few instructions
	addrs map[peer.ID][]ma.Multiaddr

	// These do not change after init.
	relays map[peer.ID]peer.AddrInfo
	lost   map[peer.ID]chan struct{} // capacity one: signals that the relay's last connection has closed
	work   sync.WaitGroup
}

// init reads the relays of the configuration.
func (c *circuits) init(n *Node, texts []string) {
	c.mu.Lock() // libp2p may already call all
	c.addrs = map[peer.ID][]ma.Multiaddr{}
	c.mu.Unlock()
	c.node, c.relays, c.lost = n, map[peer.ID]peer.AddrInfo{}, map[peer.ID]chan struct{}{}
	for _, text := range texts {
		info, _ := ParsePeer(text) // Verify has checked it
		all := c.relays[info.ID]
		all.ID, all.Addrs = info.ID, append(all.Addrs, info.Addrs...)
		c.relays[info.ID] = all
		c.lost[info.ID] = make(chan struct{}, 1)
	}
}

// start begins to ask the relays for reservations.
func (c *circuits) start() {
	c.node.host.Network().Notify(&network.NotifyBundle{DisconnectedF: func(net network.Network, conn network.Conn) {
		if lost := c.lost[conn.RemotePeer()]; lost != nil && net.Connectedness(conn.RemotePeer()) != network.Connected {
			select {
			case lost <- struct{}{}:
			default:
			}
		}
	}})
	for id, info := range c.relays {
		c.node.host.ConnManager().Protect(id, tagRelay)
		c.node.host.Peerstore().AddAddrs(id, info.Addrs, peerstore.PermanentAddrTTL)
		c.work.Go(func() { c.keep(c.node.life, info) })
	}
}

// has reports whether a peer is one of the relays of the configuration.
func (c *circuits) has(id peer.ID) bool { return c.lost[id] != nil }

// keep holds a reservation at a relay until ctx ends.
func (c *circuits) keep(ctx context.Context, relay peer.AddrInfo) {
	pause, logged := firstPause, ""
	for ctx.Err() == nil {
		place, err := c.reserve(ctx, relay)
		wait := pause
		switch {
		case err == nil:
			c.set(relay)
			c.node.log.Info("peers: reached through a relay", "relay", relay.ID.String(), "until", place.Expiration)
			pause, logged = firstPause, ""
			wait = max(time.Until(place.Expiration)*3/4, mostPause)
		case ctx.Err() == nil:
			c.unset(relay.ID)
			if text := err.Error(); text != logged {
				c.node.log.Warn("peers: not reached through a relay, trying again", "relay", relay.ID.String(), "error", err)
				logged = text
			}
			pause = min(2*pause, mostPause)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-c.lost[relay.ID]:
			if err == nil {
				c.unset(relay.ID)
			}
		}
		timer.Stop()
	}
}

// reserve asks a relay for a reservation.
func (c *circuits) reserve(ctx context.Context, relay peer.AddrInfo) (*client.Reservation, error) {
	if err := c.node.connect(ctx, relay); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.node.cfg.DialTimeout)
	defer cancel()
	place, err := client.Reserve(ctx, c.node.host, relay)
	if refused := (client.ReservationError{}); errors.As(err, &refused) {
		return nil, fmt.Errorf("%w: the relay answers %s: %s", ErrNotConnected, refused.Status, refused.Reason)
	}
	return place, err
}

// set records the addresses of this node at a relay.
func (c *circuits) set(relay peer.AddrInfo) {
	var addrs []ma.Multiaddr
	for _, a := range relay.Addrs {
		addrs = append(addrs, ma.Join(a, ma.StringCast("/p2p/"+relay.ID.String()+"/p2p-circuit")))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs[relay.ID] = addrs
}

func (c *circuits) unset(relay peer.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.addrs, relay)
}

// all returns the addresses of this node at its relays.
func (c *circuits) all() (addrs []ma.Multiaddr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.addrs {
		addrs = append(addrs, a...)
	}
	slices.SortFunc(addrs, ma.Multiaddr.Compare)
	return addrs
}

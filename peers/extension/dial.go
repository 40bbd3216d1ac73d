package extension

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/tunnel"
)

// Dialer implements extend.Part.
func (p *part) Dialer(u *config.Upstream) (extend.Dialer, bool) {
	if !carried(u) {
		return extend.Dialer{}, false
	}
	choice := choiceOf(config.PartOf[UpstreamKeys](u).Providers)
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) { return p.dial(ctx, endpoint, choice) }
	return extend.Dialer{Dial: dial, Probe: dial}, true
}

// dial connects to an endpoint: a service of another node, or an address.
func (p *part) dial(ctx context.Context, endpoint string, choice peers.Choice) (net.Conn, error) {
	target, ok := targetOf(endpoint)
	if !ok {
		return netaddr.Dial(ctx, endpoint)
	}
	node, err := p.await(ctx)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	c, err := connectTo(ctx, node, target, choice)
	if err != nil {
		return nil, err
	}
	return tunnel.Pooled(c), nil
}

// connectTo connects to a target. If the target has no peer, choice restricts the nodes.
func connectTo(ctx context.Context, node *peers.Node, target peers.Target, choice peers.Choice) (*tunnel.Conn, error) {
	if target.Peer == "" {
		return node.DialService(ctx, target.Service, choice)
	}
	return node.Dial(ctx, target)
}

// Carrier implements extend.Part.
func (p *part) Carrier(u *config.Upstream) (listener string, ok bool) { return "", carried(u) }

// Retreats implements extend.Part. Upstreams of optimistic protocols keep no idle connections.
func (p *part) Retreats(u *config.Upstream) bool {
	node := p.now()
	if node == nil || u.Optimistic() {
		return false
	}
	return slices.ContainsFunc(targetsOf(u), func(t peers.Target) bool { return node.Leaving(t.Peer) })
}

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
	return extend.Dialer{Dial: p.dial, Probe: p.dial}, true
}

// dial connects to an endpoint. An upstream may have such of both kinds.
func (p *part) dial(ctx context.Context, endpoint string) (net.Conn, error) {
	target, ok := targetOf(endpoint)
	if !ok {
		return netaddr.Dial(ctx, endpoint)
	}
	node := p.now()
	if node == nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, errStarting)
	}
	c, err := node.Dial(ctx, target)
	if err != nil {
		return nil, err
	}
	return tunnel.Pooled(c), nil
}

// Carrier implements extend.Part.
func (p *part) Carrier(u *config.Upstream) (listener string, ok bool) { return "", carried(u) }

// Retreats implements extend.Part. Upstreams of tcp listeners keep nothing idle.
func (p *part) Retreats(u *config.Upstream) bool {
	node := p.now()
	if node == nil || u.Protocol == config.TCP {
		return false
	}
	return slices.ContainsFunc(targetsOf(u), func(t peers.Target) bool { return node.Leaving(t.Peer) })
}

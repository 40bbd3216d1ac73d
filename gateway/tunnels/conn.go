package tunnels

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/tunnel"
)

// Dialer implements extend.Part.
func (p *part) Dialer(u *config.Upstream) (extend.Dialer, bool) {
	name, wait := through(u), !u.Optimistic()
	if name == "" {
		return extend.Dialer{}, false
	}
	return extend.Dialer{
		Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
			c, err := p.through(ctx, name, endpoint, wait)
			if err != nil {
				return nil, err
			}
			return tunnel.Pooled(c), nil
		},
		Probe: func(ctx context.Context, endpoint string) (net.Conn, error) {
			return p.through(tunnel.NoWait(ctx), name, endpoint, true) // a full tunnel is no silent endpoint
		},
	}, true
}

// through opens a connection through a tunnel. wait says whether to wait until the far side has
// connected. For pooled connections that is worth the round trip, since another endpoint can then be
// tried; for a connection whose client waits it is not.
func (p *part) through(ctx context.Context, name, target string, wait bool) (*tunnel.Conn, error) {
	for {
		conn, by, err := p.throughNow(ctx, name, target, wait)
		if err == nil || by == nil || !errors.Is(err, tunnel.ErrClosed) {
			return conn, err
		}
		if l, _ := p.now(name); l == nil || l.client == by {
			return nil, err // the client was not replaced
		}
	}
}

// throughNow is through with the tunnel's present client; by is that client, if there is one.
func (p *part) throughNow(ctx context.Context, name, target string, wait bool) (conn *tunnel.Conn, by *tunnel.Client, err error) {
	l, t := p.now(name)
	var server *tunnel.Server
	if l != nil {
		by = l.client
	} else if t != nil {
		server = p.server(t.Listener)
	}
	switch {
	case by != nil && wait:
		conn, err = by.Dial(ctx, target)
	case by != nil:
		conn, err = by.Open(ctx, target)
	case server != nil && wait:
		conn, err = server.Dial(ctx, t.Peer, target)
	case server != nil:
		conn, err = server.Open(ctx, t.Peer, target)
	default:
		err = fmt.Errorf("tunnel %q: %w", name, errStarting)
	}
	return conn, by, err
}

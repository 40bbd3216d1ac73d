package peers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/headpond/headpond/tunnel"
)

// The errors that [Node.Dial] wraps in an [*Error], in addition to ErrNotConnected and ErrClosed.
var (
	// ErrNotOffered: the peer does not offer the service, or does not permit this node to call it.
	// The peer does not say which.
	ErrNotOffered = errors.New("peers: the service is not offered to this node")
	// ErrUnreachable: the peer cannot connect to the service's server.
	ErrUnreachable = errors.New("peers: the peer cannot connect to the service")
	// ErrBusy: one of the two sides has reached a limit of connections.
	ErrBusy = errors.New("peers: too many connections")
)

// Error says which service of which peer could not be called, and why.
type Error struct {
	Peer    string // its ID; empty: any node that offers the service
	Service string
	Err     error
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	if e.Peer == "" {
		return fmt.Sprintf("service %s: %v", e.Service, e.Err)
	}
	return fmt.Sprintf("service %s of peer %s: %v", e.Service, e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether a deadline was the cause.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// Target is a service to call. It is written "PEERID/service", or "service" for any node that
// offers it.
type Target struct {
	Peer    string // an ID; empty: any
	Service string
}

// String returns the form that ParseTarget parses.
func (t Target) String() string {
	if t.Peer == "" {
		return t.Service
	}
	return t.Peer + "/" + t.Service
}

// ParseTarget parses a Target.
func ParseTarget(text string) (Target, error) {
	id, service, ok := strings.Cut(text, "/")
	if !ok {
		if _, err := ParseID(text); err == nil {
			return Target{}, fmt.Errorf("the service is missing after the peer ID: want PEERID/service")
		}
		return Target{"", text}, CheckService(text)
	}
	if _, err := ParseID(id); err != nil {
		return Target{}, err
	}
	return Target{id, service}, CheckService(service)
}

// Dial connects to a service. If t has no Peer, it chooses a node that offers the service. It waits
// until the peer has connected to the service's server. That takes one round trip if this node has
// called the peer before. The error is an *Error.
func (n *Node) Dial(ctx context.Context, t Target) (*tunnel.Conn, error) {
	if t.Peer == "" {
		return n.DialService(ctx, t.Service, Choice{})
	}
	id, err := ParseID(t.Peer)
	if err == nil {
		err = CheckService(t.Service)
	}
	if err == nil && id == n.id {
		err = fmt.Errorf("%w: it is this node; connect to the server itself", ErrConfig)
	}
	if err != nil {
		return nil, &Error{t.Peer, t.Service, err}
	}
	conn, err := n.dial(ctx, id, t.Service)
	if err != nil {
		return nil, &Error{t.Peer, t.Service, translate(err)}
	}
	return conn, nil
}

func (n *Node) dial(ctx context.Context, id peer.ID, service string) (*tunnel.Conn, error) {
	for {
		if err := n.lookUp(ctx, id); err != nil {
			return nil, err
		}
		l, done, err := n.links.to(id)
		if err != nil {
			return nil, err
		}
		conn, err := l.client.Dial(ctx, tunnel.UpstreamPrefix+service)
		done()
		if errors.Is(err, tunnel.ErrClosed) && n.life.Err() == nil {
			continue // the link was idle and has just been closed
		}
		return conn, err
	}
}

// translate wraps an error of package tunnel in the corresponding error of this package.
func translate(err error) error {
	if inner, ok := errors.AsType[*tunnel.Error](err); ok {
		err = inner.Err
	}
	for _, m := range []struct{ is, means error }{
		{tunnel.ErrRefused, ErrNotOffered}, {tunnel.ErrUnreachable, ErrUnreachable}, {tunnel.ErrBusy, ErrBusy}, {tunnel.ErrClosed, ErrClosed},
		{tunnel.ErrNotConnected, ErrNotConnected},
	} {
		if errors.Is(err, m.is) && !errors.Is(err, m.means) {
			return fmt.Errorf("%w: %w", m.means, err)
		}
	}
	return err
}

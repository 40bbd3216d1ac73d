package tunnel

import (
	"context"
	"fmt"
	"strings"

	"github.com/headpond/headpond/mux"
)

// noWaitKey is the key of NoWait in contexts.
type noWaitKey struct{}

// NoWait returns a context with which Open and Dial fail with ErrBusy at once where they would wait because this side has as many streams
// open as the other one allows: for checks, whose time says something about the target.
func NoWait(ctx context.Context) context.Context { return context.WithValue(ctx, noWaitKey{}, true) }

// Open opens a connection to a target at the server's side. It costs no round
// trip: whether the target may and can be reached shows when the Conn is read. It
// waits for a session only while an attempt to have one is under way, or one that has
// lost its socket is to be resumed, and, first come first served, while this side has as many streams open as the server allows;
// ctx bounds that. The error is an *Error and wraps ErrNotConnected, ErrBusy, ErrClosed
// or ErrConfig.
func (c *Client) Open(ctx context.Context, target string) (*Conn, error) {
	return c.open(ctx, target, mux.ID{})
}

func (c *Client) open(ctx context.Context, target string, id mux.ID) (*Conn, error) {
	return open(ctx, c.sessions, c.cfg.Tunnel, "", target, id, func(stale bool, changed <-chan struct{}) error {
		c.mu.Lock()
		failed := c.failed.err
		c.mu.Unlock()
		if failed != nil {
			return fmt.Errorf("%w to %s: %w", ErrNotConnected, strings.Join(c.cfg.addresses(), ", "), failed)
		}
		if stale {
			c.checkNow()
		}
		select {
		case <-changed:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrNotConnected, context.Cause(ctx))
		}
	})
}

// Dial is Open, but waits until the target is reached, which takes a round trip. The error may wrap
// ErrRefused, ErrUnreachable or ctx's too.
func (c *Client) Dial(ctx context.Context, target string) (*Conn, error) {
	conn, err := c.open(ctx, target, answerAtOnce)
	return dialled(ctx, conn, err)
}

// Open is Client.Open the other way: to a target at the side of a peer, by the name
// it has connected with. A peer that has no session now is ErrNotConnected at once.
func (s *Server) Open(ctx context.Context, peer, target string) (*Conn, error) {
	return s.open(ctx, peer, target, mux.ID{})
}

func (s *Server) open(ctx context.Context, peer, target string, id mux.ID) (*Conn, error) {
	return open(ctx, s.sessions, peer, peer, target, id, func(bool, <-chan struct{}) error {
		return fmt.Errorf("%w: no session of peer %q", ErrNotConnected, peer)
	})
}

// Dial is Client.Dial the other way.
func (s *Server) Dial(ctx context.Context, peer, target string) (*Conn, error) {
	conn, err := s.open(ctx, peer, target, answerAtOnce)
	return dialled(ctx, conn, err)
}

func open(ctx context.Context, t *sessions, name, peer, target string, id mux.ID, idle func(bool, <-chan struct{}) error) (*Conn, error) {
	err := CheckTarget(target)
	var st *mux.Stream
	if err == nil {
		st, err = t.open(ctx, peer, target, id, idle)
	}
	if err != nil {
		return nil, &Error{Tunnel: name, Target: target, Err: err}
	}
	return &Conn{st: st, tunnel: name}, nil
}

func dialled(ctx context.Context, c *Conn, err error) (*Conn, error) {
	if err != nil {
		return nil, err
	}
	if err := c.await(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

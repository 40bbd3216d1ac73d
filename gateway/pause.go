package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/upstream"
)

// ErrNotPaused is wrapped by the error of ResumeUpstream for an upstream that is not paused.
var ErrNotPaused = errors.New("it is not paused")

// PauseUpstream stops the use of an upstream's servers, for maintenance: connections are closed as soon as they are
// idle, and none is opened. Clients wait until ResumeUpstream, or until the limit is over. A reload does not end the
// pause, also if it replaces the upstream: the clients that wait continue with the new one. The end of the gateway does,
// and an upgrade preserves it. PauseUpstream does not wait for the connections in use: see Snapshot. The error wraps
// admin.ErrUnknown if there is no such upstream, upstream.ErrConfig if the limit is not from 1 ns to upstream.MaxPause,
// and ErrClosed while the gateway starts or ends.
func (g *Gateway) PauseUpstream(name string, limit time.Duration) error {
	b, of, err := g.lockPausable(name)
	if err != nil {
		return err
	}
	defer g.reloading.Unlock()
	if err := of.Pause(limit); err != nil {
		return err
	}
	for _, old := range g.followers(name) {
		old.pauseUntil(time.Now().Add(limit))
	}
	g.logger.Info("upstream paused by an operator", "upstream", b.cfg.Name, "limit", limit)
	return nil
}

// ResumeUpstream ends the pause of an upstream. The error wraps admin.ErrUnknown if there is no such upstream,
// ErrNotPaused, and ErrClosed while the gateway starts or ends.
func (g *Gateway) ResumeUpstream(name string) error {
	b, of, err := g.lockPausable(name)
	if err != nil {
		return err
	}
	defer g.reloading.Unlock()
	if !of.Resume() {
		return fmt.Errorf("upstream %q: %w", name, ErrNotPaused)
	}
	for _, old := range g.followers(name) {
		old.impl.(extend.Pausable).Resume() //nolint:forcetypeassert // it is paused
	}
	g.logger.Info("upstream resumed by an operator", "upstream", b.cfg.Name)
	return nil
}

// lockPausable returns an upstream with g.reloading held, or an error without.
func (g *Gateway) lockPausable(name string) (*backend, extend.Pausable, error) {
	if !g.lockRunning() {
		return nil, nil, fmt.Errorf("%w: no upstream can be paused or resumed now", ErrClosed)
	}
	b, err := g.backendNamed(name)
	if err == nil {
		if of, ok := b.impl.(extend.Pausable); ok {
			return b, of, nil
		}
		err = fmt.Errorf("upstream %q: upstreams of protocol %s cannot be paused", name, b.cfg.Protocol)
	}
	g.reloading.Unlock()
	return nil, nil, err
}

// pauseUntil pauses b; a time that has passed does not.
func (b *backend) pauseUntil(until time.Time) {
	of, ok := b.impl.(extend.Pausable)
	if left := min(time.Until(until), upstream.MaxPause); ok && left > 0 {
		_ = of.Pause(left) // no error: it is not closed
	}
}

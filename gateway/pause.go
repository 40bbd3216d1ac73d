package gateway

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/upstream"
)

// ErrNotPaused is wrapped by the error of ResumeUpstream for an upstream that is not paused.
var ErrNotPaused = errors.New("it is not paused")

// pause is a pause of an upstream, which several operators may have asked for.
type pause struct {
	requests  int  // those that were not taken back
	inherited bool // from the previous process, which may still take some back
}

// PauseUpstream stops the use of an upstream's servers, for maintenance: connections are closed as soon as they are
// idle, and none is opened. Clients wait until ResumeUpstream, or until the limit is over. A reload does not end the
// pause, also if it replaces the upstream: the clients that wait continue with the new one. The end of the gateway does,
// and an upgrade preserves it. Old processes of an upgrade pause, too. PauseUpstream does not wait for the connections in use: see Snapshot. The error wraps
// admin.ErrUnknown if there is no such upstream, upstream.ErrConfig if the limit is not from 1 ns to upstream.MaxPause,
// and ErrClosed while the gateway starts or ends.
func (g *Gateway) PauseUpstream(name string, limit time.Duration) error {
	b, of, err := g.lockPausable(name)
	if err != nil {
		return err
	}
	defer g.reloading.Unlock()
	_, err = g.pauseLocked(b, of, limit)
	return err
}

// HoldUpstream is PauseUpstream for a request that may be taken back: undo ends the pause, unless it was ended already or
// somebody else has asked for it too, before or after. The limit of a pause that is in force stays. undo has no effect
// after its first call, and may wait for a reload to end.
func (g *Gateway) HoldUpstream(name string, limit time.Duration) (undo func(), err error) {
	b, of, err := g.lockPausable(name)
	if err != nil {
		return nil, err
	}
	defer g.reloading.Unlock()
	p := g.pauses[b.cfg.Name]
	if p != nil && !b.impl.Status().PausedUntil.IsZero() {
		p.requests++
	} else if p, err = g.pauseLocked(b, of, limit); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { g.takeBack(name, p) }), nil
}

// pauseLocked pauses an upstream, or changes the limit of its pause. g.reloading is held.
func (g *Gateway) pauseLocked(b *backend, of extend.Pausable, limit time.Duration) (*pause, error) {
	p := g.pauses[b.cfg.Name]
	if p == nil || b.impl.Status().PausedUntil.IsZero() { // the one before has ended by itself
		p = &pause{}
	}
	if err := of.Pause(limit); err != nil {
		return nil, err
	}
	p.requests++
	g.pauses[b.cfg.Name] = p
	until := time.Now().Add(limit)
	for _, old := range g.followers(b.cfg.Name) {
		old.pauseUntil(until)
	}
	g.pauseElsewhere(b.cfg.Name, until)
	g.logger.Info("upstream paused by an operator", "upstream", b.cfg.Name, "limit", limit)
	return p, nil
}

// takeBack ends a pause if nobody else has asked for it.
func (g *Gateway) takeBack(name string, p *pause) {
	b, of, err := g.lockPausable(name)
	if err != nil { // it was removed, or the gateway ends
		g.takeBackThere(name)
		return
	}
	defer g.reloading.Unlock()
	if p.requests--; p.requests == 0 && g.pauses[b.cfg.Name] == p {
		g.resumeLocked(b, of)
	}
}

// resumeLocked ends the pause of an upstream, and reports whether there was one. g.reloading is held.
func (g *Gateway) resumeLocked(b *backend, of extend.Pausable) bool {
	delete(g.pauses, b.cfg.Name)
	if !of.Resume() {
		return false
	}
	for _, old := range g.followers(b.cfg.Name) {
		old.resume()
	}
	g.pauseElsewhere(b.cfg.Name, time.Time{})
	g.logger.Info("upstream resumed by an operator", "upstream", b.cfg.Name)
	return true
}

// pauseElsewhere makes older processes, whose sessions use the same servers, begin or end a pause.
func (g *Gateway) pauseElsewhere(name string, until time.Time) {
	older := g.processes.answering()
	if len(askAll[any](older, askPatience, askPause, pauseChange{name, until.Round(0)})) < len(older) {
		g.logger.Warn("an old process did not apply a pause or its end", "upstream", name)
	}
}

// pauseToo begins or ends a pause here because the process that has taken over does. It waits for no reload and no drain.
func (g *Gateway) pauseToo(c pauseChange) {
	g.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(g.backends), func(b *backend) bool { return b.cfg.Name != c.Upstream })
	g.mu.Unlock()
	for _, b := range append(all, g.followers(c.Upstream)...) {
		if c.Until.IsZero() {
			b.resume()
		} else {
			b.pauseUntil(c.Until)
		}
	}
}

// ResumeUpstream ends the pause of an upstream, whoever has asked for it. The error wraps admin.ErrUnknown if there is no
// such upstream, ErrNotPaused, and ErrClosed while the gateway starts or ends.
func (g *Gateway) ResumeUpstream(name string) error {
	b, of, err := g.lockPausable(name)
	if err != nil {
		return err
	}
	defer g.reloading.Unlock()
	if !g.resumeLocked(b, of) {
		return fmt.Errorf("upstream %q: %w", name, ErrNotPaused)
	}
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

// resume ends the pause of b.
func (b *backend) resume() {
	if of, ok := b.impl.(extend.Pausable); ok {
		of.Resume()
	}
}

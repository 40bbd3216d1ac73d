package gateway

import (
	"context"
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/upstream"
)

// operatorChanges are what operators have changed at run time, which an upgrade preserves, by the names of upstreams.
type operatorChanges map[string]upstreamChanges

// upstreamChanges holds the changes of one upstream.
type upstreamChanges struct {
	PausedUntil time.Time        `json:"paused_until,omitzero"` // by the clock of the machine, which both processes have
	Pauses      int              `json:"pauses,omitempty"`      // requests for the pause that were not taken back; 0: some
	Endpoints   []endpointChange `json:"endpoints,omitempty"`
}

// endpointChange is an upstream.Override.
type endpointChange struct {
	Address  string            `json:"address"`
	Weight   int               `json:"weight,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Zone     string            `json:"zone,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Added    bool              `json:"added,omitempty"`
	Out      upstream.Out      `json:"out,omitempty"`
	Keep     bool              `json:"keep,omitempty"`
}

// changesOf returns the changes of one upstream.
func changesOf(b *backend) (c upstreamChanges) {
	c.PausedUntil = b.impl.Status().PausedUntil.Round(0)
	for _, o := range b.overrides() {
		c.Endpoints = append(c.Endpoints, endpointChange{o.Address, o.Weight, o.Priority, o.Zone, o.Metadata, o.Added, o.Out, o.Keep})
	}
	return c
}

// overrides is the reverse of changesOf, for the endpoints.
func (c upstreamChanges) overrides() (list []upstream.Override) {
	for _, e := range c.Endpoints {
		list = append(list, upstream.Override{
			Endpoint: upstream.Endpoint{Address: e.Address, Weight: e.Weight, Priority: e.Priority, Zone: e.Zone, Metadata: e.Metadata},
			Added:    e.Added, Out: e.Out, Keep: e.Keep,
		})
	}
	return list
}

// changes returns the changes of all upstreams, also empty ones. reloading is held.
func (g *Gateway) changes() operatorChanges {
	g.mu.Lock()
	backends := map[string]*backend{}
	for _, b := range g.backends {
		backends[b.cfg.Name] = b
	}
	g.mu.Unlock()
	all := operatorChanges{}
	for name, b := range backends {
		c := changesOf(b)
		if p := g.pauses[name]; p != nil && !c.PausedUntil.IsZero() {
			c.Pauses = p.requests
		}
		all[name] = c
	}
	return all
}

// handOverChanges returns what operators have changed to a process that takes over, and records that it has got them.
func (g *Gateway) handOverChanges(to *process) (operatorChanges, error) {
	if !g.lockRunning() {
		return nil, ErrClosed
	}
	defer g.reloading.Unlock()
	c := g.changes()
	g.processes.mu.Lock()
	defer g.processes.mu.Unlock()
	g.processes.successor, g.processes.inherited = to, c
	return c, nil
}

// handOverLaterChanges sends the process that has taken over what operators have changed since it started. Nothing can be
// changed any more.
func (g *Gateway) handOverLaterChanges() {
	g.processes.mu.Lock()
	successor, had := g.processes.successor, g.processes.inherited
	g.processes.mu.Unlock()
	if successor == nil {
		return
	}
	rest := g.changes()
	maps.DeleteFunc(rest, func(name string, c upstreamChanges) bool { return reflect.DeepEqual(c, had[name]) })
	if len(rest) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), statePatience)
	defer cancel()
	if err := successor.link.Call(ctx, askChange, rest, nil); err != nil {
		g.logger.Error("the new process has not taken over what operators changed while it started", "pid", os.Getpid(),
			"upstreams", slices.Sorted(maps.Keys(rest)), "error", err)
	}
}

// inheritChanges asks the previous process what operators have changed.
func (g *Gateway) inheritChanges() {
	older := g.processes.older()
	if len(older) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), statePatience)
	defer cancel()
	var c operatorChanges
	if err := older[0].ask(ctx, askState, nil, &c); err != nil { // the others drain
		g.logger.Warn("pauses and changes of endpoints are not taken over from the previous process", "pid", os.Getpid(), "old", older[0].pid, "error", err)
		return
	}
	g.toTake = c
}

// takeOver builds an upstream as operators have changed the one of the previous process.
func (g *Gateway) takeOver(name string, build func([]upstream.Override) (*backend, error)) (*backend, error) {
	c := g.toTake[name]
	list := c.overrides()
	b, err := build(list)
	if errors.Is(err, upstream.ErrConfig) && len(list) > 0 { // of another version
		g.logger.Warn("changes of endpoints are not taken over from the previous process", "upstream", name, "error", err)
		list = nil
		b, err = build(nil)
	}
	if err != nil {
		return nil, err
	}
	g.keepPause(b, c)
	if len(list) > 0 || time.Until(c.PausedUntil) > 0 {
		g.logger.Info("operators' changes are taken over from the previous process", "upstream", name, "endpoints", len(list), "pause", time.Until(c.PausedUntil))
	}
	return b, nil
}

// takeChanges changes running upstreams as operators have changed those of the previous process.
func (g *Gateway) takeChanges(c operatorChanges) error {
	if !g.lockRunning() {
		return ErrClosed
	}
	defer g.reloading.Unlock()
	var errs []error
	for _, b := range g.backends {
		change, ok := c[b.cfg.Name]
		if !ok {
			continue
		}
		if _, ok := b.impl.(extend.Changeable); ok {
			s, err := g.settingsOf(&b.cfg, b)
			if s.Overrides = change.overrides(); err == nil {
				err = b.impl.Update(s)
			}
			errs = append(errs, err)
		}
		if time.Until(change.PausedUntil) <= 0 {
			b.resume()
		}
		g.keepPause(b, change)
		g.logger.Info("operators' changes are taken over from the previous process", "upstream", b.cfg.Name, "endpoints", len(change.Endpoints), "pause", max(time.Until(change.PausedUntil), 0))
	}
	return errors.Join(errs...)
}

// keepPause pauses an upstream if the previous process has. reloading is held, or the gateway does not run.
func (g *Gateway) keepPause(b *backend, c upstreamChanges) {
	delete(g.pauses, b.cfg.Name)
	if b.pauseUntil(c.PausedUntil); b.paused() {
		g.pauses[b.cfg.Name] = &pause{requests: max(c.Pauses, 1), inherited: true}
	}
}

// takeBackThere takes a request for a pause back in the process that has taken over, if one has.
func (g *Gateway) takeBackThere(name string) {
	g.mu.Lock()
	left := g.left
	g.mu.Unlock()
	g.processes.mu.Lock()
	successor := g.processes.successor
	g.processes.mu.Unlock()
	if !left || successor == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), statePatience)
	defer cancel()
	if err := successor.link.Call(ctx, askTakeBack, name, nil); err != nil {
		g.logger.Error("a pause was taken back here, but continues in the process that has taken over", "pid", os.Getpid(), "upstream", name,
			"hint", "headpond ctl resume "+name, "error", err)
	}
}

// takeBackInherited takes back a request for a pause that was made in the previous process.
func (g *Gateway) takeBackInherited(name string) {
	if !g.lockRunning() {
		g.takeBackThere(name)
		return
	}
	p := g.pauses[name]
	g.reloading.Unlock()
	if p != nil && p.inherited {
		g.takeBack(name, p)
	}
}

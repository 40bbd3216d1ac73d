package gateway

import (
	"slices"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// When the gateway at the other side of a tunnel drains, it also waits for connections that pools of
// this gateway keep idle. lookInterval is the time until these are closed, and idlePinch how long the
// pools then keep no idle connections.
const (
	lookInterval = time.Second
	idlePinch    = 100 * time.Millisecond
	leastIdle    = 5 * time.Millisecond
)

// watchCarriers begins to look for draining gateways if an upstream is reached through one. mu is not
// held.
func (g *Gateway) watchCarriers(cfg *config.Config) {
	if !slices.ContainsFunc(cfg.Upstreams, func(u config.Upstream) bool { return u.Far() }) {
		return
	}
	g.watching.Do(func() { g.tasks.Go(g.lookAtCarriers) })
}

func (g *Gateway) lookAtCarriers() {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		select {
		case <-g.hard.Done():
			return
		case <-look.C:
		}
		if !g.reloading.TryLock() {
			continue // during a reload, or this gateway's own drain, which closes the connections too
		}
		for _, b := range g.backends {
			if slices.ContainsFunc(g.parts, func(p extend.Part) bool { return p.Retreats(&b.cfg) }) {
				g.closeIdle(b)
			}
		}
		g.reloading.Unlock()
	}
}

// closeIdle closes idle connections in a backend's pools. reloading is held.
func (g *Gateway) closeIdle(b *backend) {
	s, err := g.settingsOf(&b.cfg, b)
	if err != nil {
		return // such limits were accepted before; a file may be missing since
	}
	none := s
	none.Limits.IdleTimeout, none.Limits.MinIdle, none.Limits.MaxWarm = leastIdle, 0, 0
	if b.impl.Update(none) != nil {
		return // the backend is closed
	}
	wait(g.hard, idlePinch)
	_ = b.impl.Update(s)
}

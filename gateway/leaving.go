package gateway

import (
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// A gateway at the other side of a tunnel that drains waits for the connections in it, also for those that pools here keep idle for the
// next session. lookInterval is how soon they are closed, idlePinch for how long the pools keep nothing idle.
const (
	lookInterval = time.Second
	idlePinch    = 100 * time.Millisecond
	leastIdle    = 5 * time.Millisecond
)

// watchTunnels begins to look for tunnels that drain, once there is a tunnel. mu is not held.
func (g *Gateway) watchTunnels(cfg *config.Config) {
	if len(cfg.Tunnels) == 0 {
		return
	}
	g.watching.Do(func() { g.tasks.Go(g.lookAtTunnels) })
}

func (g *Gateway) lookAtTunnels() {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		select {
		case <-g.hard.Done():
			return
		case <-look.C:
		}
		if !g.reloading.TryLock() {
			continue // a reload, or this gateway's own drain, which closes them too
		}
		for _, b := range g.backends {
			if b.cfg.Tunnel != "" && b.cfg.Protocol != config.TCP && g.leaves(b.cfg.Tunnel) {
				g.closeIdle(b)
			}
		}
		g.reloading.Unlock()
	}
}

// leaves reports whether some session of a tunnel drains.
func (g *Gateway) leaves(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.links[name]; l != nil && l.client.Leaving() {
		return true
	}
	if t := g.cfg.Tunnel(name); t != nil && t.Listener != "" {
		if s := g.tunnelServer(t.Listener); s != nil && s.Leaving(t.Peer) {
			return true
		}
	}
	return g.tunnelLeaves(name)
}

// closeIdle closes what a backend's pools keep idle. reloading is held.
func (g *Gateway) closeIdle(b *backend) {
	s, err := g.settingsOf(&b.cfg)
	if err != nil {
		return // it was accepted before; a file has gone since
	}
	none := s
	none.limits.IdleTimeout, none.limits.MinIdle = leastIdle, 0
	if b.impl.update(none) != nil {
		return // closed
	}
	wait(g.hard, idlePinch)
	_ = b.impl.update(s)
}

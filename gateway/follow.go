package gateway

import (
	"fmt"
	"slices"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// A reload may replace an upstream while it is paused, for example because its servers move. The old backend then stays
// paused as long as the new one: its clients wait, and continue at the servers of the new one.

// planFollow makes old, which next replaces, follow next if old is paused, together with the backends that follow old.
func (g *Gateway) planFollow(p *plan, u *config.Upstream, old, next *backend) error {
	for _, b := range append(g.followers(u.Name), old) {
		s, err := g.settingsOf(u, b)
		if err != nil {
			return fmt.Errorf("upstream %q: %w", u.Name, err)
		}
		s.Overrides = old.kept()
		of, ok := b.impl.(extend.Follower)
		if !ok || !b.paused() {
			continue
		}
		p.Commit = append(p.Commit, func() error {
			if !of.Follow(next.impl) {
				return nil
			}
			b.follows.Store(true)
			if err := of.Update(s); err != nil {
				return fmt.Errorf("upstream %q: clients that wait for the end of its pause: %w", u.Name, err)
			}
			if b != old {
				b.impl.Retire() // again, because of the update
			}
			return nil
		})
	}
	return nil
}

// followers returns the paused backends that reloads have replaced by the upstream of that name.
func (g *Gateway) followers(name string) (list []*backend) {
	g.mu.Lock()
	retiring := slices.Clone(g.retiring)
	g.mu.Unlock()
	for _, r := range retiring {
		if b, ok := r.part.(*backend); ok && r.shown.Name == name && b.follows.Load() && b.paused() {
			list = append(list, b)
		}
	}
	return list
}

// paused reports whether the backend is paused.
func (b *backend) paused() bool { return !b.impl.Status().PausedUntil.IsZero() }

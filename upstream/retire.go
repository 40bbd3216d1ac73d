package upstream

import "time"

// retiredIdle is how long connections of a retired Upstream may be idle: an Upstream that replaces it may need the servers' places for
// connections.
const retiredIdle = 5 * time.Second

// Retired returns the settings of an Upstream that serves those who use it already, until it is closed: no connection is
// opened ahead of demand, and none is idle for long.
func (s Settings) Retired() Settings {
	s.Limits.MinIdle, s.Limits.MaxWarm = 0, 0
	if s.Limits.IdleTimeout <= 0 || s.Limits.IdleTimeout > retiredIdle {
		s.Limits.IdleTimeout = retiredIdle
	}
	return s
}

// Retire is an Update with the Retired settings. A pause ends, unless u follows another Upstream; see Follow.
func (u *Upstream[T]) Retire() {
	u.updating.Lock()
	s := u.settings
	u.updating.Unlock()
	_ = u.Update(s.Retired()) // they are valid: an error says that u is closed
	if u.follows.Load() == nil {
		u.Resume()
	}
}

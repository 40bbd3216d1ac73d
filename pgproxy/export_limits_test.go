package pgproxy

import (
	"testing"
	"time"
)

func init() { askPatience = 20 * time.Millisecond } // most queries of tests wait for locks, for a few seconds at most

// ExhaustRenewals uses up the replacements of server connections, for an hour.
func (b *Postgres) ExhaustRenewals() { b.renewals.full.Store(int64(clock() + time.Hour)) }

// SetPinPatience has clients wait for a place among the pinned for at most d.
func (b *Postgres) SetPinPatience(d time.Duration) { b.tables.pins.patience.Store(int64(d)) }

// SecretWaiters returns how many look-ups of users wait for their turn, -1 if none runs.
func (b *Postgres) SecretWaiters() int {
	st := b.secrets.turns.Stats()
	return st.Waiting + st.InUse - 1
}

// SetSecretTimeout bounds look-ups of users by d in a test. It must come before the gateway starts, so that it is undone when that has ended.
func SetSecretTimeout(t testing.TB, d time.Duration) {
	was := secretTimeout
	secretTimeout = d
	t.Cleanup(func() { secretTimeout = was })
}

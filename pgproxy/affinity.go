package pgproxy

import (
	"hash/maphash"
	"unique"

	"github.com/headpond/headpond/pool"
)

// In transaction mode clients prefer server connections that have their settings: to change settings takes work
// (machine_replay.go), and sometimes a round trip. So an affinity combines the loop of the client or server
// connection with a number for its settings.

// appliedSettings are all settings of a client or of a server connection.
type appliedSettings struct {
	reported unique.Handle[trackedParams]
	key      string // in the form of machine.settingsKey
}

// kind returns a number of kindBits for the settings. Different settings may have the same number: it is only for
// preferences.
func (s appliedSettings) kind() int32 {
	return int32(maphash.Comparable(verdictSeed, s) & (1<<kindBits - 1))
}

// kindBits is the number of bits of an int32 besides the place and the sign.
const kindBits = 31 - pool.AffinityPlace

// affinityOf returns the affinity of a client or server connection, from its loop and the kind of its settings.
func affinityOf(loop int, kind int32) int {
	if loop == 0 {
		return 0
	}
	return loop&(1<<pool.AffinityPlace-1) | int(kind)<<pool.AffinityPlace
}

// kindOf returns the kind of the client's settings.
func (m *machine) kindOf() int32 {
	if now := (appliedSettings{m.reported, m.settingsKey}); now != m.kindSettings {
		m.kindSettings, m.kind = now, now.kind()
	}
	return m.kind
}

// affineParker adds the settings to the affinity of a fiber's parker. It belongs to the session, which sets kind
// before each acquire.
type affineParker struct {
	pool.TryParker     // nil = the session has none
	loop           int // the fiber's
	kind           int32
}

var _ pool.AffinityParker = (*affineParker)(nil)

// newAffineParker returns an affineParker for a fiber's parker.
func newAffineParker(p pool.TryParker) affineParker {
	loop := 0
	if at, ok := p.(pool.AffinityParker); ok {
		loop = at.Affinity()
	}
	return affineParker{TryParker: p, loop: loop}
}

// Affinity implements pool.AffinityParker.
func (p *affineParker) Affinity() int { return affinityOf(p.loop, p.kind) }

package pgproxy

import (
	"hash/maphash"
	"unique"

	"github.com/headpond/headpond/pool"
)

// In transaction mode clients prefer server connections that have their settings: setting others takes work (machine_replay.go), and sometimes a round trip. So the affinity of a
// client and of a server connection has the loop they are on, and a number for the settings.

// appliedSettings are all settings of a client or of a server connection.
type appliedSettings struct {
	reported unique.Handle[trackedParams]
	key      string // as machine.settingsKey
}

// kind returns a number for the settings, of kindBits. Different settings may have the same: it is for preferences only.
func (s appliedSettings) kind() int32 {
	return int32(maphash.Comparable(verdictSeed, s) & (1<<kindBits - 1))
}

// kindBits are what an int of 32 bits has beside the place and the sign.
const kindBits = 31 - pool.AffinityPlace

// affinityOf returns the affinity of clients and server connections on a loop, with settings of a kind.
func affinityOf(loop int, kind int32) int {
	if loop == 0 {
		return 0
	}
	return loop&(1<<pool.AffinityPlace-1) | int(kind)<<pool.AffinityPlace
}

// kindOf returns the kind of the client's settings.
func (m *machine) kindOf() int32 {
	if now := (appliedSettings{m.reported, m.settingsKey}); now != m.kinded {
		m.kinded, m.kind = now, now.kind()
	}
	return m.kind
}

// affineParker is a fiber's parker for a client with settings. It belongs to the session, which sets kind before each acquire.
type affineParker struct {
	pool.TryParker     // nil = the session has none
	loop           int // that the fiber is on
	kind           int32
}

var _ pool.AffinityParker = (*affineParker)(nil)

// newAffineParker returns that of a fiber's parker.
func newAffineParker(p pool.TryParker) affineParker {
	loop := 0
	if at, ok := p.(pool.AffinityParker); ok {
		loop = at.Affinity()
	}
	return affineParker{TryParker: p, loop: loop}
}

// Affinity implements pool.AffinityParker.
func (p *affineParker) Affinity() int { return affinityOf(p.loop, p.kind) }

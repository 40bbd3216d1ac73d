package peers

import (
	"cmp"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Bounds of a table, so that no flood of records takes more memory than that: with the largest records 32 MiB.
const (
	maxEntries    = 2000
	maxTableBytes = 32 << 20
	// maxPast bounds the memory of nodes that are gone. It is kept for longer than a record can be replayed.
	maxPast  = 10_000
	pastLife = 2*maxSkew + maxLife
)

// The reasons why a record is not taken, beside those of unseal.
var (
	errKnown = errors.New("known already")
	errFull  = errors.New("the table is full")
)

// table is what this node knows of the services of others. It knows no clock and no network; its user has a lock.
type table struct {
	entries map[peer.ID]*entry
	past    map[peer.ID]past
	bytes   int // of the records
}

// entry is a node that offers services.
type entry struct {
	id      peer.ID
	record  *nodeRecord
	sealed  []byte    // as it was signed
	since   time.Time // the node has been in the table
	expires time.Time
}

// past is a node that was in the table, or has said that it leaves.
type past struct {
	issued int64
	until  time.Time
}

func newTable() *table { return &table{entries: map[peer.ID]*entry{}, past: map[peer.ID]past{}} }

// put takes a verified record, which is believed for so long as life says, at most as long as the record does. fresh says that the node was not
// in the table, gone that it leaves. The error wraps errKnown or errFull.
func (t *table) put(id peer.ID, r *nodeRecord, sealed []byte, life time.Duration, now time.Time) (fresh, gone bool, err error) {
	if t.knows(id, r) {
		return false, false, errKnown
	}
	old := t.entries[id]
	if len(r.Services) == 0 {
		t.drop(id, r.Issued, now)
		return false, old != nil, nil
	}
	size := len(sealed)
	if old != nil {
		size -= len(old.sealed)
	} else if len(t.entries) >= maxEntries {
		return false, false, errFull
	}
	if t.bytes+size > maxTableBytes {
		return false, false, errFull
	}
	t.bytes += size
	e := &entry{id: id, record: r, sealed: sealed, since: now, expires: now.Add(min(life, r.life()))}
	if old != nil {
		e.since = old.since
	}
	t.entries[id] = e
	delete(t.past, id)
	return old == nil, false, nil
}

// knows reports whether a record says nothing new: the node has said something later, or the same.
func (t *table) knows(id peer.ID, r *nodeRecord) bool {
	last := t.past[id].issued
	if old := t.entries[id]; old != nil {
		last = old.record.Issued
	}
	return r.Issued <= last
}

// drop takes a node out, and remembers what it has said last.
func (t *table) drop(id peer.ID, issued int64, now time.Time) {
	if e := t.entries[id]; e != nil {
		t.bytes -= len(e.sealed)
		delete(t.entries, id)
	}
	if len(t.past) >= maxPast {
		for other := range t.past { // any: a flood has made them
			delete(t.past, other)
			break
		}
	}
	t.past[id] = past{issued, now.Add(pastLife)}
}

// expire takes out what is no longer believed, and returns it.
func (t *table) expire(now time.Time) (gone []peer.ID) {
	for id, e := range t.entries {
		if !e.expires.After(now) {
			gone = append(gone, id)
			t.drop(id, e.record.Issued, now)
		}
	}
	maps.DeleteFunc(t.past, func(_ peer.ID, p past) bool { return !p.until.After(now) })
	return gone
}

// offering returns the nodes that offer a service, in the order in which to try them: those of the highest rank first, and of these those with
// the most room, and any of those that are alike. A rank of 0 leaves a node out; nil: all have the same. known is how many offer it.
func (t *table) offering(service string, busy func(peer.ID) int, rank func(Offer) int) (ids []peer.ID, known int) {
	type candidate struct {
		id   peer.ID
		rank int
		load float64
	}
	var all []candidate
	for id, e := range t.entries {
		i := slices.IndexFunc(e.record.Services, func(o Offer) bool { return o.Name == service })
		if i < 0 {
			continue
		}
		known++
		of := 1
		if rank != nil {
			of = rank(e.record.Services[i])
		}
		if of == 0 {
			continue
		}
		load := float64(e.record.Services[i].Load) + float64(busy(id))
		if room := e.record.Services[i].Capacity; room > 0 {
			load /= float64(room)
		}
		all = append(all, candidate{id, of, load})
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.load, b.load))
	})
	for _, c := range all {
		ids = append(ids, c.id)
	}
	return ids, known
}

// sorted returns the entries in the order of their IDs.
func (t *table) sorted() []*entry {
	return slices.SortedFunc(maps.Values(t.entries), func(a, b *entry) int { return strings.Compare(string(a.id), string(b.id)) })
}

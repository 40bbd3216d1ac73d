package peers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Limits of a table, which bound the memory that a flood of records can take.
const (
	maxEntries    = 2000
	maxTableBytes = 32 << 20
	// reportedShare is the fraction of the table, 1/8, for nodes that only neighbours at one address have
	// reported: in a network of a few hundred nodes, most nodes are reported by bootstrap peers, or are
	// connected.
	reportedShare = 8
	// trustedShare is the fraction, 1/2, that is reserved for records from bootstrap peers.
	trustedShare = 2
	// maxPast bounds the remembered nodes that have left. A node is remembered for longer than one
	// of its records can be replayed. Nodes that were never in the table, but announced that they
	// leave, take at most half of maxPast.
	maxPast  = 10_000
	pastLife = 2*maxSkew + maxLife
)

// Errors of refused records, in addition to those of unseal.
var (
	errKnown = errors.New("known already")
	errFull  = errors.New("the table is full")
	errShare = fmt.Errorf("%w for this neighbour: at most %d nodes that are not connected here are taken from those at one address that are not under \"bootstrap\"", errFull, maxEntries/reportedShare)
)

// source is what an entry counts for. It limits how many entries one neighbour can cause.
type source struct {
	kind sourceKind
	name string // a peer ID, or the address of neighbours
}

// sourceKind says how this node knows of the node of an entry.
type sourceKind uint8

const (
	reported  sourceKind = iota // by a neighbour, which is counted by its address
	trusted                     // by a bootstrap peer or a relay
	connected                   // the node is connected itself, and has proved its identity
)

// table has the services of other nodes. It uses no clock and no network. The caller must hold a
// mutex.
type table struct {
	max     int // nodes
	entries map[peer.ID]*entry
	past    map[peer.ID]past
	bytes   int // of the records

	sources   map[source]int                  // number of entries of each source
	kinds     [connected + 1]int              // and of each kind
	providers map[string]map[peer.ID]struct{} // of each service
}

// entry is a node that offers services.
type entry struct {
	id      peer.ID
	record  *nodeRecord
	sealed  []byte    // the signed bytes
	source  source    // what it counts for
	since   time.Time // since when the node has been in the table
	expires time.Time
}

// past is a node that was in the table, or has announced that it leaves.
type past struct {
	issued int64
	until  time.Time
}

func newTable(most int) *table {
	return &table{
		max: most, entries: map[peer.ID]*entry{}, past: map[peer.ID]past{}, sources: map[source]int{}, providers: map[string]map[peer.ID]struct{}{},
	}
}

// change is the effect of a record.
type change struct {
	fresh   bool // the node was not in the table
	gone    bool // it leaves
	evicted bool // another node was evicted for it
}

// put adds a verified record, which counts for from. It is valid for life, but no longer than the
// record says. The error wraps errKnown or errFull.
func (t *table) put(id peer.ID, r *nodeRecord, sealed []byte, from source, life time.Duration, now time.Time) (c change, err error) {
	if t.knows(id, r) {
		return c, errKnown
	}
	old := t.entries[id]
	if len(r.Services) == 0 {
		t.drop(id, r.Issued, now)
		return change{gone: old != nil}, nil
	}
	e := &entry{id: id, record: r, sealed: sealed, source: from, since: now, expires: now.Add(min(life, r.life()))}
	if old != nil {
		t.remove(old)
		e.since = old.since
	}
	if c.evicted, err = t.makeRoom(e, old); err != nil {
		if old != nil {
			t.add(old)
		}
		return c, err
	}
	t.add(e)
	delete(t.past, id)
	c.fresh = old == nil
	return c, nil
}

// makeRoom makes room for an entry e. If old is not nil, e replaces old, which is not in the table
// at the moment.
func (t *table) makeRoom(e, old *entry) (evicted bool, err error) {
	if t.bytes+len(e.sealed) > maxTableBytes {
		return false, errFull
	}
	if e.source.kind == reported && t.sources[e.source] >= t.max/reportedShare {
		if old == nil || old.source.kind == connected { // old counted as connected, and the peer is not connected any more
			return false, errShare
		}
		e.source = old.source
	}
	if len(t.entries) < t.max {
		return false, nil
	}
	victim := t.victim(e.source)
	if victim == nil {
		return false, errFull
	}
	t.remove(victim)
	return true, nil
}

// victim returns the entry to remove from a full table for a new entry of source from. It is the
// newest entry of the source with the most entries, so that a flood removes its own entries first.
// It returns nil if no source has more entries than from would have.
func (t *table) victim(from source) *entry {
	entitled := from.kind == trusted && t.kinds[trusted] < t.max/trustedShare
	most, largest := t.sources[from]+1, source{}
	if entitled {
		most = 0
	}
	for s, n := range t.sources {
		spared := s.kind == trusted && (entitled || t.kinds[trusted] <= t.max/trustedShare)
		if n > most && !spared {
			most, largest = n, s
		}
	}
	var youngest *entry
	for _, e := range t.entries {
		if e.source == largest && (youngest == nil || e.since.After(youngest.since)) {
			youngest = e
		}
	}
	return youngest
}

// add adds an entry that is not in the table.
func (t *table) add(e *entry) {
	t.entries[e.id] = e
	t.bytes += len(e.sealed)
	t.sources[e.source]++
	t.kinds[e.source.kind]++
	for _, s := range e.record.Services {
		all := t.providers[s.Name]
		if all == nil {
			all = map[peer.ID]struct{}{}
			t.providers[s.Name] = all
		}
		all[e.id] = struct{}{}
	}
}

// remove removes an entry of the table.
func (t *table) remove(e *entry) {
	delete(t.entries, e.id)
	t.bytes -= len(e.sealed)
	if t.sources[e.source]--; t.sources[e.source] == 0 {
		delete(t.sources, e.source)
	}
	t.kinds[e.source.kind]--
	for _, s := range e.record.Services {
		if delete(t.providers[s.Name], e.id); len(t.providers[s.Name]) == 0 {
			delete(t.providers, s.Name)
		}
	}
}

// knows reports whether the table has seen this record, or a later one of the node.
func (t *table) knows(id peer.ID, r *nodeRecord) bool {
	last := t.past[id].issued
	if old := t.entries[id]; old != nil {
		last = old.record.Issued
	}
	return r.Issued <= last
}

// drop removes a node, and remembers its last record.
func (t *table) drop(id peer.ID, issued int64, now time.Time) {
	if e := t.entries[id]; e != nil {
		t.remove(e)
	} else if len(t.past) >= maxPast/2 {
		return
	}
	if len(t.past) >= maxPast {
		for other := range t.past { // any one: there are so many only in a flood
			delete(t.past, other)
			break
		}
	}
	t.past[id] = past{issued, now.Add(pastLife)}
}

// expire removes expired entries, and returns them.
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

// offer returns the node's service of that name. The node must offer it.
func (e *entry) offer(service string) Offer {
	return e.record.Services[slices.IndexFunc(e.record.Services, func(o Offer) bool { return o.Name == service })]
}

// offering returns the nodes that offer a service, in the order in which to try them: by descending
// rank, then by ascending load relative to capacity, equal ones in random order. It omits nodes of
// rank 0. known is the number of all nodes that offer the service. busy returns the number of this
// node's connections to a node.
func (t *table) offering(service string, busy func(peer.ID) int, rank func(peer.ID, Offer) int) (ids []peer.ID, known int) {
	type candidate struct {
		id   peer.ID
		rank int
		load float64
	}
	var all []candidate
	for id := range t.providers[service] {
		o := t.entries[id].offer(service)
		known++
		of := rank(id, o)
		if of == 0 {
			continue
		}
		load := float64(o.Load) + float64(busy(id))
		if o.Capacity > 0 {
			load /= float64(o.Capacity)
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

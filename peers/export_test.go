package peers

import (
	"crypto/ed25519"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
)

// What tests forge records of.
const (
	TopicServices = topicServices
	ProtocolTable = protocolTable
	MaxEntries    = maxEntries
	MaxRecord     = maxRecord
	MaxPast       = maxPast
	MaxSkew       = maxSkew
)

// The reasons for refusals.
var (
	ErrForged, ErrFuture, ErrStale = errForged, errFuture, errStale
	ErrKnown, ErrFull              = errKnown, errFull
)

// Host is the node's libp2p host.
func (n *Node) Host() host.Host { return n.host }

// Seal makes the record of a node.
func Seal(key ed25519.PrivateKey, issued time.Time, life time.Duration, offers ...Offer) []byte {
	private, _, err := identityOf(key)
	if err != nil {
		panic(err)
	}
	data, err := seal(&nodeRecord{Issued: issued.UnixNano(), Life: life.Milliseconds(), Services: offers}, private)
	if err != nil {
		panic(err)
	}
	return data
}

// Unseal verifies a record.
func Unseal(data []byte, now time.Time) (peer.ID, []Offer, error) {
	id, r, err := unseal(data, now)
	if err != nil {
		return id, nil, err
	}
	return id, r.Services, nil
}

// Table is a table on its own.
type Table struct{ t *table }

// NewTable returns an empty one.
func NewTable() Table { return Table{newTable()} }

// Put takes a record that is believed for life.
func (t Table) Put(id string, issued int64, size int, life time.Duration, now time.Time, services ...string) (fresh, gone bool, err error) {
	r := &nodeRecord{Issued: issued, Life: life.Milliseconds()}
	for _, s := range services {
		r.Services = append(r.Services, Offer{Name: s})
	}
	return t.t.put(peer.ID(id), r, make([]byte, size), life, now)
}

// Expire takes out what is not believed any more.
func (t Table) Expire(now time.Time) (gone []string) {
	for _, id := range t.t.expire(now) {
		gone = append(gone, string(id))
	}
	return gone
}

// Offering are the nodes that offer a service.
func (t Table) Offering(service string, load func(id string) int) (ids []string) {
	all, _ := t.t.offering(service, func(id peer.ID) int { return load(string(id)) }, nil)
	for _, id := range all {
		ids = append(ids, string(id))
	}
	return ids
}

// Size is how many nodes and bytes there are, and how many nodes are remembered.
func (t Table) Size() (nodes, bytes, past int) { return len(t.t.entries), t.t.bytes, len(t.t.past) }

// Blocks reports whether a peer is blocked.
func (n *Node) Blocks(id peer.ID) bool { return n.offenders.blocks(id) }

// Fetch asks a neighbour for its table.
func (n *Node) Fetch(id peer.ID) error { return n.syncer.fetch(id) }

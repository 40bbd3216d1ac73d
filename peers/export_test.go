package peers

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
)

// What tests forge records of.
const (
	TopicServices  = topicServices
	ProtocolTable  = protocolTable
	ProtocolTunnel = protocolTunnel
	ProtocolDHT    = dhtPrefix + "/kad/1.0.0"
	MaxEntries     = maxEntries
	MaxRecord      = maxRecord
	MaxPast        = maxPast
	VouchedShare   = reportedShare
	TrustedShare   = trustedShare

	LinesPerSecond = linesPerSecond
	MaxSkew        = maxSkew

	TransportDelay = transportDelay
)

// The reasons for refusals.
var (
	ErrForged, ErrFuture, ErrStale = errForged, errFuture, errStale
	ErrKnown, ErrFull              = errKnown, errFull
)

// HandlerOf returns what handles a protocol's streams.
var HandlerOf = handlerOf

// RankAddrs says when to dial which address of a peer.
var RankAddrs = rankAddrs

// NewTLS makes the TLS of a node, and returns its ID.
func NewTLS(t testing.TB, key ed25519.PrivateKey) (sec.SecureTransport, peer.ID) {
	t.Helper()
	private, id, err := identityOf(key)
	if err != nil {
		t.Fatal(err)
	}
	secure, err := newTLS(libp2ptls.ID, private, nil)
	if err != nil {
		t.Fatal(err)
	}
	return secure, id
}

// Host is the node's libp2p host.
func (n *Node) Host() host.Host { return n.host }

// Seal makes the record of a node.
func Seal(key ed25519.PrivateKey, issued time.Time, life time.Duration, offers ...Offer) []byte {
	return SealAt(key, issued, life, nil, offers...)
}

// SealAt is Seal of a node with addresses.
func SealAt(key ed25519.PrivateKey, issued time.Time, life time.Duration, addrs []string, offers ...Offer) []byte {
	private, _, err := identityOf(key)
	if err != nil {
		panic(err)
	}
	data, err := seal(&nodeRecord{Issued: issued.UnixNano(), Life: life.Milliseconds(), Addrs: addrs, Services: offers}, private)
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

// NewTable returns an empty one for so many nodes.
func NewTable(most int) Table { return Table{newTable(most)} }

// Put takes a record that is believed for life.
func (t Table) Put(id string, issued int64, size int, life time.Duration, now time.Time, services ...string) (fresh, gone bool, err error) {
	return t.PutFrom(Connected(id), id, issued, size, life, now, services...)
}

// PutFrom is Put of a record that counts against a source.
func (t Table) PutFrom(from Source, id string, issued int64, size int, life time.Duration, now time.Time, services ...string) (fresh, gone bool, err error) {
	r := &nodeRecord{Issued: issued, Life: life.Milliseconds()}
	for _, s := range services {
		r.Services = append(r.Services, Offer{Name: s})
	}
	c, err := t.t.put(peer.ID(id), r, make([]byte, size), source(from), life, now)
	return c.fresh, c.gone, err
}

// Source is what an entry counts against.
type Source source

// Connected is a node that is connected.
func Connected(id string) Source { return Source{connected, id} }

// Trusted is a bootstrap peer that tells of a node.
func Trusted(id string) Source { return Source{trusted, id} }

// Vouched are neighbours at an address that do.
func Vouched(address string) Source { return Source{reported, address} }

// Sources counts the entries of each source, and returns what the table has counted.
func (t Table) Sources() (all, counted map[Source]int) {
	all, counted = map[Source]int{}, map[Source]int{}
	for _, e := range t.t.entries {
		all[Source(e.source)]++
	}
	for s, n := range t.t.sources {
		counted[Source(s)] = n
	}
	return all, counted
}

// IsVouched reports whether it is an address of neighbours.
func (s Source) IsVouched() bool { return s.kind == reported }

// Has reports whether a node is in the table.
func (t Table) Has(id string) bool { return t.t.entries[peer.ID(id)] != nil }

// Expire takes out what is not believed any more.
func (t Table) Expire(now time.Time) (gone []string) {
	for _, id := range t.t.expire(now) {
		gone = append(gone, string(id))
	}
	return gone
}

// Offering are the nodes that offer a service.
func (t Table) Offering(service string, load func(id string) int) (ids []string) {
	all, _ := t.t.offering(service, func(id peer.ID) int { return load(string(id)) }, Choice{}.ranks())
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

// Ask asks a neighbour for its table, in the background, unless it may not be asked.
func (n *Node) Ask(id peer.ID) { n.syncer.ask(id) }

// BoundLinks bounds the links to peers, and those that have never been connected.
func (n *Node) BoundLinks(most, failing int) {
	n.links.mu.Lock()
	defer n.links.mu.Unlock()
	n.links.most, n.links.mostFailing = most, failing
}

// Links counts the links to peers that are called.
func (n *Node) Links() int { return len(n.links.all()) }

// Tidy lets go of links that nothing has used for too long before a moment.
func (n *Node) Tidy(now time.Time) { n.links.drop(now) }

// MaxQuotas bounds the peers whose use of services is counted.
const MaxQuotas = maxQuotas

// Quotas are those of services with limits, on their own.
type Quotas struct{ q *quotas }

// Quota is what one peer does with one service.
type Quota struct{ k *quota }

// NewQuotas returns none.
func NewQuotas() Quotas { return Quotas{&quotas{}} }

// Enter counts a connection.
func (q Quotas) Enter(service, peer string, limits Limits, now time.Time) (Quota, error) {
	k, err := q.q.enter(quotaKey{service, peer}, limits, now)
	return Quota{k}, err
}

// Leave counts the end of one.
func (q Quotas) Leave(k Quota) { q.q.ended(k.k) }

// Spend returns how long n bytes have to wait.
func (q Quotas) Spend(k Quota, n, rate int, now time.Time) time.Duration {
	return q.q.spend(k.k, n, rate, now)
}

// Stats are the counters.
func (q Quotas) Stats() LimitStats { return q.q.count() }

// Len is how many peers are remembered.
func (q Quotas) Len() int { return len(q.q.all) }

// ReplaceSilent takes all connections to a peer that has been called for silent, and looks whether they are.
func (n *Node) ReplaceSilent(ctx context.Context, id peer.ID) {
	for _, conn := range n.host.Network().ConnsToPeer(id) {
		n.links.silent(conn)
	}
	n.replaceSilent(ctx, id)
}

// TryTimeout is the time that a peer has to answer a ping.
const TryTimeout = tryTimeout

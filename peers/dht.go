package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	golog "github.com/ipfs/go-log/v2"
	kaddht "github.com/libp2p/go-libp2p-kad-dht"
	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	kbucket "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// dhtPrefix is the prefix of the DHT's protocol, /headpond/kad/1.0.0. The public DHT uses
// /ipfs/kad/1.0.0.
const dhtPrefix protocol.ID = "/headpond"

// Limits of the DHT.
const (
	// MinDHTConns is the least Config.MaxConns with the DHT. It protects up to 40 connections,
	// those of the two largest buckets of the routing table, and lookups need some more.
	MinDHTConns = 128
	// maxLookups bounds concurrent lookups. Each asks three nodes at once.
	maxLookups = 8
	// lookupRate is the number of lookups a second after a burst of lookupBurst. They are limited
	// because clients of a listener choose the peer IDs, and each lookup sends messages to some 20
	// nodes.
	lookupRate, lookupBurst = 5, 50
	// missPause is how long the result of a failed lookup is reused, and foundPause that of a
	// successful one.
	missPause  = 5 * time.Second
	foundPause = time.Second
	// maxLookedUp bounds the results that are remembered.
	maxLookedUp = 1000
	// askRate is the number of messages a second that another node may send after a burst of
	// askBurst.
	askRate, askBurst = 50, 1000
)

// errAsksTooMuch: a node has sent too many messages of the DHT.
var errAsksTooMuch = errors.New("too many questions to the DHT")

// DHTStats describes a node's part in the DHT. The zero value is that of a node without it.
type DHTStats struct {
	On      bool
	Server  bool   // it answers lookups; otherwise it only makes them
	Nodes   int    // in the routing table
	Lookups uint64 // of nodes without a known address, since the start
	Found   uint64 // of these
}

// dht finds the addresses of nodes by their IDs, as a member of a Kademlia DHT that stores no
// values and no providers.
type dht struct {
	node   *Node
	table  *kaddht.IpfsDHT
	server bool

	mu     sync.Mutex // held for a few instructions
	closed bool
	past   map[peer.ID]*lookup // running, or ended a moment ago
	active int                 // of these: under way
	begun  buckets             // lookups of this node
	asked  buckets             // messages of others
	counts DHTStats
	work   sync.WaitGroup
}

// lookup is the search for one node.
type lookup struct {
	done  chan struct{} // closed when err and until are set
	err   error         // nil: addresses of it are known
	until time.Time
}

// quietDHT turns off the library's log lines, which would appear on stderr in another format than
// Config.Logger's. The errors of lookups have the same information.
var quietDHT = sync.OnceFunc(func() {
	for _, name := range []string{"dht", "dht.pb", "dht/RtRefreshManager", "dht/netsize", "providers", "table"} {
		_ = golog.SetLogLevel(name, "dpanic")
	}
})

// startDHT joins the DHT of the network, if the configuration asks for it.
func (n *Node) startDHT() error {
	if !n.cfg.DHT {
		return nil
	}
	quietDHT()
	d := &dht{
		node: n, server: len(n.cfg.Listen) > 0 && len(n.cfg.Relays) == 0, past: map[peer.ID]*lookup{},
		begun: newBuckets(lookupRate, lookupBurst), asked: newBuckets(askRate, askBurst),
	}
	mode := kaddht.ModeClient // other nodes cannot connect to this one
	if d.server {
		mode = kaddht.ModeServer
	}
	table, err := kaddht.New(context.Background(), n.host, kaddht.ProtocolPrefix(dhtPrefix), kaddht.Mode(mode), kaddht.DisableValues(),
		kaddht.DisableProviders(), kaddht.OnRequestHook(d.admit))
	if err != nil {
		return fmt.Errorf("peers: DHT: %w", err)
	}
	d.table = table
	n.dht = d
	return nil
}

// admit is called for each message of another node. A node that repeatedly sends too many is
// disconnected.
func (d *dht) admit(_ context.Context, s network.Stream, _ *dhtpb.Message) {
	id, now := s.Conn().RemotePeer(), time.Now()
	d.mu.Lock()
	if len(d.asked.all) >= maxPast {
		d.asked.tidy(now)
	}
	ok := d.asked.take(id, now)
	d.mu.Unlock()
	if !ok {
		_ = s.Reset()
		d.node.offenders.note(id, errAsksTooMuch)
	}
}

// find looks up a node. It returns nil if the node is connected, or addresses of it are known
// afterwards. Concurrent calls for one node share a lookup.
func (d *dht) find(ctx context.Context, id peer.ID) error {
	l, err := d.begin(id)
	if err != nil {
		return fmt.Errorf("%w: peer %s: no address of it is known: %w", ErrNotConnected, id, err)
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("%w: peer %s: looking for it in the DHT: %w", ErrNotConnected, id, context.Cause(ctx))
	}
}

// begin begins a lookup, unless one is under way or its result is still valid.
func (d *dht) begin(id peer.ID) (*lookup, error) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.past[id]; l != nil && !l.over(now) {
		return l, nil
	}
	if len(d.past) >= maxLookedUp {
		d.tidy(now)
	}
	switch {
	case d.closed:
		return nil, ErrClosed
	case d.active >= maxLookups || !d.begun.take(d.node.id, now):
		return nil, fmt.Errorf("%w: too many nodes are being looked up in the DHT", ErrBusy)
	}
	l := &lookup{done: make(chan struct{})}
	d.past[id] = l
	d.active++
	d.counts.Lookups++
	d.work.Go(func() { d.run(id, l) })
	return l, nil
}

// over reports whether the result of a lookup is no longer valid.
func (l *lookup) over(now time.Time) bool {
	select {
	case <-l.done:
		return now.After(l.until)
	default:
		return false
	}
}

// tidy removes lookups that are over. mu is held.
func (d *dht) tidy(now time.Time) {
	for id, l := range d.past {
		if l.over(now) {
			delete(d.past, id)
		}
	}
}

// run runs a lookup.
func (d *dht) run(id peer.ID, l *lookup) {
	ctx, cancel := context.WithTimeout(d.node.life, d.node.cfg.DialTimeout)
	defer cancel()
	info, err := d.table.FindPeer(ctx, id)
	pause := missPause
	switch {
	case errors.Is(err, kbucket.ErrLookupFailure):
		err, pause = errors.New("the DHT has no other node yet"), 0
	case err == nil && len(info.Addrs) == 0 && d.node.host.Network().Connectedness(id) == network.NotConnected:
		err = errors.New("the DHT knows none either")
	case err != nil:
		err = fmt.Errorf("the DHT knows none either: %w", err)
	}
	if err != nil {
		err = fmt.Errorf("%w: peer %s: no address of it is known: %w", ErrNotConnected, id, err)
	} else {
		pause = foundPause
		d.node.log.Debug("peers: a node was found in the DHT", "peer", id.String(), "addresses", info.Addrs)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l.err, l.until = err, time.Now().Add(pause)
	close(l.done)
	d.active--
	if err == nil {
		d.counts.Found++
	}
}

// status returns the state of the DHT.
func (d *dht) status() DHTStats {
	if d == nil {
		return DHTStats{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.counts
	s.On, s.Server, s.Nodes = true, d.server, d.table.RoutingTable().Size()
	return s
}

// close leaves the DHT after the node's life has ended.
func (d *dht) close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.work.Wait()
	_ = d.table.Close()
}

// lookUp looks up a node in the DHT if no address of it is known.
func (n *Node) lookUp(ctx context.Context, id peer.ID) error {
	if n.dht == nil || n.links.has(id) || n.host.Network().Connectedness(id) != network.NotConnected {
		return nil
	}
	n.locate(id)
	if len(n.host.Peerstore().Addrs(id)) > 0 {
		return nil
	}
	return n.dht.find(ctx, id)
}

// lookUpAgain looks up a node that cannot be reached at its known addresses. It reports whether to
// connect again. If ctx ends first, the lookup continues, and the next attempt uses its result.
func (n *Node) lookUpAgain(ctx context.Context, id peer.ID) bool {
	return n.dht != nil && n.host.Network().Connectedness(id) == network.NotConnected && n.dht.find(ctx, id) == nil && ctx.Err() == nil
}

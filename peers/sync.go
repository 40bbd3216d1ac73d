package peers

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
)

// protocolTable is the protocol of streams in which a node sends its whole table. Each record is
// preceded by its length in bytes, and by the milliseconds for which it is still valid, in four
// bytes each.
const protocolTable protocol.ID = "/headpond/table/1"

// A node asks each neighbour for its table when they connect, and a random neighbour every
// syncInterval, to get records that it has missed.
const (
	syncInterval = 30 * time.Second
	syncTime     = 20 * time.Second // for one table: 32 MiB at 1.6 MiB/s
	recordTime   = 5 * time.Second  // for one record of it
	maxSyncs     = 4                // concurrent, each with another neighbour; bootstrap peers come on top
	tableRate    = 0.5              // tables a second that one neighbour may ask for
	tableBurst   = 4
)

// syncer asks neighbours for their tables, and sends them its own.
type syncer struct {
	node   *Node
	events event.Subscription
	places chan struct{}

	mu     sync.Mutex
	asking map[peer.ID]bool // peers whose table is being read
	asked  buckets
	closed bool
	work   sync.WaitGroup
}

func newSyncer(n *Node) (*syncer, error) {
	events, err := n.host.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted), eventbus.BufSize(1024))
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	s := &syncer{node: n, events: events, places: make(chan struct{}, maxSyncs), asking: map[peer.ID]bool{}, asked: newBuckets(tableRate, tableBurst)}
	n.host.SetStreamHandler(protocolTable, s.serve)
	n.work.Go(s.run)
	return s, nil
}

// run asks for tables until the node ends.
func (s *syncer) run() {
	defer func() { _ = s.events.Close() }()
	again := time.NewTicker(syncInterval)
	defer again.Stop()
	for {
		select {
		case <-s.node.life.Done():
			return
		case e, ok := <-s.events.Out():
			if !ok {
				return
			}
			if done := e.(event.EvtPeerIdentificationCompleted); slices.Contains(done.Protocols, protocolTable) { //nolint:forcetypeassert // what was subscribed to
				s.ask(done.Peer)
			}
		case <-again.C:
			s.mu.Lock()
			s.asked.tidy(time.Now())
			s.mu.Unlock()
			if all := s.node.host.Network().Peers(); len(all) > 0 {
				s.ask(all[rand.IntN(len(all))])
			}
		}
	}
}

// ask asks a neighbour for its table, unless that neighbour or maxSyncs others are being asked.
// Bootstrap peers do not count for maxSyncs, so that other neighbours cannot use up the limit.
func (s *syncer) ask(id peer.ID) {
	trusted := s.node.bootstrap.has(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.asking[id] {
		return
	}
	if !trusted {
		select {
		case s.places <- struct{}{}:
		default:
			return // such a node knows no more than this one
		}
	}
	s.asking[id] = true
	s.work.Go(func() {
		if err := s.fetch(id); err != nil && s.node.life.Err() == nil {
			s.node.log.Debug("peers: a neighbour does not tell its table", "peer", id.String(), "error", err)
		}
		s.mu.Lock()
		delete(s.asking, id)
		s.mu.Unlock()
		if !trusted {
			<-s.places
		}
	})
}

// fetch reads a neighbour's table.
func (s *syncer) fetch(id peer.ID) error {
	ctx, cancel := context.WithTimeout(network.WithAllowLimitedConn(network.WithNoDial(s.node.life, "table"), "table"), syncTime)
	defer cancel()
	st, err := s.node.host.NewStream(ctx, id, protocolTable)
	if err != nil {
		return err
	}
	defer func() { _ = st.Reset() }()
	defer context.AfterFunc(s.node.life, func() { _ = st.Reset() })()
	end := time.Now().Add(syncTime)
	if err := st.SetDeadline(end); err != nil {
		return err
	}
	_ = st.CloseWrite() // fails if the neighbour has already sent all
	r := bufio.NewReaderSize(st, 64<<10)
	for range maxEntries + 1 {
		if next := time.Now().Add(recordTime); next.Before(end) {
			_ = st.SetReadDeadline(next) // a neighbour that stalls
		}
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		size, life := binary.BigEndian.Uint32(head[:4]), time.Duration(binary.BigEndian.Uint32(head[4:]))*time.Millisecond
		if size > maxRecord {
			err := fmt.Errorf("%w: a record of %d bytes in a table", errForged, size)
			s.node.offenders.note(id, err)
			return err
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(r, data); err != nil {
			return err
		}
		if err := s.node.gossip.take(id, data, life); errors.Is(err, errForged) {
			return err // a neighbour that sends a forged record is not trusted with others
		}
	}
	return nil
}

// serve sends the table.
func (s *syncer) serve(st network.Stream) {
	sent := false
	defer func() {
		if !sent { // a reset would discard data in flight on a closed QUIC stream
			_ = st.Reset()
		}
	}()
	s.mu.Lock()
	ok := !s.closed && s.asked.take(st.Conn().RemotePeer(), time.Now())
	s.mu.Unlock()
	if !ok || st.SetDeadline(time.Now().Add(syncTime)) != nil {
		return
	}
	w := bufio.NewWriterSize(st, 64<<10)
	for _, record := range s.node.gossip.validRecords(time.Now()) {
		var head [8]byte
		binary.BigEndian.PutUint32(head[:4], uint32(len(record.sealed))) //nolint:gosec // at most maxRecord
		binary.BigEndian.PutUint32(head[4:], uint32(record.life.Milliseconds()))
		if _, err := w.Write(head[:]); err != nil {
			return
		}
		if _, err := w.Write(record.sealed); err != nil {
			return
		}
	}
	sent = w.Flush() == nil && st.Close() == nil
}

// validRecord is a record, and how long it is still valid.
type validRecord struct {
	sealed []byte
	life   time.Duration
}

// validRecords returns this node's record and those of the table.
func (g *gossip) validRecords(now time.Time) (all []validRecord) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.own != nil && !g.leaving {
		all = append(all, validRecord{g.own, maxLife})
	}
	for _, e := range g.table.entries {
		if life := e.expires.Sub(now); life > 0 {
			all = append(all, validRecord{e.sealed, life})
		}
	}
	return all
}

// close stops asking for tables.
func (s *syncer) close() {
	s.node.host.RemoveStreamHandler(protocolTable)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
}

package peers

import (
	"fmt"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// rejoinInterval is how often the node looks for connected peers that get no records.
const rejoinInterval = 3 * time.Second

// pubsubStreams holds the peers to which pubsub has a stream. pubsub opens a stream once libp2p has
// identified a peer; libp2p tries that only once for each connection, for five seconds. pubsub also
// gives up if the stream cannot be opened, or breaks five times in ten minutes. On a busy machine
// or a bad network, connected peers could so remain without records while the connection lasts.
// rejoin opens the missing streams.
type pubsubStreams struct {
	mu    sync.Mutex // held for a few instructions
	peers map[peer.ID]bool
}

var _ pubsub.RawTracer = (*pubsubStreams)(nil)

func (s *pubsubStreams) has(id peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers[id]
}

// startRejoin starts rejoin. The syncer must exist.
func (g *gossip) startRejoin() error {
	again, err := g.node.host.EventBus().Emitter(new(event.EvtPeerProtocolsUpdated))
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	g.node.work.Go(func() { g.rejoin(again) })
	return nil
}

// rejoin makes pubsub open streams to peers that have none, until the node ends.
func (g *gossip) rejoin(again event.Emitter) {
	defer func() { _ = again.Close() }()
	tick := time.NewTicker(rejoinInterval)
	defer tick.Stop()
	missing := map[peer.ID]bool{}
	for {
		select {
		case <-g.node.life.Done():
			return
		case <-tick.C:
		}
		before := missing
		missing = map[peer.ID]bool{}
		for _, id := range g.node.host.Network().Peers() {
			if g.receives(id) {
				continue
			}
			if missing[id] = true; before[id] { // otherwise it may have connected just now
				g.node.log.Debug("peers: a connected peer hears no records, trying again", "peer", id.String())
				_ = again.Emit(event.EvtPeerProtocolsUpdated{Peer: id, Added: pubsub.GossipSubDefaultProtocols})
				g.node.syncer.ask(id) // nor was it asked for its table
			}
		}
	}
}

// receives reports whether a peer gets records, or cannot get any because it is not connected or
// does not support the protocol.
func (g *gossip) receives(id peer.ID) bool {
	if g.streams.has(id) || g.node.host.Network().Connectedness(id) != network.Connected {
		return true
	}
	all, err := g.node.host.Peerstore().GetProtocols(id) // only those of opened streams, if the peer was not identified
	if err != nil || len(all) == 0 || g.node.unidentified.has(id) {
		return false
	}
	speaks, err := g.node.host.Peerstore().SupportsProtocols(id, pubsub.GossipSubDefaultProtocols...)
	return err == nil && len(speaks) == 0
}

// OnNewOutboundStream implements pubsub.RawTracer.
func (s *pubsubStreams) OnNewOutboundStream(id peer.ID, _ protocol.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peers == nil {
		s.peers = map[peer.ID]bool{}
	}
	s.peers[id] = true
}

// OnClosedOutboundStream implements pubsub.RawTracer.
func (s *pubsubStreams) OnClosedOutboundStream(id peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, id)
}

// The other events of pubsub.RawTracer need no action.

// Join implements pubsub.RawTracer.
func (*pubsubStreams) Join(string) {}

// Leave implements pubsub.RawTracer.
func (*pubsubStreams) Leave(string) {}

// Graft implements pubsub.RawTracer.
func (*pubsubStreams) Graft(peer.ID, string) {}

// Prune implements pubsub.RawTracer.
func (*pubsubStreams) Prune(peer.ID, string) {}

// ValidateMessage implements pubsub.RawTracer.
func (*pubsubStreams) ValidateMessage(*pubsub.Message) {}

// DeliverMessage implements pubsub.RawTracer.
func (*pubsubStreams) DeliverMessage(*pubsub.Message) {}

// RejectMessage implements pubsub.RawTracer.
func (*pubsubStreams) RejectMessage(*pubsub.Message, string) {}

// DuplicateMessage implements pubsub.RawTracer.
func (*pubsubStreams) DuplicateMessage(*pubsub.Message) {}

// ThrottlePeer implements pubsub.RawTracer.
func (*pubsubStreams) ThrottlePeer(peer.ID) {}

// RecvRPC implements pubsub.RawTracer.
func (*pubsubStreams) RecvRPC(*pubsub.RPC) {}

// SendRPC implements pubsub.RawTracer.
func (*pubsubStreams) SendRPC(*pubsub.RPC, peer.ID) {}

// SendRPCCompleted implements pubsub.RawTracer.
func (*pubsubStreams) SendRPCCompleted(*pubsub.RPC, peer.ID, time.Duration) {}

// DropRPC implements pubsub.RawTracer.
func (*pubsubStreams) DropRPC(*pubsub.RPC, peer.ID) {}

// UndeliverableMessage implements pubsub.RawTracer.
func (*pubsubStreams) UndeliverableMessage(*pubsub.Message) {}

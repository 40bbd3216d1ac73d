package peers

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
)

const (
	// identifyTimeout is how long a peer may take to identify itself when it is asked again.
	identifyTimeout = 15 * time.Second
	// maxAsked bounds the peers that are asked concurrently. The pause between two requests to a
	// peer grows from rejoinInterval to mostAskPause, so that peers that never answer do not delay
	// others for long.
	maxAsked     = 8
	mostAskPause = time.Minute
)

// unidentified holds the connected peers that libp2p could not identify. libp2p asks once for each
// connection, and a peer on a busy machine or a bad network may exceed the five seconds it gives.
// The node then asks again. Otherwise it would not know the peer's addresses, and could not give
// them to others in the DHT, while the connection lasts.
type unidentified struct {
	node    *Node
	consume protocol.HandlerFunc // libp2p's handler for an identification on a stream

	mu    sync.Mutex // held for a few instructions
	peers map[peer.ID]*asked
}

// asked is a peer that is to identify itself.
type asked struct {
	busy  bool // it is being asked
	next  time.Time
	pause time.Duration
}

// newUnidentified starts to ask peers again after their identification has failed.
func newUnidentified(n *Node) (u *unidentified, err error) {
	u = &unidentified{node: n, peers: map[peer.ID]*asked{}}
	if u.consume, err = handlerOf(n.host, identify.IDPush); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	events, err := n.host.EventBus().Subscribe([]any{new(event.EvtPeerIdentificationFailed), new(event.EvtPeerIdentificationCompleted)})
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	n.work.Go(func() { u.note(events) })
	n.work.Go(u.run)
	return u, nil
}

func (u *unidentified) has(id peer.ID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.peers[id] != nil
}

// handlerOf returns the function that handles the streams of a protocol. libp2p exposes it only
// through protocol negotiation. The handler of identify.IDPush reads identifications that peers
// push; they have the same format as answers to requests.
func handlerOf(h host.Host, id protocol.ID) (protocol.HandlerFunc, error) {
	var request strings.Builder
	for _, line := range []string{"/multistream/1.0.0\n", string(id) + "\n"} {
		request.WriteByte(byte(len(line)))
		request.WriteString(line)
	}
	_, handle, err := h.Mux().Negotiate(struct {
		io.Reader
		io.Writer
		io.Closer
	}{strings.NewReader(request.String()), io.Discard, io.NopCloser(nil)})
	return handle, err
}

// note updates the set of peers until the node ends. It must not wait, because libp2p waits for it.
func (u *unidentified) note(events event.Subscription) {
	defer events.Close() //nolint:errcheck // it has no more use
	for {
		select {
		case <-u.node.life.Done():
			return
		case e := <-events.Out():
			u.mu.Lock()
			switch e := e.(type) {
			case event.EvtPeerIdentificationFailed:
				if u.peers[e.Peer] == nil {
					u.peers[e.Peer] = &asked{pause: rejoinInterval}
				}
			case event.EvtPeerIdentificationCompleted:
				delete(u.peers, e.Peer)
			}
			u.mu.Unlock()
		}
	}
}

// run asks the peers again, until the node ends.
func (u *unidentified) run() {
	tick := time.NewTicker(rejoinInterval)
	defer tick.Stop()
	var work sync.WaitGroup
	defer work.Wait()
	for {
		select {
		case <-u.node.life.Done():
			return
		case now := <-tick.C:
			for _, id := range u.due(now) {
				work.Go(func() { u.attempt(id) })
			}
		}
	}
}

// due returns the peers to ask now, those that have waited longest first. It forgets peers that are
// not connected any more.
func (u *unidentified) due(now time.Time) (all []peer.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	places := maxAsked
	for id, a := range u.peers {
		switch {
		case a.busy:
			places--
		case u.node.host.Network().Connectedness(id) == network.NotConnected:
			delete(u.peers, id)
		case !a.next.After(now):
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b peer.ID) int { return u.peers[a].next.Compare(u.peers[b].next) })
	all = all[:min(len(all), max(places, 0))]
	for _, id := range all {
		u.peers[id].busy = true
	}
	return all
}

// attempt asks a peer, and sets when to ask it again if it does not identify itself.
func (u *unidentified) attempt(id peer.ID) {
	u.node.log.Debug("peers: a connected peer is not identified, asking it", "peer", id.String())
	if err := u.ask(id); err != nil {
		u.node.log.Debug("peers: a connected peer could not be identified, trying again", "peer", id.String(), "error", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if a := u.peers[id]; a != nil {
		a.busy, a.next, a.pause = false, time.Now().Add(a.pause), min(2*a.pause, mostAskPause)
	}
}

// ask makes a peer identify itself. Success is reported to note.
func (u *unidentified) ask(id peer.ID) error {
	ctx, cancel := context.WithTimeout(network.WithAllowLimitedConn(network.WithNoDial(u.node.life, "identify"), "identify"), identifyTimeout)
	defer cancel()
	s, err := u.node.host.NewStream(ctx, id, identify.ID)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.Reset() })()
	return u.consume(identify.IDPush, withoutDeadline{s}) // closes the stream
}

// withoutDeadline is a stream on which libp2p cannot set its deadline of five seconds.
type withoutDeadline struct{ network.Stream }

// SetDeadline implements network.Stream.
func (withoutDeadline) SetDeadline(time.Time) error { return nil }

package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"

	"github.com/headpond/headpond/tunnel"
)

// A link that nothing uses is closed after idleLink; tidyInterval is how often the links are checked.
const (
	idleLink     = 5 * time.Minute
	tidyInterval = 30 * time.Second
)

// Limits of the number of links.
const (
	maxLinks = 1000
	// maxFailing bounds the links to peers that were never connected, so that calls to nodes that
	// do not exist do not use up maxLinks.
	maxFailing = maxLinks / 2
	// failedLink is how long an unused link that has never been connected is kept.
	failedLink = 30 * time.Second
)

// tagLink protects the connections that links use.
const tagLink = "tunnel"

// links are this node's tunnels, one to each peer that it calls.
type links struct {
	node *Node

	mu          sync.Mutex // held for a few instructions
	closed      bool
	peers       map[peer.ID]*link
	most        int // maxLinks
	mostFailing int // maxFailing
}

// link is a tunnel to a peer.
type link struct {
	peer   peer.ID
	client *tunnel.Client

	// Guarded by links.mu.
	used   time.Time
	calls  int            // calls that wait for a connection to a service
	stream network.Stream // the tunnel's current stream
	silent []network.Conn // connections on which the peer did not answer in time
	met    bool           // the peer has been connected
}

// to returns the link to a peer, and makes it if necessary. The link exists until done is called.
func (l *links) to(id peer.ID) (k *link, done func(), err error) {
	met := l.node.host.Network().Connectedness(id) != network.NotConnected
	if !met {
		l.node.locate(id)
	}
	var out *link
	l.mu.Lock()
	defer func() {
		l.mu.Unlock()
		if out != nil {
			out.client.Close() // waits
		}
	}()
	k = l.peers[id]
	switch {
	case l.closed:
		return nil, nil, ErrClosed
	case k == nil && !met && len(l.node.host.Peerstore().Addrs(id)) == 0:
		return nil, nil, explain(id, swarm.ErrNoAddresses)
	case k == nil:
		if out, err = l.makeRoom(met); err != nil {
			return nil, nil, err
		}
		if k, err = l.make(id); err != nil {
			return nil, nil, err
		}
	}
	k.used, k.met = time.Now(), k.met || met
	k.calls++
	return k, func() {
		l.mu.Lock()
		k.calls--
		l.mu.Unlock()
	}, nil
}

// make makes a link. mu is held.
func (l *links) make(id peer.ID) (*link, error) {
	n := l.node
	client, err := tunnel.NewClient(tunnel.ClientConfig{
		Tunnel: id.String(), Address: id.String(), Config: tunnel.Config{Name: n.ID(), KeepAlive: n.cfg.KeepAlive, ResumeWindow: resumeWindow, Logger: n.log},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return n.openStream(ctx, id) },
	})
	if err != nil {
		return nil, err
	}
	if l.peers == nil {
		l.peers = map[peer.ID]*link{}
	}
	made := &link{peer: id, client: client}
	l.peers[id] = made
	n.host.ConnManager().Protect(id, tagLink)
	return made, nil
}

// makeRoom makes room for one more link; met says whether its peer is connected. At the limit it
// removes the least recently used link, preferably one to a peer that was never connected, and
// returns that link for closing. mu is held.
func (l *links) makeRoom(met bool) (out *link, err error) {
	failing := 0
	for _, k := range l.peers {
		if !k.met {
			failing++
		}
	}
	full := len(l.peers) >= l.most
	if !full && (met || failing < l.mostFailing) {
		return nil, nil
	}
	for _, k := range l.peers {
		switch {
		case k.calls > 0 || k.met && (!full || k.client.Stats().Streams > 0):
		case out == nil, out.met && !k.met, out.met == k.met && k.used.Before(out.used):
			out = k
		}
	}
	if out == nil {
		return nil, fmt.Errorf("%w: services of %d peers are in use, %d of which have never been connected", ErrBusy, len(l.peers), failing)
	}
	l.forget(out.peer)
	return out, nil
}

// openStream opens a libp2p stream for a tunnel.
func (n *Node) openStream(ctx context.Context, id peer.ID) (net.Conn, error) {
	n.locate(id)
	n.replaceSilent(ctx, id)
	s, err := n.newStream(ctx, id)
	if err != nil && n.lookUpAgain(ctx, id) {
		s, err = n.newStream(ctx, id)
	}
	if err != nil {
		return nil, explain(id, err)
	}
	n.links.note(id, s)
	return &calledStream{streamConn: streamConn{s}, node: n, opened: time.Now()}, nil
}

// newStream opens a stream at the known addresses.
func (n *Node) newStream(ctx context.Context, id peer.ID) (network.Stream, error) {
	ctx, cancel := context.WithTimeout(network.WithAllowLimitedConn(ctx, "tunnel"), n.cfg.DialTimeout)
	defer cancel()
	s, err := n.host.NewStream(ctx, id, protocolTunnel)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		for _, conn := range n.host.Network().ConnsToPeer(id) { // it is not known which one was used
			n.links.silent(conn)
		}
	}
	return s, err
}

// has reports whether there is a link to a peer.
func (l *links) has(id peer.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peers[id] != nil
}

// note records the stream of a link.
func (l *links) note(id peer.ID, s network.Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[id]; k != nil {
		k.stream, k.met = s, true
	}
}

// tidy closes links that nothing uses, until the node ends.
func (l *links) tidy() {
	look := time.NewTicker(tidyInterval)
	defer look.Stop()
	for {
		select {
		case <-l.node.life.Done():
			return
		case now := <-look.C:
			l.drop(now)
		}
	}
}

// drop closes the links that have not been used for too long.
func (l *links) drop(now time.Time) {
	var idle []*link
	l.mu.Lock()
	for id, k := range l.peers {
		limit := idleLink
		if !k.met {
			limit = failedLink
		}
		if k.calls > 0 || k.client.Stats().Streams > 0 {
			k.used = now
		} else if now.Sub(k.used) > limit {
			idle = append(idle, k)
			l.forget(id)
		}
	}
	l.mu.Unlock()
	for _, k := range idle {
		k.client.Close()
	}
}

// forget removes a link. mu is held.
func (l *links) forget(id peer.ID) {
	delete(l.peers, id)
	l.node.host.ConnManager().Unprotect(id, tagLink)
}

// all returns all links.
func (l *links) all() []*link {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*link, 0, len(l.peers))
	for _, k := range l.peers {
		all = append(all, k)
	}
	return all
}

// drain refuses new links and waits until the existing ones are unused.
func (l *links) drain(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	all := l.all()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, k := range all {
		wg.Go(func() { errs[i] = k.client.Drain(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// close ends all links at once.
func (l *links) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	var wg sync.WaitGroup
	for _, k := range l.all() {
		wg.Go(k.client.Close)
	}
	wg.Wait()
}

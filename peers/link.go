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

	"github.com/headpond/headpond/tunnel"
)

// A link that nothing uses is let go after idleLink; tidyInterval is how often that is looked at.
const (
	idleLink     = 5 * time.Minute
	tidyInterval = 30 * time.Second
)

// maxLinks bounds the peers that this node calls services of, at a time.
const maxLinks = 1000

// tagLink protects the connections that links use.
const tagLink = "tunnel"

// links are the tunnels that this node makes, one for each peer that it calls.
type links struct {
	node *Node

	mu     sync.Mutex // held for a few instructions
	closed bool
	peers  map[peer.ID]*link
}

// link is a tunnel to a peer.
type link struct {
	peer   peer.ID
	client *tunnel.Client
	used   time.Time      // guarded by links.mu
	stream network.Stream // the last one, guarded by links.mu
}

// to returns the link to a peer, which is made if it is not there.
func (l *links) to(id peer.ID) (*link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if found := l.peers[id]; found != nil {
		found.used = time.Now()
		return found, nil
	}
	if len(l.peers) >= maxLinks {
		return nil, fmt.Errorf("%w: services of %d peers are in use, the most there may be", ErrBusy, len(l.peers))
	}
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
	made := &link{peer: id, client: client, used: time.Now()}
	l.peers[id] = made
	n.host.ConnManager().Protect(id, tagLink)
	return made, nil
}

// openStream opens a libp2p stream for a tunnel.
func (n *Node) openStream(ctx context.Context, id peer.ID) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(network.WithAllowLimitedConn(ctx, "tunnel"), n.cfg.DialTimeout)
	defer cancel()
	s, err := n.host.NewStream(ctx, id, protocolTunnel)
	if err != nil {
		return nil, explain(id, err)
	}
	n.links.note(id, s)
	return streamConn{s}, nil
}

// note keeps the stream of a link.
func (l *links) note(id peer.ID, s network.Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[id]; k != nil {
		k.stream = s
	}
}

// tidy lets go of links that nothing uses, until the node ends.
func (l *links) tidy() {
	look := time.NewTicker(tidyInterval)
	defer look.Stop()
	for {
		select {
		case <-l.node.life.Done():
			return
		case now := <-look.C:
			l.drop(now.Add(-idleLink))
		}
	}
}

// drop closes the links that have had no connection to a service since a moment.
func (l *links) drop(since time.Time) {
	var idle []*link
	l.mu.Lock()
	for id, k := range l.peers {
		if k.client.Stats().Streams > 0 {
			k.used = time.Now()
		} else if k.used.Before(since) {
			idle = append(idle, k)
			l.forget(id)
		}
	}
	l.mu.Unlock()
	for _, k := range idle {
		k.client.Close()
	}
}

// forget takes a link out. mu is held.
func (l *links) forget(id peer.ID) {
	delete(l.peers, id)
	l.node.host.ConnManager().Unprotect(id, tagLink)
}

// all returns the links there are.
func (l *links) all() []*link {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*link, 0, len(l.peers))
	for _, k := range l.peers {
		all = append(all, k)
	}
	return all
}

// drain makes no more links and waits until nothing uses those there are.
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

// close ends all links now.
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

package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
)

// The pauses between two attempts to connect to a bootstrap peer grow from firstPause to mostPause.
const (
	firstPause = 200 * time.Millisecond
	mostPause  = 15 * time.Second
)

// tagBootstrap protects the connections to bootstrap peers.
const tagBootstrap = "bootstrap"

// bootstrapPeers are the peers of Config.Bootstrap. Each has a goroutine that keeps it connected.
type bootstrapPeers struct {
	node *Node

	mu     sync.Mutex // held for a few instructions
	closed bool
	peers  map[peer.ID]*keeper
	work   sync.WaitGroup
}

// keeper keeps one peer connected.
type keeper struct {
	info peer.AddrInfo
	stop context.CancelFunc
	lost chan struct{} // capacity one: signals that the peer's last connection has closed
	err  error         // of the last attempt; guarded by bootstrapPeers.mu
}

// init reads the bootstrap peers. It must precede every call of has.
func (b *bootstrapPeers) init(n *Node) { b.node, b.peers = n, map[peer.ID]*keeper{} }

// start watches for lost connections.
func (b *bootstrapPeers) start() {
	b.node.host.Network().Notify(&network.NotifyBundle{DisconnectedF: func(_ network.Network, c network.Conn) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if p := b.peers[c.RemotePeer()]; p != nil {
			p.signal()
		}
	}})
}

func (p *keeper) signal() {
	select {
	case p.lost <- struct{}{}:
	default:
	}
}

// SetBootstrap replaces the peers that are kept connected. The error wraps ErrConfig; nothing has
// changed then.
func (n *Node) SetBootstrap(addrs []string) error {
	cfg := n.cfg
	cfg.Bootstrap = addrs
	if err := cfg.Verify(); err != nil {
		return err
	}
	n.bootstrap.set(addrs)
	return nil
}

// set replaces the bootstrap peers by addrs, which must be valid.
func (b *bootstrapPeers) set(addrs []string) {
	want := map[peer.ID]peer.AddrInfo{}
	for _, text := range addrs {
		info, _ := ParsePeer(text)
		if info.ID == b.node.id {
			continue // all nodes may have the same list
		}
		all := want[info.ID]
		all.ID, all.Addrs = info.ID, append(all.Addrs, info.Addrs...)
		want[info.ID] = all
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	for id, p := range b.peers {
		if _, stays := want[id]; !stays {
			p.stop()
			delete(b.peers, id)
			b.node.host.Peerstore().UpdateAddrs(id, peerstore.PermanentAddrTTL, peerstore.TempAddrTTL)
			b.node.host.ConnManager().Unprotect(id, tagBootstrap)
		}
	}
	for id, info := range maps.All(want) {
		b.node.host.Peerstore().AddAddrs(id, info.Addrs, peerstore.PermanentAddrTTL) // for calls before the peer is connected
		if old := b.peers[id]; old != nil {
			old.stop()
		}
		ctx, stop := context.WithCancel(b.node.life)
		p := &keeper{info: info, stop: stop, lost: make(chan struct{}, 1)}
		b.peers[id] = p
		b.node.host.ConnManager().Protect(id, tagBootstrap)
		b.work.Go(func() { b.keep(ctx, p) })
	}
}

// keep connects to a peer whenever it is not connected, until ctx ends.
func (b *bootstrapPeers) keep(ctx context.Context, p *keeper) {
	pause, logged := firstPause, ""
	for {
		err := b.node.connect(ctx, p.info)
		if ctx.Err() != nil {
			return
		}
		b.mu.Lock()
		p.err = err
		b.mu.Unlock()
		if err == nil {
			if logged != "" {
				b.node.log.Info("peers: bootstrap peer connected", "peer", p.info.ID.String())
			}
			pause, logged = firstPause, ""
			select {
			case <-ctx.Done():
				return
			case <-p.lost:
			}
			continue
		}
		if text := err.Error(); text != logged {
			b.node.log.Warn("peers: bootstrap peer not connected, trying again", "peer", p.info.ID.String(), "error", err)
			logged = text
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, mostPause)
	}
}

// connect connects to a peer, unless it is connected, at the given and all other known addresses.
func (n *Node) connect(ctx context.Context, info peer.AddrInfo) error {
	if n.host.Network().Connectedness(info.ID) == network.Connected {
		return nil
	}
	// An operator configured these addresses: try them again even after a recent failure.
	if s, ok := n.host.Network().(*swarm.Swarm); ok {
		s.Backoff().Clear(info.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DialTimeout)
	defer cancel()
	n.host.Peerstore().AddAddrs(info.ID, info.Addrs, peerstore.TempAddrTTL)
	if err := n.host.Connect(ctx, info); err != nil {
		return explain(info.ID, err)
	}
	return nil
}

// ErrNotConnected: a peer cannot be connected to now.
var ErrNotConnected = errors.New("peers: not connected")

// explain wraps the error of a connection attempt in ErrNotConnected, in one line.
func explain(id peer.ID, err error) error {
	var dial *swarm.DialError
	if errors.As(err, &dial) && len(dial.DialErrors) > 0 {
		causes := make([]error, 0, len(dial.DialErrors))
		for _, d := range dial.DialErrors {
			causes = append(causes, fmt.Errorf("%s: %w", d.Address, d.Cause))
		}
		return fmt.Errorf("%w: peer %s: %w", ErrNotConnected, id, oneLine(causes))
	}
	if errors.Is(err, swarm.ErrNoAddresses) {
		return fmt.Errorf("%w: peer %s: no address of it is known: %w", ErrNotConnected, id, err)
	}
	return fmt.Errorf("%w: peer %s: %w", ErrNotConnected, id, err)
}

// lines are errors that are printed in one line.
type lines []error

func oneLine(errs []error) error { return lines(errs) }

func (l lines) Error() string {
	text := ""
	for i, err := range l {
		if i > 0 {
			text += "; "
		}
		text += err.Error()
	}
	return text
}

func (l lines) Unwrap() []error { return l }

// trouble returns why a bootstrap peer is not connected, or nil if it is connected.
func (b *bootstrapPeers) trouble(id peer.ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.peers[id]; p != nil {
		return p.err
	}
	return nil
}

// has reports whether a peer is a bootstrap peer.
func (b *bootstrapPeers) has(id peer.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peers[id] != nil
}

// ids returns the IDs of the bootstrap peers.
func (b *bootstrapPeers) ids() (all []peer.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.peers {
		all = append(all, id)
	}
	return all
}

// close stops keeping the peers connected.
func (b *bootstrapPeers) close() {
	b.mu.Lock()
	b.closed = true
	for _, p := range b.peers {
		p.stop()
	}
	b.mu.Unlock()
	b.work.Wait()
}

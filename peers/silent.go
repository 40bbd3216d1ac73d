package peers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"
)

// A libp2p connection whose packets are dropped lives until its muxer gives it up (muxerTimeout), so that it survives a short partition. A peer
// that can be reached anew need not wait for that.
const (
	// maxTried bounds the addresses of a peer that are tried, and maxTrying the peers that are tried at a time: a partition makes many
	// connections silent at once.
	maxTried  = 8
	maxTrying = 16
	// tryTimeout bounds such an attempt, during which the silent connection is not used.
	tryTimeout = 2 * time.Second
)

// calledStream is the stream of a tunnel that this node makes. It notices when nothing comes back.
type calledStream struct {
	streamConn
	node     *Node
	opened   time.Time
	answered atomic.Bool
}

// Read implements net.Conn.
func (c *calledStream) Read(p []byte) (int, error) {
	n, err := c.streamConn.Read(p)
	var timeout interface{ Timeout() bool }
	if n > 0 || err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
		c.answered.Store(true) // a reset is an answer, too
	}
	return n, err
}

// Close implements net.Conn.
func (c *calledStream) Close() error {
	if !c.answered.Load() && time.Since(c.opened) >= c.node.cfg.KeepAlive/2 { // the handshake has a little less than KeepAlive
		c.node.links.silent(c.Conn())
	}
	return c.streamConn.Close()
}

// silent notes that a peer answers nothing on a connection.
func (l *links) silent(conn network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[conn.RemotePeer()]; k != nil {
		k.silent = conn
	}
}

// silentConn returns the connection on which a peer answers nothing, and forgets it.
func (l *links) silentConn(id peer.ID) (conn network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[id]; k != nil {
		conn, k.silent = k.silent, nil
	}
	return conn
}

// replaceSilent closes a connection on which a peer answers nothing if another one can be made.
func (n *Node) replaceSilent(ctx context.Context, id peer.ID) {
	conn := n.links.silentConn(id)
	if conn == nil || conn.IsClosed() {
		return
	}
	addr := n.answering(ctx, conn)
	if addr == nil {
		n.log.Debug("peers: no answer on a connection, and no other can be made", "peer", id.String(), "path", conn.RemoteMultiaddr().String())
		return
	}
	n.log.Warn("peers: no answer on a connection: closed, as another can be made", "peer", id.String(), "path", conn.RemoteMultiaddr().String(),
		"other", addr.String())
	_ = conn.Close()
}

// answering returns an address at which a new connection to the peer of conn can be made, nil for none. It tries those that are known. A relay
// does not replace a direct connection.
func (n *Node) answering(ctx context.Context, conn network.Conn) (answering ma.Multiaddr) {
	if n.trying.Add(1) > maxTrying {
		n.trying.Add(-1)
		return nil
	}
	defer n.trying.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	id := conn.RemotePeer()
	var all []ma.Multiaddr
	for _, a := range n.host.Peerstore().Addrs(id) {
		if !isCircuit(a) || isCircuit(conn.RemoteMultiaddr()) {
			all = append(all, a)
		}
	}
	var first sync.Once
	var work sync.WaitGroup
	for _, a := range all[:min(len(all), maxTried)] {
		work.Go(func() {
			if err := n.try(ctx, a, id); err == nil {
				first.Do(func() {
					answering = a
					cancel()
				})
			}
		})
	}
	work.Wait()
	return answering
}

// try makes a connection, which is closed at once.
func (n *Node) try(ctx context.Context, addr ma.Multiaddr, id peer.ID) error {
	s, ok := n.host.Network().(*swarm.Swarm)
	if !ok {
		return errors.ErrUnsupported
	}
	resolved, err := madns.DefaultResolver.Resolve(ctx, addr)
	if err != nil || len(resolved) == 0 {
		return errors.Join(err, swarm.ErrNoAddresses)
	}
	by := s.TransportForDialing(resolved[0])
	if by == nil {
		return swarm.ErrNoTransport
	}
	c, err := by.Dial(ctx, resolved[0], id)
	if err != nil {
		return err
	}
	return c.Close()
}

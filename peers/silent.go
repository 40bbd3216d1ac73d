package peers

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"
	multistream "github.com/multiformats/go-multistream"
)

// A libp2p connection whose packets are dropped lives until its muxer gives up (muxerTimeout), so that
// it survives a short partition. If another connection to the peer can be made, callers do not wait
// that long.
const (
	// maxTried bounds the addresses of a peer that are tried, and maxTrying the peers that are tried
	// concurrently: a partition makes many connections silent at once.
	maxTried  = 8
	maxTrying = 16
	// tryTimeout bounds such an attempt, and a ping on the silent connection. Calls do not use the
	// connection meanwhile.
	tryTimeout = 2 * time.Second
	// longestHandshake is the longest time that package tunnel permits for a handshake.
	longestHandshake = 10 * time.Second
)

// calledStream is the stream of a tunnel that this node opened. It detects that the peer never
// answers.
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
	if !c.answered.Load() && time.Since(c.opened) >= min(c.node.cfg.KeepAlive, longestHandshake)/2 { // the handshake has a little less time
		c.node.links.silent(c.Conn())
	}
	return c.streamConn.Close()
}

// silent records that a peer has not answered on a connection in time.
func (l *links) silent(conn network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[conn.RemotePeer()]; k != nil && !slices.Contains(k.silent, conn) {
		k.silent = append(k.silent, conn)
	}
}

// silentConns returns the connections on which a peer has not answered in time, and removes them from
// the record.
func (l *links) silentConns(id peer.ID) (conns []network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[id]; k != nil {
		conns, k.silent = k.silent, nil
	}
	return conns
}

// replaceSilent closes connections on which a peer answers nothing, not even a ping, if another
// connection can be made. A peer that is slow, or that libp2p has not identified yet, answers a ping.
func (n *Node) replaceSilent(ctx context.Context, id peer.ID) {
	var work sync.WaitGroup
	for _, conn := range n.links.silentConns(id) {
		if !conn.IsClosed() {
			work.Go(func() { n.replace(ctx, conn) })
		}
	}
	work.Wait()
}

// replace is replaceSilent for one connection. If the caller's ctx ends before the peer has answered
// or not, the next caller tries again.
func (n *Node) replace(ctx context.Context, conn network.Conn) {
	id, path := conn.RemotePeer().String(), conn.RemoteMultiaddr().String()
	pinging, cancel := context.WithTimeout(n.life, tryTimeout) // not ctx: a caller that gives up says nothing about the peer
	trying, stop := context.WithTimeout(ctx, tryTimeout)
	var answers atomic.Bool
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		if answersPing(pinging, conn) {
			answers.Store(true)
			stop() // no other connection is needed
		}
	}()
	defer func() {
		stop()
		cancel()
		<-pinged
	}()
	addr := n.findAddr(trying, conn)
	if addr != nil {
		select {
		case <-pinged:
		case <-ctx.Done():
		}
	}
	switch {
	case answers.Load():
		n.log.Debug("peers: a connection answers only pings; keeping it", "peer", id, "path", path)
	case ctx.Err() != nil:
		n.links.silent(conn)
	case addr == nil:
		n.log.Debug("peers: no answer on a connection, and no other can be made", "peer", id, "path", path)
	default:
		n.log.Warn("peers: no answer on a connection: closed, as another can be made", "peer", id, "path", path, "other", addr.String())
		_ = conn.Close()
	}
}

// answersPing reports whether the peer answers a ping on a connection before ctx ends. An answer that ping
// is not supported counts, and so does a reset: the peer's ping service may be at its limit. If this
// node cannot open a stream, the peer is assumed to answer.
func answersPing(ctx context.Context, conn network.Conn) bool {
	s, err := conn.NewStream(network.WithAllowLimitedConn(ctx, "ping"))
	if err != nil {
		return ctx.Err() == nil
	}
	defer s.Reset()                                          //nolint:errcheck // it has no more use
	defer context.AfterFunc(ctx, func() { _ = s.Reset() })() // the muxer may wait forever to take a write
	var sent, got [32]byte
	_, _ = rand.Read(sent[:]) // never fails
	err = multistream.SelectProtoOrFail(ping.ID, s)
	if err == nil {
		_, err = s.Write(sent[:])
	}
	if err == nil {
		_, err = io.ReadFull(s, got[:])
	}
	return err == nil || ctx.Err() == nil
}

// findAddr returns an address at which a new connection to conn's peer can be made, nil if there is
// none. It tries the known addresses until ctx ends. A relay does not replace a direct connection.
func (n *Node) findAddr(ctx context.Context, conn network.Conn) (answering ma.Multiaddr) {
	if n.trying.Add(1) > maxTrying {
		n.trying.Add(-1)
		return nil
	}
	defer n.trying.Add(-1)
	ctx, cancel := context.WithCancel(ctx)
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
			if err := n.dialOnce(ctx, a, id); err == nil {
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

// dialOnce makes a connection, which is closed at once.
func (n *Node) dialOnce(ctx context.Context, addr ma.Multiaddr, id peer.ID) error {
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

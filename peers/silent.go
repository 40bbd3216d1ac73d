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

// A libp2p connection whose packets are lost stays open until muxerTimeout, so that it survives a
// short partition. Callers need not wait that long if another connection to the peer can be made.
const (
	// maxTried bounds the addresses of a peer to try. maxTrying bounds the peers that are tried
	// concurrently, because a partition silences many connections at once.
	maxTried  = 8
	maxTrying = 16
	// tryTimeout bounds an attempt, and the ping on the silent connection. Calls to the peer wait
	// meanwhile.
	tryTimeout = 2 * time.Second
	// longestHandshake is package tunnel's limit for a handshake.
	longestHandshake = 10 * time.Second
)

// calledStream is the stream of a tunnel that this node has opened. It notices if the peer never
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
		c.answered.Store(true) // a reset is an answer too
	}
	return n, err
}

// Close implements net.Conn.
func (c *calledStream) Close() error {
	if !c.answered.Load() && time.Since(c.opened) >= min(c.node.cfg.KeepAlive, longestHandshake)/2 { // a handshake has somewhat less time
		c.node.links.silent(c.Conn())
	}
	return c.streamConn.Close()
}

// silent records that a peer did not answer on a connection in time.
func (l *links) silent(conn network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[conn.RemotePeer()]; k != nil && !slices.Contains(k.silent, conn) {
		k.silent = append(k.silent, conn)
	}
}

// silentConns returns the connections on which a peer did not answer in time, and clears the
// record.
func (l *links) silentConns(id peer.ID) (conns []network.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.peers[id]; k != nil {
		conns, k.silent = k.silent, nil
	}
	return conns
}

// replaceSilent closes connections on which a peer does not even answer a ping, if another
// connection can be made. A peer that is slow, or not identified by libp2p yet, does answer pings.
func (n *Node) replaceSilent(ctx context.Context, id peer.ID) {
	var work sync.WaitGroup
	for _, conn := range n.links.silentConns(id) {
		if !conn.IsClosed() {
			work.Go(func() { n.replace(ctx, conn) })
		}
	}
	work.Wait()
}

// replace does the work of replaceSilent for one connection. If ctx ends before the result is
// known, the next caller tries again.
func (n *Node) replace(ctx context.Context, conn network.Conn) {
	id, path := conn.RemotePeer().String(), conn.RemoteMultiaddr().String()
	pinging, cancel := context.WithTimeout(n.life, tryTimeout) // not ctx, because a caller may give up before the peer can answer
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

// answersPing reports whether the peer answers a ping on a connection before ctx ends. The answer
// may be that ping is not supported, or a reset, because the peer's ping service may be at its
// limit. If this node cannot open a stream, answersPing assumes that the peer answers.
func answersPing(ctx context.Context, conn network.Conn) bool {
	s, err := conn.NewStream(network.WithAllowLimitedConn(ctx, "ping"))
	if err != nil {
		return ctx.Err() == nil
	}
	defer s.Reset()                                          //nolint:errcheck // not needed any more
	defer context.AfterFunc(ctx, func() { _ = s.Reset() })() // a write to the muxer may wait forever
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

// findAddr returns an address at which a new connection to conn's peer can be made, or nil. It
// tries the known addresses until ctx ends. It does not replace a direct connection by a relayed
// one.
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

// dialOnce makes a connection and closes it.
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

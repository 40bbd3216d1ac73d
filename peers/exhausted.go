package peers

import (
	"log/slog"
	"sync/atomic"
	"time"

	corenet "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// exhaustedPause is the least time between two log lines about refusals. In a flood of connections
// each one is refused.
const exhaustedPause = 10 * time.Second

// countedLimits is a resource manager that counts and logs its refusals. libp2p closes refused connections and streams
// silently.
type countedLimits struct {
	corenet.ResourceManager
	log     *slog.Logger
	refused atomic.Uint64
	logged  atomic.Int64 // when the last line was written, ns since 1970
}

// OpenConnection implements network.ResourceManager.
func (l *countedLimits) OpenConnection(dir corenet.Direction, usesFD bool, endpoint ma.Multiaddr) (corenet.ConnManagementScope, error) {
	s, err := l.ResourceManager.OpenConnection(dir, usesFD, endpoint)
	if err != nil {
		l.note(dir, "a connection", "address", endpoint, err)
		return nil, err
	}
	return &limitedConn{s, l, dir}, nil
}

// OpenStream implements network.ResourceManager.
func (l *countedLimits) OpenStream(id peer.ID, dir corenet.Direction) (corenet.StreamManagementScope, error) {
	s, err := l.ResourceManager.OpenStream(id, dir)
	if err != nil {
		l.note(dir, "a stream", "peer", id.String(), err)
	}
	return s, err
}

// note counts a refusal, and logs it.
func (l *countedLimits) note(dir corenet.Direction, what, key string, value any, err error) {
	all := l.refused.Add(1)
	now, last := time.Now().UnixNano(), l.logged.Load()
	if now-last < int64(exhaustedPause) || !l.logged.CompareAndSwap(last, now) {
		return
	}
	l.log.Warn("peers: a limit of this node is reached, refused "+what, key, value, "direction", dir.String(), "refused", all, "error", err)
}

// limitedConn is a connection whose peer becomes known in the handshake; then the limits of that
// peer apply.
type limitedConn struct {
	corenet.ConnManagementScope
	limits *countedLimits
	dir    corenet.Direction
}

// SetPeer implements network.ConnManagementScope.
func (c *limitedConn) SetPeer(id peer.ID) error {
	err := c.ConnManagementScope.SetPeer(id)
	if err != nil {
		c.limits.note(c.dir, "a connection", "peer", id.String(), err)
	}
	return err
}

package peers

import (
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p"
	corenet "github.com/libp2p/go-libp2p/core/network"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/x/rate"
)

// Limits of one peer, and of connections in their handshake.
const (
	// maxPeerConns bounds the libp2p connections of one peer. One is used, but two nodes that dial
	// each other at the same time, over QUIC and TCP, IPv4 and IPv6, briefly have several. A
	// relayed connection stays open beside a direct one.
	maxPeerConns = 8
	// maxPeerStreams bounds the libp2p streams of one peer: a tunnel in each direction, and one for each
	// protocol between nodes.
	maxPeerStreams = 64
	// maxPeerTunnels bounds the tunnel streams of one peer. Each one is a session, or replaces the
	// stream of a session.
	maxPeerTunnels = 4
	// transientShare is the fraction of the connections, 1/4, that may be in their handshake.
	transientShare = 4
	// transientMemory bounds the memory of connections in their handshake: each needs some KiB.
	transientMemory = 8 << 20
	// addressShare is the fraction of all connections, 1/4, that one IPv4 address or IPv6 network may
	// have: a site with many nodes may be behind it. This machine's own addresses are exempt.
	addressShare = 4
	// connRate is the number of new connections a second from one address, after a burst. Nodes of
	// a site that restarts connect within seconds, and a client that reconnects repeatedly costs
	// only a few handshakes a second.
	connRate = 5
	// gracePeriod is how long a new connection is kept even if it is unused.
	gracePeriod = 20 * time.Second
)

// newLimits makes the resource manager of a node, which refuses everything beyond these limits.
func newLimits(cfg *Config) (corenet.ResourceManager, error) {
	scaling := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&scaling)
	conns := rcmgr.LimitVal(cfg.MaxConns)
	streams := conns * maxPeerStreams / 8 // most peers have only a few
	partial := rcmgr.PartialLimitConfig{
		System: rcmgr.ResourceLimits{
			Conns: conns, ConnsInbound: conns, ConnsOutbound: conns, FD: conns, Memory: rcmgr.LimitVal64(cfg.MaxMemory),
			Streams: streams, StreamsInbound: streams, StreamsOutbound: streams,
		},
		Transient: rcmgr.ResourceLimits{
			Conns: conns/transientShare + 1, ConnsInbound: conns/transientShare + 1, ConnsOutbound: conns/transientShare + 1, FD: conns/transientShare + 1,
			Streams: streams / transientShare, StreamsInbound: streams / transientShare, StreamsOutbound: streams / transientShare, Memory: transientMemory,
		},
		PeerDefault: rcmgr.ResourceLimits{
			Conns: maxPeerConns, ConnsInbound: maxPeerConns, ConnsOutbound: maxPeerConns, FD: maxPeerConns,
			Streams: 2 * maxPeerStreams, StreamsInbound: maxPeerStreams, StreamsOutbound: maxPeerStreams,
			Memory: rcmgr.LimitVal64(cfg.MaxMemory / 2), // one peer can have full speed, but two cannot exclude the others
		},
	}
	limits := partial.Build(scaling.Scale(cfg.MaxMemory, cfg.MaxConns))
	each := max(cfg.MaxConns/addressShare, maxPeerConns)
	return rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits), rcmgr.WithMetricsDisabled(),
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: each}},
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: each}, {PrefixLength: 48, ConnCount: 2 * each}}),
		rcmgr.WithConnRateLimiters(&rate.Limiter{
			NetworkPrefixLimits: []rate.PrefixLimit{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}, {Prefix: netip.MustParsePrefix("::1/128")}},
			SubnetRateLimiter: rate.SubnetLimiter{
				IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: rate.Limit{RPS: connRate, Burst: each}}},
				IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: rate.Limit{RPS: connRate, Burst: each}}},
				GracePeriod:      time.Minute,
			},
		}))
}

// How long a TCP or WebSocket connection may make no progress. By default libp2p's muxer gives a
// write ten seconds, at worst five. A partition of a few seconds would then end connections, and a
// hole in a NAT may not be punched again. For an idle connection the default is forty seconds,
// which is longer than resumeWindow. With muxerTimeout a write gets at least half of it, which is
// enough for TCP's retransmission 12.6 seconds after the beginning of a partition.
const (
	muxerTimeout = 26 * time.Second // for a write, and for the answer to a ping
	muxerPing    = 3 * time.Second  // silence before a ping: the sum of both is less than resumeWindow
)

// maxMuxerMessage is the largest message of the muxer in bytes, with its header. It is as large as
// the largest write of a tunnel's session, because each message costs a wake-up of a goroutine and
// a system call on each side. A power of two fills the muxer's buffers exactly.
const maxMuxerMessage = 128 << 10

// newMuxer returns the muxer of TCP and WebSocket connections.
func newMuxer() *yamux.Transport {
	muxer := *yamux.DefaultTransport
	muxer.ConnectionWriteTimeout, muxer.KeepAliveInterval = muxerTimeout, muxerPing
	muxer.MaxMessageSize = maxMuxerMessage
	return &muxer
}

// newConnManager makes the connection manager of a node: above three quarters of the connection limit it closes the least
// useful connections, down to half of the limit. Connections of bootstrap peers and of tunnels are protected.
func newConnManager(cfg *Config) (*connmgr.BasicConnMgr, error) {
	return connmgr.NewConnManager(cfg.MaxConns/2, cfg.MaxConns*3/4, connmgr.WithGracePeriod(gracePeriod))
}

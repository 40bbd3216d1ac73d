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
	// maxPeerConns bounds the libp2p connections of one peer: one is used; two nodes that dial each other at once, by QUIC and TCP, IPv4 and
	// IPv6, have several for a moment, and a relayed one lives on beside the direct one.
	maxPeerConns = 8
	// maxPeerStreams bounds its libp2p streams: one for a tunnel each way, one for each of the protocols that nodes keep in touch by.
	maxPeerStreams = 64
	// maxPeerTunnels bounds its streams for tunnels, each of which is a session or takes the place of one.
	maxPeerTunnels = 4
	// transientShare is the part of the connections that may be in their handshake.
	transientShare = 4
	// transientMemory is for these: a handshake needs some KiB.
	transientMemory = 8 << 20
	// addressShare is the part of all connections that one IPv4 address, or IPv6 network, may have: behind it there may be a site with many
	// nodes. This machine's own addresses are not bounded by it.
	addressShare = 4
	// connRate is the number of connections a second after a burst: a site that restarts is back in seconds, and a
	// client that reconnects again and again costs only a few handshakes a second.
	connRate = 5
	// keptAwhile is how long a new connection is kept even if it is unused.
	keptAwhile = 20 * time.Second
)

// newLimits makes the resource manager of a node, which refuses everything beyond these limits.
func newLimits(cfg *Config) (corenet.ResourceManager, error) {
	scaling := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&scaling)
	conns := rcmgr.LimitVal(cfg.MaxConns)
	streams := conns * maxPeerStreams / 8 // most peers have but a few
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
			Memory: rcmgr.LimitVal64(cfg.MaxMemory / 2), // one peer at full speed; two cannot keep the others out
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

// How long a TCP or WebSocket connection may be stuck. libp2p's muxer gives a write ten seconds, at worst five, which ends connections that a
// partition of a few seconds has stopped, and a hole in a NAT may not be punched again; of an idle one it notices the end after forty, when
// resumeWindow is over. TCP sends again 12.6 seconds after the beginning of a partition, and a write gets at least half of muxerTimeout.
const (
	muxerTimeout = 26 * time.Second // for a write, and the answer to a ping
	muxerPing    = 3 * time.Second  // of silence before a ping: both together are less than resumeWindow
)

// maxMuxerMessage is the most bytes of a stream that the muxer sends at once, header included: what a session of package tunnel writes at once.
// Each costs a goroutine's wake-up and a system call at either side. Its buffers, of powers of two, have no room to spare at this size.
const maxMuxerMessage = 128 << 10

// newMuxer makes what divides such a connection into streams.
func newMuxer() *yamux.Transport {
	muxer := *yamux.DefaultTransport
	muxer.ConnectionWriteTimeout, muxer.KeepAliveInterval = muxerTimeout, muxerPing
	muxer.MaxMessageSize = maxMuxerMessage
	return &muxer
}

// newKeeper makes the connection manager of a node: above three quarters of the connection limit it closes the least
// useful connections, down to half of the limit. Connections of bootstrap peers and of tunnels are protected.
func newKeeper(cfg *Config) (*connmgr.BasicConnMgr, error) {
	return connmgr.NewConnManager(cfg.MaxConns/2, cfg.MaxConns*3/4, connmgr.WithGracePeriod(keptAwhile))
}

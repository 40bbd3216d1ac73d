package peers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// A peer with offences offences within offenceTime is blocked for blockTime: it is disconnected, and
// not dialled.
const (
	offences    = 5 // gossipsub ignores a peer after about as many
	offenceTime = time.Minute
	blockTime   = 10 * time.Minute
	// maxOffenders bounds the table. A flood of identities is stopped by the limits for each IP
	// address.
	maxOffenders = 1000
)

// offenders are peers that forge records or send too many.
type offenders struct {
	node *Node

	mu     sync.Mutex // held for a few instructions
	closed bool
	all    map[peer.ID]*offender
	named  lineLimit // limits the lines about offenders, because identities cost nothing
}

type offender struct {
	since   time.Time // of the first offence that counts
	count   int
	blocked time.Time // until when; zero: not blocked
}

// note counts an offence, and blocks a peer that has too many.
func (o *offenders) note(id peer.ID, err error) {
	now := time.Now()
	o.mu.Lock()
	p := o.all[id]
	switch {
	case p == nil:
		if len(o.all) >= maxOffenders {
			o.tidy(now)
		}
		if len(o.all) >= maxOffenders {
			o.mu.Unlock()
			return
		}
		p = &offender{since: now}
		if o.all == nil {
			o.all = map[peer.ID]*offender{}
		}
		o.all[id] = p
	case now.Sub(p.since) > offenceTime && p.blocked.IsZero():
		p.since, p.count = now, 0
	}
	p.count++
	first, block := p.count == 1, p.count == offences
	if block {
		p.blocked = now.Add(blockTime)
		if !o.closed {
			o.node.work.Go(func() { _ = o.node.host.Network().ClosePeer(id) })
		}
	}
	o.mu.Unlock()
	if first {
		o.named.log(o.node.log, slog.LevelWarn, "peers: a peer misbehaves", "peer", id.String(), "error", err)
	}
	if block {
		o.named.log(o.node.log, slog.LevelWarn, "peers: a peer is blocked, because it keeps misbehaving", "peer", id.String(), "for", blockTime, "error", err)
	}
}

// close prevents further disconnects; Node.work waits for those under way.
func (o *offenders) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// tidy forgets expired entries. mu is held.
func (o *offenders) tidy(now time.Time) {
	for id, p := range o.all {
		if over := p.since.Add(offenceTime); now.After(over) && now.After(p.blocked) {
			delete(o.all, id)
		}
	}
}

// blocks reports whether a peer is blocked.
func (o *offenders) blocks(id peer.ID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.all[id]
	if p == nil || p.blocked.IsZero() {
		return false
	}
	if time.Now().After(p.blocked) {
		delete(o.all, id)
		return false
	}
	return true
}

var _ connmgr.ConnectionGater = (*offenders)(nil)

// InterceptPeerDial implements connmgr.ConnectionGater.
func (o *offenders) InterceptPeerDial(id peer.ID) bool { return !o.blocks(id) }

// InterceptAddrDial implements connmgr.ConnectionGater.
func (o *offenders) InterceptAddrDial(id peer.ID, _ ma.Multiaddr) bool { return !o.blocks(id) }

// InterceptAccept implements connmgr.ConnectionGater: the peer's identity is not known yet.
func (o *offenders) InterceptAccept(network.ConnMultiaddrs) bool { return true }

// InterceptSecured implements connmgr.ConnectionGater.
func (o *offenders) InterceptSecured(_ network.Direction, id peer.ID, _ network.ConnMultiaddrs) bool {
	return !o.blocks(id)
}

// InterceptUpgraded implements connmgr.ConnectionGater.
func (o *offenders) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }

// buckets has a token bucket for each peer. The caller must hold a mutex.
type buckets struct {
	rate, burst float64
	all         map[peer.ID]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newBuckets(rate, burst float64) buckets { return buckets{rate, burst, map[peer.ID]bucket{}} }

// take takes a token from a peer's bucket, and reports whether there was one.
func (b *buckets) take(id peer.ID, now time.Time) bool {
	k, known := b.all[id]
	if !known {
		if len(b.all) >= maxPast {
			return false // a flood of identities
		}
		k.left = b.burst
	} else {
		k.left = min(b.burst, k.left+b.rate*now.Sub(k.at).Seconds())
	}
	k.at = now
	ok := k.left >= 1
	if ok {
		k.left--
	}
	b.all[id] = k
	return ok
}

// tidy removes full buckets.
func (b *buckets) tidy(now time.Time) {
	for id, k := range b.all {
		if k.left+b.rate*now.Sub(k.at).Seconds() >= b.burst {
			delete(b.all, id)
		}
	}
}

// linesPerSecond is the rate of a lineLimit.
const linesPerSecond = 5

// lineLimit limits log lines of one kind to linesPerSecond.
type lineLimit struct {
	mu      sync.Mutex
	began   time.Time
	lines   int
	skipped int
}

func (l *lineLimit) log(log *slog.Logger, level slog.Level, msg string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.began) >= time.Second {
		l.began, l.lines = now, 0
	}
	if l.lines++; l.lines > linesPerSecond {
		l.skipped++
		return
	}
	if l.skipped > 0 {
		args = append(args, "unlogged_before", l.skipped)
		l.skipped = 0
	}
	log.Log(context.Background(), level, msg, args...)
}

package peers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	manet "github.com/multiformats/go-multiaddr/net"
)

// topicServices is the topic on which nodes announce their services.
const topicServices = "/headpond/services/1"

// A node publishes its services when they change, but at most once in minPause. Otherwise it
// publishes them after an interval from minInterval to maxInterval, chosen so that all nodes
// together publish about recordRate records a second; otherwise the traffic would grow with the
// square of the number of nodes. A record expires after recordLives intervals.
const (
	minPause    = 250 * time.Millisecond
	minInterval = 1500 * time.Millisecond
	maxInterval = 15 * time.Second
	recordRate  = 50
	recordLives = 3
)

// tableInterval is how often the node checks the table for expired entries, and the services for
// changes.
const tableInterval = 250 * time.Millisecond

// gossip announces the services of this node to other nodes, and keeps theirs in a table.
type gossip struct {
	node      *Node
	key       crypto.PrivKey
	topic     *pubsub.Topic
	stop      context.CancelFunc // ends pubsub, which outlives the node's life to send the last record
	stopRelay pubsub.RelayCancelFunc
	wake      chan struct{} // has a capacity of one

	streams pubsubStreams

	mu       sync.Mutex // held for a few instructions
	table    *table
	own      []byte // the last record of this node; nil: none
	origins  buckets
	relays   buckets
	services []Service
	leaving  bool
	issued   int64 // when this node's last record was issued
	outdated bool  // other nodes have a record of this node from its future, see noteOwn
	counts   GossipStats
	refused  lineLimit
	news     lineLimit
}

// Limits of records, per second and as a burst: from one node about itself, and from one neighbour
// about all nodes.
const (
	originRate, originBurst = 4, 20
	relayRate, relayBurst   = 200, 2000
)

// errFlood: a node or a neighbour has sent too many records.
var errFlood = errors.New("too many records")

// GossipStats counts records since the start.
type GossipStats struct {
	Taken   uint64 // with new content
	Forged  uint64 // with a wrong signature or format, or issued in the future
	Stale   uint64 // out of date
	Flooded uint64 // over the limits of records
	Full    uint64 // that did not fit into the table
	Evicted uint64 // nodes removed from a full table for others
}

// newGossip joins the topic.
func newGossip(n *Node, key crypto.PrivKey, services []Service) (*gossip, error) {
	g := &gossip{node: n, key: key, table: newTable(maxEntries), services: services, wake: make(chan struct{}, 1)}
	g.origins, g.relays = newBuckets(originRate, originBurst), newBuckets(relayRate, relayBurst)
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	ps, err := pubsub.NewGossipSub(ctx, n.host,
		pubsub.WithMessageSignaturePolicy(pubsub.StrictNoSign), pubsub.WithNoAuthor(), // records have their own signature
		pubsub.WithMessageIdFn(func(m *pb.Message) string {
			sum := sha256.Sum256(m.Data)
			return string(sum[:])
		}),
		pubsub.WithMaxMessageSize(4*maxRecord), pubsub.WithFloodPublish(true), pubsub.WithPeerScore(scores()),
		pubsub.WithSubscriptionFilter(pubsub.NewAllowlistSubscriptionFilter(topicServices)), pubsub.WithRawTracer(&g.streams),
		pubsub.WithLogger(n.log), pubsub.WithRPCLogger(slog.New(slog.DiscardHandler)))
	if err == nil {
		err = ps.RegisterTopicValidator(topicServices, pubsub.ValidatorEx(g.validate), pubsub.WithValidatorInline(true))
	}
	if err == nil {
		g.topic, err = ps.Join(topicServices)
	}
	if err == nil {
		g.stopRelay, err = g.topic.Relay()
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("peers: %w", err)
	}
	n.work.Go(g.announce)
	return g, nil
}

// scores returns gossipsub's scoring parameters: it ignores a neighbour's messages after a few
// forged records within minutes.
func scores() (*pubsub.PeerScoreParams, *pubsub.PeerScoreThresholds) {
	topic := &pubsub.TopicScoreParams{
		SkipAtomicValidation: true, TopicWeight: 1, TimeInMeshQuantum: time.Second, // a divisor
		InvalidMessageDeliveriesWeight: -10, InvalidMessageDeliveriesDecay: pubsub.ScoreParameterDecay(10 * time.Minute),
	}
	params := &pubsub.PeerScoreParams{
		SkipAtomicValidation: true, AppSpecificScore: func(peer.ID) float64 { return 0 },
		DecayInterval: time.Second, DecayToZero: 0.01, RetainScore: 10 * time.Minute,
		BehaviourPenaltyWeight: -1, BehaviourPenaltyThreshold: 6, BehaviourPenaltyDecay: pubsub.ScoreParameterDecay(time.Minute),
		Topics: map[string]*pubsub.TopicScoreParams{topicServices: topic},
	}
	return params, &pubsub.PeerScoreThresholds{GossipThreshold: -50, PublishThreshold: -100, GraylistThreshold: -200}
}

// validate is called for each record that arrives, before it is forwarded. A neighbour that
// forwards a forged record has not validated it.
func (g *gossip) validate(_ context.Context, from peer.ID, m *pubsub.Message) pubsub.ValidationResult {
	if from == g.node.id {
		return pubsub.ValidationAccept
	}
	g.mu.Lock()
	flood := !g.relays.take(from, time.Now())
	if flood {
		g.count(errFlood)
	}
	g.mu.Unlock()
	if flood {
		g.node.offenders.note(from, errFlood)
		return pubsub.ValidationIgnore
	}
	switch err := g.take(from, m.Data, maxLife); {
	case err == nil:
		return pubsub.ValidationAccept
	case errors.Is(err, errForged):
		return pubsub.ValidationReject
	}
	return pubsub.ValidationIgnore
}

// take puts a record that a neighbour has sent into the table. It is valid for life.
func (g *gossip) take(from peer.ID, data []byte, life time.Duration) error {
	now := time.Now()
	id, r, err := unseal(data, now) // without the mutex: checking the signature takes long
	var counted source
	if err == nil {
		counted = g.node.sourceOf(id, from)
	}
	var c change
	g.mu.Lock()
	switch {
	case err != nil:
	case id == g.node.id:
		g.noteOwn(r, now)
		err = errKnown
	case g.table.knows(id, r):
		err = errKnown
	case !g.origins.take(id, now):
		err = errFlood
	default:
		c, err = g.table.put(id, r, data, counted, life, now)
	}
	g.count(err)
	if c.evicted {
		g.counts.Evicted++
	}
	g.mu.Unlock()
	switch {
	case errors.Is(err, errForged):
		g.node.offenders.note(from, err)
	case errors.Is(err, errFlood) && from == id: // records from other neighbours may be old ones, sent all at once
		g.node.offenders.note(id, err)
	case errors.Is(err, errFuture), errors.Is(err, errFull):
		g.refused.log(g.node.log, slog.LevelWarn, "peers: services of a node are not taken", "peer", id.String(), "from", from.String(), "error", err)
	}
	switch {
	case c.fresh:
		g.news.log(g.node.log, slog.LevelInfo, "peers: a node offers services", "peer", id.String(), "services", names(r.Services))
	case c.gone:
		g.news.log(g.node.log, slog.LevelInfo, "peers: a node offers no services any more", "peer", id.String())
	}
	return err
}

// noteOwn handles a record of this node itself that was issued later than now: the clock was set
// back, perhaps before a restart. Other nodes would refuse records that seem older, so the next
// record gets a later time. mu is held.
func (g *gossip) noteOwn(r *nodeRecord, now time.Time) {
	if r.Issued > g.issued && r.issued().After(now) {
		g.issued, g.outdated = r.Issued, true
		g.signal()
	}
}

// issue returns the time of this node's next record. It is now or, if the clock was set back, just
// after the last record's time. mu is held.
func (g *gossip) issue(now time.Time) int64 {
	at := now.UnixNano()
	if ahead := time.Duration(g.issued - at); ahead >= 0 && ahead <= maxSkew { // other nodes refuse records further ahead
		at = g.issued + 1
	}
	g.issued = at
	return at
}

// sourceOf returns the source for which the entry of a node counts. from is the neighbour that sent
// its record.
func (n *Node) sourceOf(id, from peer.ID) source {
	switch {
	case n.host.Network().Connectedness(id) != network.NotConnected:
		return source{connected, string(id)}
	case n.bootstrap.has(from) || n.circuits.has(from):
		return source{trusted, string(from)}
	}
	for _, c := range n.host.Network().ConnsToPeer(from) {
		if ip, err := manet.ToIP(c.RemoteMultiaddr()); err == nil { // of a relayed connection, the relay's address
			return source{reported, siteOf(ip)}
		}
	}
	return source{kind: reported}
}

// siteOf returns an IPv4 address, or the /56 network of an IPv6 address.
func siteOf(ip net.IP) string {
	if ip.To4() == nil {
		ip = ip.Mask(net.CIDRMask(56, 128))
	}
	return ip.String()
}

// count counts a record by its error. mu is held.
func (g *gossip) count(err error) {
	switch {
	case err == nil:
		g.counts.Taken++
	case errors.Is(err, errForged), errors.Is(err, errFuture):
		g.counts.Forged++
	case errors.Is(err, errStale):
		g.counts.Stale++
	case errors.Is(err, errFlood):
		g.counts.Flooded++
	case errors.Is(err, errFull):
		g.counts.Full++
	}
}

func names(offers []Offer) (all []string) {
	for _, o := range offers {
		all = append(all, o.Name)
	}
	return all
}

// announce announces the services and removes expired nodes, until the node ends.
func (g *gossip) announce() {
	tick := time.NewTicker(tableInterval)
	defer tick.Stop()
	var published []Offer
	var at time.Time
	for {
		select {
		case <-g.node.life.Done():
			return
		case <-g.wake:
		case <-tick.C:
		}
		now := time.Now()
		pause := g.expire(now)
		if now.Sub(at) < minPause {
			continue
		}
		offers, outdated := g.offers()
		changed := outdated || !reflect.DeepEqual(withoutLoad(offers), withoutLoad(published))
		if !changed && (len(offers) == 0 || now.Sub(at) < pause) {
			continue
		}
		g.publish(offers, recordLives*pause)
		published, at = offers, now
	}
}

// expire removes expired nodes, and returns the pause between two records of this node.
func (g *gossip) expire(now time.Time) (pause time.Duration) {
	g.mu.Lock()
	gone := g.table.expire(now)
	g.origins.tidy(now)
	g.relays.tidy(now)
	pause = min(max(minInterval, time.Duration(len(g.table.entries)+1)*time.Second/recordRate), maxInterval)
	g.mu.Unlock()
	for _, id := range gone {
		g.news.log(g.node.log, slog.LevelWarn, "peers: a node that offered services is gone", "peer", id.String())
	}
	return pause
}

// withoutLoad returns the offers without Load, whose changes are not announced at once.
func withoutLoad(offers []Offer) []Offer {
	offers = slices.Clone(offers)
	for i := range offers {
		offers[i].Load = 0
	}
	return offers
}

// offers returns the healthy services of this node. outdated reports whether a new record must be
// sent even if nothing has changed.
func (g *gossip) offers() (offers []Offer, outdated bool) {
	g.mu.Lock()
	services, leaving := g.services, g.leaving
	outdated, g.outdated = g.outdated, false
	g.mu.Unlock()
	for i := range services {
		s := &services[i]
		if leaving || s.Healthy != nil && !s.Healthy() {
			continue
		}
		offers = append(offers, Offer{Name: s.Name, Groups: g.node.models.groups(s), Capacity: s.Capacity, Load: g.node.loads.of(s.Name)})
	}
	return offers, outdated
}

// publish sends a new record to all nodes.
func (g *gossip) publish(offers []Offer, life time.Duration) {
	addrs := g.node.addrs()
	g.mu.Lock()
	issued := g.issue(time.Now())
	g.mu.Unlock()
	r := &nodeRecord{
		Issued: issued, Life: min(max(life, minLife), maxLife).Milliseconds(), Version: g.node.cfg.Version, Services: offers,
	}
	for _, a := range addrs[:min(len(addrs), maxRecordAddrs)] {
		r.Addrs = append(r.Addrs, a.String())
	}
	data, err := seal(r, g.key)
	if err == nil {
		err = g.topic.Publish(context.Background(), data)
	}
	if err != nil && g.node.life.Err() == nil {
		g.node.log.Error("peers: services cannot be announced", "error", err)
		return
	}
	g.mu.Lock()
	g.own = data
	g.mu.Unlock()
}

// current returns the services.
func (g *gossip) current() []Service {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.services
}

// set replaces the services.
func (g *gossip) set(services []Service) {
	g.mu.Lock()
	g.services = services
	g.mu.Unlock()
	g.signal()
}

func (g *gossip) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// withdraw announces that this node offers no more services.
func (g *gossip) withdraw() {
	g.mu.Lock()
	again := g.leaving
	g.leaving = true
	offered := g.own != nil
	g.mu.Unlock()
	if offered && !again {
		g.publish(nil, minLife)
		time.Sleep(withdrawTime)
	}
}

// withdrawTime is how long withdraw waits for the last record to be sent, because pubsub does not
// report that. Other nodes that do not get the record forget this node when its previous record
// expires.
const withdrawTime = 100 * time.Millisecond

// close leaves the topic.
func (g *gossip) close() {
	g.stopRelay()
	_ = g.topic.Close()
	g.stop()
}

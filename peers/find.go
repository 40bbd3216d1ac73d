package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/identity"
	"github.com/headpond/headpond/tunnel"
)

// ErrNoProvider: no node is known that offers the service.
var ErrNoProvider = errors.New("peers: no node offers the service")

// Limits of DialService: the number of nodes to try, and the time for each but the last one.
const (
	maxTries = 4
	tryTime  = 2 * time.Second
)

// After a failed call a node is tried last for a while. The time doubles with each failure, from
// firstBackoff to maxBackoff.
const (
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
)

// backoffs has the nodes whose last call failed, for each service.
type backoffs struct {
	mu  sync.Mutex
	all map[Target]backoff
}

type backoff struct {
	until time.Time
	pause time.Duration
	err   error
}

// note records the result of a call.
func (b *backoffs) note(t Target, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.all, t)
		return
	}
	if b.all == nil || len(b.all) >= maxPast {
		b.all = map[Target]backoff{}
	}
	k := b.all[t]
	k.pause = min(max(2*k.pause, firstBackoff), maxBackoff)
	k.until, k.err = time.Now().Add(k.pause), err
	b.all[t] = k
}

// why returns the last error of a node in backoff, nil for other nodes.
func (b *backoffs) why(t Target) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k, ok := b.all[t]; ok && time.Now().Before(k.until) {
		return k.err
	}
	return nil
}

// Choice restricts the nodes at which a service is called. The zero Choice permits all that offer it.
type Choice struct {
	// Providers are the IDs of the permitted nodes; empty: all nodes that offer the service. Every
	// node of the network can offer a service of any name.
	Providers []string
	// Rank returns how well an offer fits. Nodes with higher ranks are tried first, nodes with rank
	// 0 are not tried. Rank is called with a mutex held, and must not wait. nil: all offers have
	// the same rank.
	Rank func(Offer) int
}

// ranks returns the function that ranks offers of nodes.
func (c Choice) ranks() func(peer.ID, Offer) int {
	allowed := map[peer.ID]bool{}
	for _, text := range c.Providers {
		id, _ := ParseID(text) // an invalid ID permits no node
		allowed[id] = true
	}
	return func(id peer.ID, o Offer) int {
		switch {
		case len(allowed) > 0 && !allowed[id]:
			return 0
		case c.Rank == nil:
			return 1
		}
		return c.Rank(o)
	}
}

// Providers returns the nodes that offer a service and that choice permits, in the order in which
// to try them. known is the number of all nodes that offer the service.
func (n *Node) Providers(service string, choice Choice) (targets []Target, known int) {
	links := map[peer.ID]tunnel.Stats{}
	for _, l := range n.links.all() {
		links[l.peer] = l.client.Stats()
	}
	rank := choice.ranks()
	n.gossip.mu.Lock()
	ids, known := n.gossip.table.offering(service, func(id peer.ID) int { return links[id].Streams }, rank)
	n.gossip.mu.Unlock()
	var last []Target
	for _, id := range ids {
		t := Target{id.String(), service}
		if s := links[id]; s.LastError != nil || s.Suspended > 0 || n.backoffs.why(t) != nil {
			last = append(last, t)
		} else {
			targets = append(targets, t)
		}
	}
	return append(targets, last...), known
}

// GroupKeys returns the keys in the groups of the nodes that offer a service: "model" of "model=llama3".
func (n *Node) GroupKeys(service string) map[string]bool {
	keys := map[string]bool{}
	n.gossip.mu.Lock()
	defer n.gossip.mu.Unlock()
	t := n.gossip.table
	for id := range t.providers[service] {
		for _, g := range t.entries[id].offer(service).Groups {
			if key, _, ok := strings.Cut(g, "="); ok {
				keys[key] = true
			}
		}
	}
	return keys
}

// Failed records the result of a call to a node; err is nil if the call succeeded. After a failure
// the node is tried last for a while.
func (n *Node) Failed(t Target, err error) { n.backoffs.note(t, err) }

// DialService connects to a service of a node that choice permits. It tries several nodes if
// necessary. The error is an *Error.
func (n *Node) DialService(ctx context.Context, service string, choice Choice) (*tunnel.Conn, error) {
	all, known := n.Providers(service, choice)
	if len(all) == 0 {
		err := ErrNoProvider
		if known > 0 {
			err = fmt.Errorf("%w and may be used: %d others offer it", err, known)
		}
		return nil, &Error{"", service, err}
	}
	all = all[:min(len(all), maxTries)]
	var errs []error
	for i, t := range all {
		trying, cancel := ctx, func() {}
		if i < len(all)-1 {
			trying, cancel = context.WithTimeout(ctx, tryTime)
		}
		conn, err := n.Dial(trying, t)
		cancel()
		if ctx.Err() == nil || err == nil { // otherwise the caller has given up, and the node may be fine
			n.backoffs.note(t, err)
		}
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &Error{"", service, oneLine(errs)}
}

// locate adds the announced addresses of a node to libp2p's peerstore, before a call to the node.
func (n *Node) locate(id peer.ID) {
	var texts []string
	n.gossip.mu.Lock()
	if e := n.gossip.table.entries[id]; e != nil {
		texts = e.record.Addrs
	}
	n.gossip.mu.Unlock()
	var addrs []ma.Multiaddr
	for _, t := range texts {
		if a, err := ma.NewMultiaddr(t); err == nil {
			addrs = append(addrs, a)
		}
	}
	n.host.Peerstore().AddAddrs(id, addrs, peerstore.TempAddrTTL)
}

// loads counts the open connections to each service of this node.
type loads struct {
	mu  sync.Mutex
	all map[string]int
}

func (l *loads) add(service string, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]int{}
	}
	if l.all[service] += by; l.all[service] == 0 {
		delete(l.all, service)
	}
}

func (l *loads) of(service string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[service]
}

// counted returns a function that calls connect and counts the connections.
func (l *loads) counted(service string, connect func(context.Context) (net.Conn, error)) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := connect(ctx)
		if err != nil {
			return nil, err
		}
		l.add(service, 1)
		return &countedConn{Stream: fiber.StreamOf(c), gone: sync.OnceFunc(func() { l.add(service, -1) })}, nil
	}
}

type countedConn struct {
	fiber.Stream
	gone func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.gone()
	return c.Stream.Close()
}

// checkGroups returns an error for invalid groups of a service.
func checkGroups(groups []string) error {
	if len(groups) > maxGroups {
		return fmt.Errorf("%d groups, at most %d are possible", len(groups), maxGroups)
	}
	for i, g := range groups {
		if err := CheckGroup(g); err != nil {
			return err
		}
		if slices.Contains(groups[:i], g) {
			return fmt.Errorf("group %q is there twice", g)
		}
	}
	return nil
}

// CheckGroup returns an error for an invalid identity group; valid are "key=value", "key=*" for any value, or "all".
func CheckGroup(group string) error {
	_, err := identity.Parse(group)
	return err
}

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
	"github.com/headpond/headpond/tunnel"
)

// ErrNoProvider: no node is known that offers the service.
var ErrNoProvider = errors.New("peers: no node offers the service")

// How many nodes are tried for one connection to a service, and how long one may take as long as there is another.
const (
	maxTries = 4
	tryTime  = 2 * time.Second
)

// A node that could not be called is tried last for a time, which doubles from firstShun to mostShun.
const (
	firstShun = time.Second
	mostShun  = 30 * time.Second
)

// shunned are nodes that could not be called, each for a service.
type shunned struct {
	mu  sync.Mutex
	all map[Target]shun
}

type shun struct {
	until time.Time
	pause time.Duration
	err   error
}

// note takes the result of a call.
func (s *shunned) note(t Target, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.all, t)
		return
	}
	if s.all == nil || len(s.all) >= maxPast {
		s.all = map[Target]shun{}
	}
	k := s.all[t]
	k.pause = min(max(2*k.pause, firstShun), mostShun)
	k.until, k.err = time.Now().Add(k.pause), err
	s.all[t] = k
}

// why is the last failure of a node that is to be tried last, nil if it is not.
func (s *shunned) why(t Target) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.all[t]; ok && time.Now().Before(k.until) {
		return k.err
	}
	return nil
}

// Providers returns the nodes that offer a service, in the order in which to try them.
func (n *Node) Providers(service string) []Target {
	targets, _ := n.RankedProviders(service, nil)
	return targets
}

// RankedProviders is Providers for callers that choose: nodes of a higher rank come first, and those of rank 0 are left out. known is how many
// offer the service.
func (n *Node) RankedProviders(service string, rank func(Offer) int) (targets []Target, known int) {
	links := map[peer.ID]tunnel.Stats{}
	for _, l := range n.links.all() {
		links[l.peer] = l.client.Stats()
	}
	n.gossip.mu.Lock()
	ids, known := n.gossip.table.offering(service, func(id peer.ID) int { return links[id].Streams }, rank)
	n.gossip.mu.Unlock()
	var last []Target
	for _, id := range ids {
		t := Target{id.String(), service}
		if s := links[id]; s.LastError != nil || s.Suspended > 0 || n.shunned.why(t) != nil {
			last = append(last, t)
		} else {
			targets = append(targets, t)
		}
	}
	return append(targets, last...), known
}

// Failed notes that a node could not be called, or that it could: err is nil. Those that failed are tried last for a time.
func (n *Node) Failed(t Target, err error) { n.shunned.note(t, err) }

// dialAny connects to a service of some node.
func (n *Node) dialAny(ctx context.Context, service string) (*tunnel.Conn, error) {
	all := n.Providers(service)
	if len(all) == 0 {
		return nil, &Error{"", service, ErrNoProvider}
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
		if ctx.Err() == nil || err == nil { // else it is not the node's fault
			n.shunned.note(t, err)
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

// addAddrs notes where a node says that it can be connected to.
func (n *Node) addAddrs(id peer.ID, texts []string) {
	var addrs []ma.Multiaddr
	for _, t := range texts {
		if a, err := ma.NewMultiaddr(t); err == nil {
			addrs = append(addrs, a)
		}
	}
	n.host.Peerstore().AddAddrs(id, addrs, peerstore.TempAddrTTL)
}

// loads counts the connections that are open to each service here.
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

// counted is Service.Connect whose connections count.
func (l *loads) counted(s Service) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := s.Connect(ctx)
		if err != nil {
			return nil, err
		}
		l.add(s.Name, 1)
		return &countedConn{Stream: fiber.StreamOf(c), gone: sync.OnceFunc(func() { l.add(s.Name, -1) })}, nil
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

// checkGroups says what is wrong with the groups of a service.
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

// CheckGroup says what is wrong with an identity group: "key=value", "key=*" for any value, or "all".
func CheckGroup(group string) error {
	key, value, ok := strings.Cut(group, "=")
	switch {
	case len(group) > maxGroup:
		return fmt.Errorf("a group has at most %d bytes", maxGroup)
	case group == "all":
		return nil
	case !ok || key == "" || value == "":
		return fmt.Errorf("group %q: want key=value, key=* or all", clip(group))
	}
	return nil
}

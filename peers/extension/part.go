package extension

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sync"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/upstream"
)

// part is the node of a gateway, if the gateway is one.
type part struct {
	gateway extend.Gateway

	mu       sync.Mutex        // not held during calls of the gateway or a node
	node     *peers.Node       // nil: none
	cfg      *Peers            // of node
	services map[string]string // upstreams of the services here, by name
	retired  []*peers.Node     // removed by reloads, and not drained yet
	left     bool              // Leave has closed the node
	later    *later            // the node starts when the previous process has closed its own; nil: it does not

	starting sync.WaitGroup // goroutines of later
}

func newPart(g extend.Gateway) extend.Part { return &part{gateway: g} }

// errStarting: the upstream or the node belongs to a configuration that is not in force yet.
var errStarting = errors.New("the gateway is starting or reloading")

// errFixed is the error of a reload that changes a node's fixed settings.
var errFixed = errors.New("these settings of \"peers\" hold until the gateway ends: restart it")

// now returns the current node, nil if there is none.
func (p *part) now() *peers.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node
}

// Check implements extend.Part. There is nothing to check beyond check, which is called with the
// file.
func (p *part) Check(*config.Config, func(err error, at any)) {}

// Plan implements extend.Part.
func (p *part) Plan(plan *extend.Plan) error {
	p.mu.Lock()
	old, cfg, waiting := p.node, p.cfg, p.later
	p.mu.Unlock()
	next := nodeOf(plan.New)
	plan.Swap = append(plan.Swap, func() { p.note(plan.New) })
	switch {
	case waiting != nil:
		return p.planLater(plan, waiting, next)
	case old == nil && next == nil:
		return nil
	case next == nil:
		p.retire(plan, old)
		return nil
	case old == nil:
		return p.begin(plan, next)
	}
	if !reflect.DeepEqual(fixed(cfg), fixed(next)) {
		return fmt.Errorf("peers: %w", errFixed)
	}
	services := p.offer(plan.New)
	plan.Commit = append(plan.Commit, func() error {
		p.mu.Lock()
		p.cfg = next
		p.mu.Unlock()
		return errors.Join(old.SetBootstrap(texts(next.Bootstrap)), old.SetServices(services))
	})
	if !reflect.DeepEqual(cfg.Bootstrap, next.Bootstrap) || !reflect.DeepEqual(servicesOf(plan.Old), servicesOf(plan.New)) {
		plan.Changes = append(plan.Changes, "peers changed")
	}
	return nil
}

// fixed returns the settings that cannot change while a node runs.
func fixed(p *Peers) Peers {
	c := *p
	c.Bootstrap = nil
	return c
}

// prepared is a node that can be started.
type prepared struct {
	peers.Config
	settings *Peers
	keyFile  string
	newKey   bool
}

// prepare translates the settings of a node.
func (p *part) prepare(plan *extend.Plan, next *Peers) (n prepared, err error) {
	n.settings, n.keyFile = next, keyFile(plan.New, next)
	var key ed25519.PrivateKey
	if key, n.newKey, err = peers.LoadOrCreateKey(n.keyFile); err != nil {
		return n, fmt.Errorf("peers: key: %w", err)
	}
	n.Config = peers.Config{
		Key: key, Listen: texts(next.Listen), Announce: texts(next.Announce), Bootstrap: texts(next.Bootstrap), MDNS: next.MDNS, DHT: next.DHT,
		Relays: texts(next.Relays), NoHolePunching: !next.HolePunching, UPnP: next.UPnP, AutoNAT: next.AutoNAT,
		MaxConns: next.MaxConnections, MaxMemory: int64(next.MaxMemory) << 20, MaxStreams: next.MaxStreams, KeepAlive: next.KeepAlive,
		DialTimeout: next.DialTimeout, Services: p.offer(plan.New), Logger: p.gateway.Logger(),
	}
	n.RelayFor, n.RelayForAnyone = callersOf(next.RelayFor)
	if !next.NetworkKey.IsZero() {
		if n.NetworkKey, err = peers.ParseNetworkKey(next.NetworkKey.Reveal()); err != nil {
			return n, fmt.Errorf("peers: network_key: %w", err)
		}
	}
	return n, nil
}

// start starts a node.
func (n prepared) start() (*peers.Node, error) {
	node, err := peers.New(n.Config)
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	n.Logger.Info("peers: node", "id", node.ID(), "addresses", node.Addrs(), "key", n.keyFile, "new_key", n.newKey, "private", len(n.NetworkKey) > 0)
	return node, nil
}

// begin starts a node, or has it started as soon as the previous process has closed its own.
func (p *part) begin(plan *extend.Plan, next *Peers) error {
	n, err := p.prepare(plan, next)
	if err != nil {
		return err
	}
	select {
	case <-p.gateway.Vacated():
	default:
		plan.Swap = append(plan.Swap, func() { p.beginLater(n) })
		return nil
	}
	node, err := n.start()
	if err != nil {
		return err
	}
	plan.Abort = append(plan.Abort, func() {
		node.Close()
		p.swap(nil, nil)
	})
	plan.Changes = append(plan.Changes, "peers added")
	if plan.Old == nil { // pools may use the node before Swap, when they warm up
		p.swap(node, next)
	}
	plan.Swap = append(plan.Swap, func() { p.swap(node, next) })
	return nil
}

// retire takes the node out of service.
func (p *part) retire(plan *extend.Plan, old *peers.Node) {
	plan.Changes = append(plan.Changes, "peers removed")
	plan.Swap = append(plan.Swap, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.node, p.cfg, p.retired = nil, nil, append(p.retired, old)
	})
	plan.Retired = append(plan.Retired, &extend.Retired{
		Kind: "peers", Name: "node", Protocol: "p2p", Sessions: "connections of a removed node",
		Active: func() int { return old.Active() },
		Drain: func(ctx context.Context) error {
			defer old.Close()
			return old.Drain(ctx)
		},
		Gone: func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.retired = slices.DeleteFunc(p.retired, func(n *peers.Node) bool { return n == old })
		},
	})
}

func (p *part) swap(node *peers.Node, cfg *Peers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node, p.cfg = node, cfg
}

// offer returns the services that other nodes may call.
func (p *part) offer(cfg *config.Config) (services []peers.Service) {
	for _, s := range servicesOf(cfg) {
		offered := peers.Service{
			Name: s.Name, Groups: texts(s.Groups), Models: string(s.Models), Capacity: s.Capacity, PerPeer: s.PerPeer.limits(), Healthy: func() bool { return p.healthy(s.Upstream) },
			Connect: func(ctx context.Context) (net.Conn, error) { return p.connect(ctx, s.Upstream) },
		}
		offered.Peers, offered.Anyone = callersOf(s.Allow)
		if u := cfg.Upstream(s.Upstream); u != nil {
			offered.Timeout = u.ConnectTimeout + u.Pool.AcquireTimeout
		}
		services = append(services, offered)
	}
	return services
}

// offered returns the upstream of a service of this node, empty if there is none.
func (p *part) offered(service string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.services[service]
}

// note records the services of a configuration that comes into force.
func (p *part) note(cfg *config.Config) {
	services := map[string]string{}
	for _, s := range servicesOf(cfg) {
		services[s.Name] = s.Upstream
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.services = services
}

// connect connects to an upstream of a service, with its current configuration.
func (p *part) connect(ctx context.Context, name string) (net.Conn, error) {
	u, ok := p.gateway.Upstream(name).(interface {
		Connect(ctx context.Context) (net.Conn, error)
	})
	if !ok {
		return nil, fmt.Errorf("upstream %q: %w", name, errStarting)
	}
	return u.Connect(ctx)
}

// healthy reports whether an upstream has an endpoint that is healthy and neither ejected nor
// removed.
func (p *part) healthy(name string) bool {
	u, ok := p.gateway.Upstream(name).(interface{ Status() upstream.Status })
	return ok && slices.ContainsFunc(u.Status().Endpoints, func(e upstream.EndpointStatus) bool { return e.Healthy && !e.Ejected && !e.Removed })
}

// Registers implements extend.Part.
func (p *part) Registers() (all []extend.Register) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.node != nil {
		all = append(all, p.node)
	}
	for _, n := range p.retired {
		all = append(all, n)
	}
	return all
}

// Drain implements extend.Part. It first drains calls of other nodes, and with last the calls of
// other nodes' services.
func (p *part) Drain(ctx context.Context, last bool) error {
	p.endLater()
	n := p.now()
	switch {
	case n == nil:
		return nil
	case !last:
		return n.Withdraw(ctx)
	}
	defer n.Close()
	return n.Drain(ctx)
}

// Show implements extend.Part.
func (p *part) Show() []admin.Addition { return show(p.now()) }

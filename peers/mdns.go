package peers

import (
	"fmt"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"
)

// mdnsName is the mDNS service name of nodes. Other libp2p programs use another name.
const mdnsName = "_headpond._udp"

// maxFound bounds concurrent attempts to connect to nodes of the local network, because any host
// there can announce any number of nodes.
const maxFound = 8

// finder connects to nodes that mDNS has found.
type finder struct {
	node    *Node
	service mdns.Service
	places  chan struct{}

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

// startMDNS begins to look for nodes and to announce this one, if the configuration asks for it.
func (n *Node) startMDNS() error {
	if !n.cfg.MDNS {
		return nil
	}
	f := &finder{node: n, places: make(chan struct{}, maxFound)}
	f.service = mdns.NewMdnsService(n.host, mdnsName, f)
	if err := f.service.Start(); err != nil {
		return fmt.Errorf("%w: mDNS: %w", ErrListen, err)
	}
	n.finder = f
	return nil
}

func (n *Node) stopMDNS() {
	f := n.finder
	if f == nil {
		return
	}
	_ = f.service.Close()
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.work.Wait()
}

// HandlePeerFound implements mdns.Notifee.
func (f *finder) HandlePeerFound(info peer.AddrInfo) {
	if info.ID == f.node.id || f.node.host.Network().Connectedness(info.ID) == network.Connected {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	select {
	case f.places <- struct{}{}:
	default:
		return // nodes announce themselves repeatedly
	}
	f.work.Go(func() {
		defer func() { <-f.places }()
		if err := f.node.connect(f.node.life, info); err != nil && f.node.life.Err() == nil {
			f.node.log.Debug("peers: a node on the local network cannot be connected to", "peer", info.ID.String(), "error", err)
		}
	})
}

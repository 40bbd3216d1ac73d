package peers

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tunnel"
)

// listenerName is the name of the node's server side in logs and lists of sessions.
const listenerName = "peers"

// SetServices replaces the services that other nodes may call. Open connections continue, except
// those of peers that may no longer call any service. On an error, which wraps ErrConfig, nothing
// has changed.
func (n *Node) SetServices(services []Service) error {
	cfg := n.cfg
	cfg.Services = services
	if err := cfg.Verify(); err != nil {
		return err
	}
	if err := n.server.Update(n.serverConfig(services)); err != nil {
		return err
	}
	n.gossip.set(services)
	return nil
}

// serverConfig returns the configuration of the tunnel server that other nodes connect to.
func (n *Node) serverConfig(services []Service) tunnel.ServerConfig {
	everybody, some := tunnel.Policy{Upstreams: map[string]func(context.Context) (net.Conn, error){}}, map[string]tunnel.Policy{}
	for _, s := range services {
		connect := n.loads.counted(s.Name, n.quotas.limited(s, s.Connect))
		everybody.Timeout = max(everybody.Timeout, s.Timeout)
		if s.Anyone {
			everybody.Upstreams[s.Name] = connect
			continue
		}
		for _, text := range s.Peers {
			id, _ := ParseID(text) // Verify has checked it
			own, ok := some[id.String()]
			if !ok {
				own.Upstreams = map[string]func(context.Context) (net.Conn, error){}
			}
			own.Upstreams[s.Name] = connect
			some[id.String()] = own
		}
	}
	cfg := tunnel.ServerConfig{
		Config: tunnel.Config{
			Name: n.ID(), Policy: everybody, MaxStreams: n.cfg.MaxStreams, ResumeWindow: resumeWindow, KeepAlive: n.cfg.KeepAlive, Logger: n.log,
		},
		Listener:    listener.Config{Name: listenerName, Protocol: "p2p", Logger: n.log},
		MaxSessions: n.cfg.MaxConns * maxPeerTunnels, MaxSessionsPerPeer: maxPeerTunnels,
		Identify: func(addr net.Addr) (string, error) {
			at, ok := addr.(Addr)
			if _, listed := some[at.Peer]; !ok || !listed && len(everybody.Upstreams) == 0 {
				return "", fmt.Errorf("peer %s may call none of the services here", at.Peer)
			}
			return at.Peer, nil
		},
	}
	for _, id := range slices.Sorted(maps.Keys(some)) {
		cfg.Peers = append(cfg.Peers, tunnel.Peer{Name: id, Policy: some[id]})
	}
	return cfg
}

// resumeWindow is how long connections to services survive the loss of the libp2p connection. A
// change of network, a restart of a router and hole punching take less; users do not wait longer.
const resumeWindow = 30 * time.Second

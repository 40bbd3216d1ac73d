// Package peers implements a node of a network of gateways. Nodes call each other's services, by
// name or by peer ID, over libp2p.
//
// The identity of a node is an Ed25519 key. The public key determines the node's peer ID, and every
// connection proves the ID of both sides, by Noise or TLS 1.3. A node offers services: it connects
// each caller of a service to the service's server. Each service lists its permitted callers, by
// default none. [Node.Dial] connects to a service of another node.
//
// # Design
//
// Two nodes share one libp2p connection, over TCP, QUIC or WebSocket. A node that calls services of
// another has one stream of the protocol /headpond/tunnel/1 in that connection. The stream carries
// a session of package tunnel, in which each connection to a service is a stream of its own. So
// opening a connection to a service costs no handshake, idle ones cost little, and a slow one does
// not delay others. All of them continue when the libp2p connection is lost and replaced, even over
// another path or transport.
//
// The files: identity.go has the key, node.go the libp2p host, limits.go and exhausted.go its
// limits, secure.go TLS, bootstrap.go the bootstrap peers, identify.go the identification of peers,
// services.go the offered services, gossip.go, record.go, table.go and sync.go the exchange of
// services, find.go and dht.go the choice and search of nodes, link.go, silent.go and dial.go the
// calls, relay.go and reserve.go the relays.
package peers

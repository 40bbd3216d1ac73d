// Package peers is a node of a network of gateways that reach each other's services by name or by peer ID, over libp2p.
//
// A node has an identity, an Ed25519 key; the ID of a peer is that of its public key, and every connection proves it,
// by Noise or TLS 1.3. It offers services: connections to a service are handed to the machine's own server for it. Each
// service lists its permitted callers, by default none. [Node.Dial] connects to a service of another node.
//
// # Design
//
// Between two nodes that use each other's services there is one libp2p connection, over TCP, QUIC or WebSocket. The one
// that dials has a stream of the protocol /headpond/tunnel/1 in it, and in that stream a session of package tunnel, in
// which each connection to a service is a stream. So opening one costs no round trip and no handshake, idle connections
// cost next to nothing, a slow one stops no other, and all of them continue when the libp2p connection is lost and made
// again, over another path or transport.
//
// identity.go has the key, node.go the host, limits.go and exhausted.go its limits, secure.go TLS,
// known.go the bootstrap peers, identify.go the identification of peers, services.go the offered
// services, link.go, silent.go and dial.go the calls.
package peers

// Package peers measures HTTP through two nodes (W10): a client, a near and a far node, and a server, in one process over loopback.
//
//	cd bench && go test -run '^$' -bench 'Upload1MiB' -count 10 ./peers
//
// headpond is two gateways with a listener of protocol peers, which choose TCP between them, quic the same with QUIC, gateway the same with an http listener whose endpoint is the service,
// https two gateways with HTTPS between them, and study what the streaming study did: a libp2p stream and new connections for each request.
// harness is the client before the server, with no node between; it is part of every other arm.
package peers

// Package extension adds peers to the gateway: the sections "peers" and "services" of the configuration file, endpoints of upstreams that are
// services of other nodes (p2p:PEERID/service), rows on the admin pages, and the command `headpond peers`. A program that imports it has them.
//
// config.go and check.go are the configuration, part.go is the node in a gateway, dial.go connects to endpoints,
// report.go has the rows, and command.go the command.
package extension

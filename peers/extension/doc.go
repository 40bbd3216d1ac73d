// Package extension adds peers to a gateway program that imports it: the sections "peers" and
// "services" of the configuration file, endpoints that are services of other nodes
// (p2p:PEERID/service), the listener protocol "peers", rows on the admin pages, and the command
// `headpond peers`.
//
// The files: config.go and check.go have the configuration, part.go the node of a gateway, dial.go
// connects to endpoints, api.go and identity.go serve the listener protocol, report.go has the
// rows, command.go the command, demo.go its demo.
package extension

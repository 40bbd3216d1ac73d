// Package tunnels adds tunnels to the gateway: the listener protocol "tunnel", the section "tunnels"
// of the configuration file, and the key "tunnel" of upstreams, whose endpoints the gateway at the
// other side connects to.
//
// config.go and check.go have the configuration, listener.go the gateway that others connect to, and
// link.go, part.go and conn.go the one that connects.
package tunnels

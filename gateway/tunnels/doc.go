// Package tunnels adds tunnels to the gateway: the listener protocol "tunnel", the section "tunnels" of the configuration file, and the key
// "tunnel" of upstreams, whose endpoints are connected to by the gateway at the other side.
//
// config.go and check.go are the configuration, listener.go is for the gateway that others connect to, link.go, part.go and conn.go for the
// one that connects.
package tunnels

// Package http3 lets http listeners of the gateway serve HTTP/3 (RFC 9114) to their clients, beside HTTP/1.1 and HTTP/2. It serves the key
// "http3" of a listener's "http". A program that imports it has it:
//
//	import _ "github.com/headpond/headpond/http3"
//
// QUIC and the frames of HTTP/3 are quic-go's. Each connection is a httpproxy.Carrier, so that its requests meet the routes, limits and logs
// of the listener's other requests. Programs that embed a httpproxy.Proxy give what Listen returns to its Serve.
//
// listen.go has the UDP socket and what is accepted from it, handshake.go what is refused before, conn.go a client's connection, and register.go adds both to the gateway.
package http3

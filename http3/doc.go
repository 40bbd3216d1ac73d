// Package http3 serves HTTP/3 (RFC 9114) to clients of the gateway's http listeners, in addition to
// HTTP/1.1 and HTTP/2. It implements the key "http3" under a listener's "http". Importing the
// package adds it to a program:
//
//	import _ "github.com/headpond/headpond/http3"
//
// Package quic-go implements QUIC and the frames of HTTP/3. Each connection is a httpproxy.Carrier:
// the listener's routes, limits and logs apply to its requests too. Programs that embed a
// httpproxy.Proxy pass a Listener to its Serve.
//
// The files: listen.go has the UDP socket and accepts connections, handshake.go limits and refuses
// handshakes, conn.go is a client's connection, register.go adds the package to the gateway.
package http3

// Package tcpproxy forwards byte streams: each client gets its own upstream connection, one that
// was opened ahead of demand if possible.
//
//	up, err := tcpproxy.NewUpstream("apiservers", tcpproxy.UpstreamOptions{Settings: upstream.Settings{
//		Endpoints: upstream.Endpoints("10.0.0.1:6443", "10.0.0.2:6443"),
//		Limits:    pool.Limits{MinIdle: 4},
//	}})
//	if err != nil {
//		log.Fatal(err)
//	}
//	proxy, err := tcpproxy.New(tcpproxy.Config{
//		Listener: listener.Config{Name: "kube", Protocol: "tcp"},
//		Upstream: up,
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	l, err := net.Listen("tcp", "127.0.0.1:6443")
//	if err != nil {
//		log.Fatal(err)
//	}
//	log.Fatal(proxy.Serve(l))
//
// Only connections that were never used are pooled. Reusing a used one for the next client cannot
// be safe, because a proxy does not know where a message in a byte stream ends; used connections
// are always closed.
//
// A FIN is passed on as a FIN, separately in each direction; a reset as a reset. On Linux, bulk
// data between plain TCP connections is spliced, that is, moved within the kernel; small pieces go
// through a buffer, which engines with loops hold only while it has data. There a session has no stack while it copies
// small pieces, or waits for them, unless it uses TLS itself, bulk has come last, or its client may still continue with
// another endpoint.
//
// With Config.Routes the client's TLS ClientHello chooses the upstream; TLS passes
// through untouched, or ends at the Proxy with Config.TLS.
//
// The life of a session: session.go, hello.go, route.go, lease.go, relay.go.
//
// Unstable until 1.0.
package tcpproxy

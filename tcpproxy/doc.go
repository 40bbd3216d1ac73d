// Package tcpproxy forwards byte streams: each client gets an upstream
// connection of its own, one that was opened ahead of demand where possible.
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
// Only connections that were never used are pooled. Giving a used one to the
// next client cannot be safe, because a proxy does not know where a message in
// a byte stream ends; a used connection is closed, always.
//
// A FIN is passed on as a FIN, each direction by itself; a reset as a reset. On
// Linux, bulk data between plain TCP connections is spliced, that is, moved
// within the kernel; what comes in small pieces goes through a buffer, which on
// an engine with loops is held only while there is something in it.
//
// With Config.Routes the client's TLS ClientHello chooses the upstream; TLS passes
// through untouched, or ends at the Proxy with Config.TLS.
//
// The life of a session: session.go, hello.go, route.go, lease.go, relay.go.
//
// Unstable until 1.0.
package tcpproxy

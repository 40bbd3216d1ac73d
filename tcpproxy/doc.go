// Package tcpproxy forwards byte streams. Each client gets its own upstream connection, if possible one that was opened
// ahead of demand.
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
// Only connections that were never used are pooled. A used connection is always closed: it cannot be reused safely,
// because a proxy does not know where a message in a byte stream ends.
//
// A FIN is passed on as a FIN, separately in each direction; a reset as a reset. On Linux, bulk data between plain TCP
// connections is spliced, that is, moved within the kernel. Small pieces go through a buffer, which engines with loops
// hold only while it has data. On these engines a session has no stack while it copies small pieces or waits for them,
// unless it copied bulk last, or its client may still move to another endpoint. A session that uses TLS itself has a
// stack for each direction until no data has come for 100 ms.
//
// With Config.Routes the client's TLS ClientHello chooses the upstream. TLS passes through unchanged, or ends at the
// Proxy with Config.TLS.
//
// The code follows the life of a session: session.go, hello.go, route.go, lease.go, relay.go.
//
// Unstable until 1.0.
package tcpproxy

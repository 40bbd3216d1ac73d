// Package udpproxy forwards UDP datagrams between clients and the endpoints of an upstream: DNS, QUIC without
// termination, syslog, games.
//
//	up, err := udpproxy.NewUpstream("dns", udpproxy.UpstreamOptions{Settings: upstream.Settings{
//		Endpoints: upstream.Endpoints("10.0.0.53:53", "10.0.1.53:53"),
//	}})
//	p, err := udpproxy.New(udpproxy.Config{Listener: listener.Config{Name: "dns"}, Upstream: up, Answers: 1})
//	l, err := udpproxy.Listen(ctx, "0.0.0.0:53")
//	err = p.Serve(l)
//
// A session is a client's address, port included, together with the address of this machine that it sends to. Its
// first datagram begins it and chooses the endpoint; it ends by silence (Config.IdleTimeout), when all Config.Answers
// have come, or when its endpoint refuses datagrams. A client that is answered late may have no session left: the
// datagram is dropped, as networks do.
//
// Sessions pass through package listener as connections do, so that its limits, lists, register and drain hold for
// them. The file list follows the life of a session: listen.go (the socket and its reader), flow.go (a client's
// datagrams until they are forwarded), upstream.go (sockets to endpoints), session.go (the way of the answers).
//
// Each session is a goroutine with a connected socket, on every engine: the engines' loops have no datagrams. The
// reader of the listening socket forwards a client's datagrams itself, many with each system call. Where the kernel
// joins datagrams of a client (UDP_GRO, on Linux) they are forwarded joined. A session that waits holds no buffer.
//
// Nothing is sent to a client but what its endpoint has sent, so that the proxy amplifies nothing by itself. A source
// address that is forged costs a session: Config.UnansweredTimeout and the limits of the listener bound these.
package udpproxy

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
// A session is identified by a client's address and port, together with the local address that the client sends to. The
// client's first datagram begins the session and chooses the endpoint. The session ends after silence
// (Config.IdleTimeout), when all Config.Answers have come, or when its endpoint refuses datagrams. An answer that comes
// after the end of its session is dropped, as networks may do.
//
// Sessions pass through package listener as connections do, so that its limits, lists, register and drain apply to
// them. The files follow the life of a session: listen.go (the socket and its reader), flow.go (a client's datagrams
// until they are forwarded), upstream.go (sockets to endpoints), session.go (the answers).
//
// Each session is a goroutine with a connected socket, on every engine, because the engines' loops do not handle
// datagrams. The reader of the listening socket itself forwards clients' datagrams, many with each system call. Where
// the kernel joins datagrams of a client (UDP_GRO, on Linux), they are forwarded joined. A session that waits holds no
// buffer.
//
// The proxy sends a client only what its endpoint has sent, and so amplifies nothing by itself. A datagram with a
// forged source address costs a session; Config.UnansweredTimeout and the limits of the listener bound these.
package udpproxy

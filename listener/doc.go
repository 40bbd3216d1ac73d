// Package listener accepts connections for the proxies: it applies the connection limit with its
// queue, reads PROXY protocol headers, counts, logs and drains. It knows no other protocol.
//
//	srv, err := listener.New(listener.Config{Name: "echo", Protocol: "tcp"}, handler)
//	if err != nil {
//		log.Fatal(err)
//	}
//	l, err := net.Listen("tcp", "127.0.0.1:7000")
//	if err != nil {
//		log.Fatal(err)
//	}
//	go srv.Serve(l)                     // accept → admit → handler.ServeConn
//	<-stop
//	srv.Drain(ctx)                      // stop accepting, let sessions finish
//
// The life of a connection: accept (accept.go), screen (screen.go), admit (connlimit.go), PROXY header
// (proxyheader.go), session (session.go), and in the end drain (drain.go).
// Programs built on net/http use Server.Listener, which gives the same
// admission and accounting to http.Server.
//
// Unstable until 1.0.
package listener

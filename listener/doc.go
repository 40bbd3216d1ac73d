// Package listener accepts connections for the proxies. It applies the connection limit with its
// queue, reads PROXY protocol headers, counts, logs, and drains sessions.
//
//	srv, err := listener.New(listener.Config{Name: "echo", Protocol: "tcp"}, handler)
//	if err != nil {
//		log.Fatal(err)
//	}
//	l, err := net.Listen("tcp", "127.0.0.1:7000")
//	if err != nil {
//		log.Fatal(err)
//	}
//	go srv.Serve(l)                     // accepts, admits, calls handler.ServeConn
//	<-stop
//	srv.Drain(ctx)                      // stops accepting, waits for sessions
//
// The life of a connection: accept (accept.go), screen (screen.go), admit (connlimit.go), PROXY
// header (proxyheader.go), session (session.go), drain (drain.go). Server.Listener does the same
// for servers with their own accept loop, such as http.Server.
//
// Unstable until 1.0.
package listener

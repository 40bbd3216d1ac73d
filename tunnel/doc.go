// Package tunnel carries many TCP connections over few long-lived, authenticated sessions between
// two gateways (package mux). A connection through it costs no round trip: its first bytes travel
// with the request to open it.
//
//	// At the far side, which reaches the servers:
//	server, err := tunnel.NewServer(tunnel.ServerConfig{
//		Listener: listener.Config{Name: "peers"},
//		Config: tunnel.Config{
//			PSK:    key, // and, or instead, TLS with client certificates
//			Policy: tunnel.Policy{Allow: []tunnel.Rule{tunnel.MustParseRule("10.0.0.0/8:5432")}},
//		},
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	l, err := net.Listen("tcp", ":7443")
//	if err != nil {
//		log.Fatal(err)
//	}
//	go server.Serve(l)
//
//	// At the near side, where the clients are:
//	client, err := tunnel.NewClient(tunnel.ClientConfig{
//		Address: "far.example:7443",
//		Config:  tunnel.Config{Name: "branch", PSK: key},
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	conn, err := client.Open(ctx, "10.1.2.3:5432") // a net.Conn; no round trip
//
// The side that connects need not be the side that dials: [Server.Open] opens connections through a
// peer that keeps its session to the server (a site behind NAT), under the policy of that peer.
//
// # Targets
//
// A target is "host:port" or "unix:/path", dialled by the far side, or "upstream:name", which the
// far side connects in its own way, from a pool for instance. The far side's [Policy] decides;
// without one nothing is dialled.
//
// # On the wire
//
// Each connection is a stream of package mux whose name is the target. The accepting side dials and
// then sends the byte 0, followed by the backend's data: at once if the stream's ID is 1 and
// fifteen zeros, otherwise with the first data; or it resets the stream with a code (1 refused by
// policy, 2 the backend cannot be reached, 3 no room) and a reason. The opener may send at once.
// The end of either direction is the end of the stream's direction, and a broken connection is a
// reset with code 4. A lost socket loses no data: sessions are resumed (docs/mux-protocol.md,
// section 9).
//
// The life of a connection: open.go, conn.go at the opening side; policy.go, serve.go at the
// dialling side. Sessions: client.go, server.go, sessions.go.
//
// Unstable until 1.0.
package tunnel

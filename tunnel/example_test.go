package tunnel_test

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tunnel"
)

// A far side that reaches a server, and a near side that does not.
func Example() {
	ctx := context.Background()
	psk := []byte("sixteen bytes or more, at random")

	database, _ := net.Listen("tcp", "127.0.0.1:0") // the server
	defer database.Close()
	go func() {
		c, err := database.Accept()
		if err != nil {
			return
		}
		fmt.Fprint(c, "welcome")
		c.Close()
	}()

	server, err := tunnel.NewServer(tunnel.ServerConfig{ // the far side
		Listener: listener.Config{Name: "peers"},
		Config: tunnel.Config{
			PSK:    psk,
			Policy: tunnel.Policy{Allow: []tunnel.Rule{tunnel.MustParseRule("127.0.0.0/8:1024-65535")}},
		},
	})
	if err != nil {
		panic(err)
	}
	defer server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go server.Serve(l)

	client, err := tunnel.NewClient(tunnel.ClientConfig{ // the near side
		Tunnel:  "far",
		Address: l.Addr().String(),
		Config:  tunnel.Config{Name: "branch", PSK: psk},
	})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	conn, err := client.Open(ctx, database.Addr().String())
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	said, err := io.ReadAll(conn)
	fmt.Printf("%s, %v\n", said, err)

	_, err = client.Dial(ctx, "192.0.2.1:22")
	fmt.Println(err)
	// Output:
	// welcome, <nil>
	// tunnel "far": 192.0.2.1:22: tunnel: refused by the far side's policy: "192.0.2.1:22" is not allowed; the far side must list it under "allow", or name an upstream
}

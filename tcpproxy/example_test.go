package tcpproxy_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

func Example() {
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	go func() {
		for {
			c, err := backend.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "hello from the backend")
			c.Close()
		}
	}()

	up, err := tcpproxy.NewUpstream("greeter", tcpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(backend.Addr().String()), Limits: pool.Limits{MinIdle: 2}}}) // two connections ready ahead of demand
	if err != nil {
		log.Fatal(err)
	}
	defer up.Drain(context.Background())
	proxy, err := tcpproxy.New(tcpproxy.Config{
		Listener: listener.Config{Name: "greeter", Protocol: "tcp"},
		Upstream: up,
	})
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go proxy.Serve(l)
	defer proxy.Close()

	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	fmt.Print(line, err)
	// Output:
	// hello from the backend
	// <nil>
}

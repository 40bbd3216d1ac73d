package udpproxy_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/udpproxy"
	"github.com/headpond/headpond/upstream"
)

func Example() {
	backend, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := backend.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = backend.WriteTo(append([]byte("you said "), b[:n]...), from)
		}
	}()

	up, err := udpproxy.NewUpstream("parrots", udpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(backend.LocalAddr().String())}})
	if err != nil {
		log.Fatal(err)
	}
	defer up.Close()
	proxy, err := udpproxy.New(udpproxy.Config{Listener: listener.Config{Name: "parrots", Protocol: "udp"}, Upstream: up, Answers: 1})
	if err != nil {
		log.Fatal(err)
	}
	l, err := udpproxy.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- proxy.Serve(l) }()

	c, err := net.Dial("udp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "hello")
	b := make([]byte, 1500)
	n, err := c.Read(b)
	fmt.Printf("%s, %v\n", b[:n], err)
	proxy.Close()
	fmt.Println(<-served)
	// Output:
	// you said hello, <nil>
	// <nil>
}

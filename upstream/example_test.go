package upstream_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"

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
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()

	echo, err := upstream.New(upstream.Config[net.Conn]{
		Name:      "echo",
		Endpoints: []string{backend.Addr().String()},
		Open: func(ctx context.Context, endpoint string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", endpoint)
		},
		Close: func(c net.Conn) { c.Close() },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer echo.Drain(context.Background())

	for range 2 {
		lease, err := echo.Acquire(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprint(lease.Value(), "ping")
		answer := make([]byte, 4)
		if _, err := io.ReadFull(lease.Value(), answer); err != nil {
			lease.Fail(err) // closes the connection and counts against the endpoint
			log.Fatal(err)
		}
		fmt.Println(string(answer), "reused:", lease.Reused())
		lease.Release()
	}
	// Output:
	// ping reused: false
	// ping reused: true
}

package fiber_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/headpond/headpond/fiber"
)

// An echo server whose sessions are fibers.
func Example() {
	engine, err := fiber.New(fiber.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	l, err := engine.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() {
		served <- fiber.Serve(l, func(c net.Conn) {
			defer c.Close()
			_, _ = io.Copy(c, c)
		})
	}()

	c, err := engine.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprint(c, "ready")
	b := make([]byte, 5)
	_, err = io.ReadFull(c, b)
	fmt.Println(string(b), err)
	_ = c.Close()
	_ = l.Close()
	<-served
	// Output: ready <nil>
}

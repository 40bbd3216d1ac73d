package listener_test

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/headpond/headpond/listener"
)

func Example() {
	handler := listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
		defer c.Close()
		io.Copy(c, c)
	})
	srv, err := listener.New(listener.Config{Name: "echo", Protocol: "tcp", MaxConns: 100}, handler)
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go srv.Serve(l)

	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprint(c, "hello, pond")
	c.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(c)
	fmt.Println(string(answer), err)
	c.Close()
	fmt.Println(srv.Drain(context.Background()), srv.Stats().Accepted)
	// Output:
	// hello, pond <nil>
	// <nil> 1
}

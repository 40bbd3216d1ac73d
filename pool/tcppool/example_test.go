//go:build unix

package tcppool_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"

	"github.com/headpond/headpond/pool/tcppool"
)

func Example() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	go func() { // an echo server
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()

	d, err := tcppool.New(tcppool.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	ask := func(question string) error {
		c, err := d.Get(context.Background(), "tcp", ln.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close() // closes the connection, unless it was released
		fmt.Fprintln(c, question)
		answer, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return err
		}
		fmt.Print("reused ", c.Reused(), ": ", answer)
		c.Release() // all was answered and read
		return nil
	}
	for _, q := range []string{"one", "two"} {
		if err := ask(q); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// reused false: one
	// reused true: two
}

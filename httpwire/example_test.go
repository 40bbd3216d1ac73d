package httpwire_test

import (
	"fmt"

	"github.com/headpond/headpond/httpwire"
)

func Example() {
	buf := []byte("POST /users?x=1 HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\nhi")
	var req httpwire.Request
	n, err := req.Parse(buf)
	fmt.Println(err)
	fmt.Printf("%s %s of %s, body %q\n", req.Method, req.Target, req.Host, buf[n:n+int(req.Length)])
	// Output:
	// <nil>
	// POST /users?x=1 of app.example, body "hi"
}

func ExampleChunks() {
	var c httpwire.Chunks
	content, n, done, err := c.Next([]byte("5\r\nhello\r\n0\r\n\r\n"))
	fmt.Printf("%q %d %v %v\n", content, n, done, err)
	// Output: "hello" 8 false <nil>
}

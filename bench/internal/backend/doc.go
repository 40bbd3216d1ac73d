// Package backend has the servers that stand behind what is measured. They do as little as can be done, in a process of their
// own, so that the cost of a proxy is not lost in its backend's.
//
//	b, err := backend.Listen("127.0.0.1:0", backend.HTTP)
//	go b.Serve(ctx)
//	fmt.Println(b.Addr())
package backend

// Kind is what a backend speaks.
type Kind string

// The kinds.
const (
	Echo    Kind = "echo"     // what comes goes back
	HTTP    Kind = "http"     // GET: 128 bytes; a body is read to its end and answered by nothing
	Stream  Kind = "stream"   // bulk both ways, see StreamHead
	EchoTLS Kind = "echo-tls" // the same over TLS 1.3
	Std     Kind = "std"      // net/http: events, long bodies
	StdTLS  Kind = "std-tls"
)

// bodySize is the answer to a GET.
const bodySize = 128

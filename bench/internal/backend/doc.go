// Package backend has the servers behind the measured programs. They do as little as possible, in a separate process,
// so that the cost of a proxy is not lost in its backend's.
//
//	b, err := backend.Listen("127.0.0.1:0", backend.HTTP)
//	go b.Serve(ctx)
//	fmt.Println(b.Addr())
package backend

// Kind is the protocol of a backend.
type Kind string

// The kinds.
const (
	Echo    Kind = "echo"     // echoes received bytes
	HTTP    Kind = "http"     // GET: 128 bytes; a body is read to its end and answered by nothing
	Stream  Kind = "stream"   // bulk both ways, see StreamHead
	EchoTLS Kind = "echo-tls" // the same over TLS 1.3
	Std     Kind = "std"      // net/http: events, long bodies
	StdTLS  Kind = "std-tls"
)

// bodySize is the answer to a GET.
const bodySize = 128

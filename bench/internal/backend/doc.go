// Package backend contains the servers behind the measured programs. They do as little as possible,
// in a separate process, so that the backend's cost does not hide the proxy's.
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
	HTTP    Kind = "http"     // GET: 128 bytes; a request's body is read, and the answer is empty
	Stream  Kind = "stream"   // bulk both ways, see StreamHead
	EchoTLS Kind = "echo-tls" // the same over TLS 1.3
	Std     Kind = "std"      // net/http: events, long bodies
	StdTLS  Kind = "std-tls"
	GRPC    Kind = "grpc" // gRPC by grpc-go: see UnaryMethod
)

// bodySize is the length of the answer to a GET, in bytes.
const bodySize = 128

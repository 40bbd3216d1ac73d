package backend

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
)

// UnaryMethod is the method of a GRPC backend: it answers with the request. MessageSize is the size of both in benchmarks.
const (
	UnaryMethod = "/bench.Echo/Unary"
	MessageSize = 128
)

// Raw is a codec for messages that are bytes: *[]byte.
type Raw struct{}

// Marshal implements encoding.Codec.
func (Raw) Marshal(v any) ([]byte, error) {
	if p, ok := v.(*[]byte); ok {
		return *p, nil
	}
	return nil, fmt.Errorf("a message of type %T", v)
}

// Unmarshal implements encoding.Codec. It copies, because grpc uses data again.
func (Raw) Unmarshal(data []byte, v any) error {
	p, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("a message of type %T", v)
	}
	*p = append((*p)[:0], data...)
	return nil
}

// Name implements encoding.Codec.
func (Raw) Name() string { return "proto" }

// counted counts the connections that a listener accepts.
type counted struct {
	net.Listener
	accepted *atomic.Int64
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// serveGRPC runs grpc-go's server.
func serveGRPC(ctx context.Context, l net.Listener, accepted *atomic.Int64) error {
	s := grpc.NewServer(grpc.ForceServerCodec(Raw{}))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var message []byte
			err := decode(&message)
			return &message, err
		}}},
	}, nil)
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	return s.Serve(counted{l, accepted})
}

package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/headpond/headpond/internal/conntest"
)

// lingering has a server of grpc-go wait until the client has closed a connection that the server closes. grpc-go waits for a second, and
// then resets the connection, perhaps before its answers have been sent: a busy machine needs longer.
type lingering struct {
	credentials.TransportCredentials
	conns sync.WaitGroup
}

func (l *lingering) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := l.TransportCredentials.ServerHandshake(conn)
	return &lingeringConn{Conn: conn, of: l}, info, err
}

type lingeringConn struct {
	net.Conn
	of     *lingering
	closes sync.Once
}

func (c *lingeringConn) Close() (err error) {
	c.closes.Do(func() {
		err = c.Conn.(*net.TCPConn).CloseWrite()
		c.of.conns.Go(func() {
			_, _ = io.Copy(io.Discard, c.Conn)
			_ = c.Conn.Close()
		})
	})
	return err
}

// TestGRPCWhileAllLeave: servers end each connection after half a second by GOAWAY, and the gateway's configuration changes
// more often. No call fails, whatever its shape. When the gateway drains, only calls fail that could not connect.
func TestGRPCWhileAllLeave(t *testing.T) {
	const reloads = 12
	counted, linger := &counting{}, &lingering{TransportCredentials: insecure.NewCredentials()}
	t.Cleanup(linger.conns.Wait)
	var backends []string
	for range 2 {
		addr, _ := startGRPC(t, interop.NewTestServer(), grpc.StatsHandler(counted), grpc.Creds(linger), grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 500 * time.Millisecond, MaxConnectionAgeGrace: patience,
		}))
		backends = append(backends, addr)
	}
	listen := address(t)
	config := grpcConfig(listen, backends...)
	g := startGateway(t, config)
	var drains atomic.Bool
	during := func(call func(context.Context, testgrpc.TestServiceClient) error) func(context.Context) error {
		service := testgrpc.NewTestServiceClient(grpcClient(t, listen))
		return func(ctx context.Context) error {
			err := call(ctx, service)
			if drains.Load() && grpcstatus.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "dial") {
				return nil
			}
			return err
		}
	}
	loads := map[string]*load{
		"unary":   startLoad(t, 8, during(unaryCall)),
		"upload":  startLoad(t, 4, during(uploadCall)),
		"answers": startLoad(t, 4, during(answersCall)),
		"both":    startLoad(t, 4, during(duplexCall)),
	}
	for i := range reloads {
		next := time.After(100 * time.Millisecond)
		g.reload([]string{config + "    http2: {max_streams: 3}\n", config, grpcConfig(listen, backends[1]), config + "    connect_timeout: 7s\n"}[i%4], "applied")
		<-next
	}
	for name, l := range loads {
		l.await(t, name, 20)
	}
	conntest.Eventually(t, "the servers have had 10 connections", func() bool { return counted.conns.Load() >= 10 })
	drains.Store(true)
	g.signal(syscall.SIGTERM)
	g.awaitEnd(t, patience)
	for name, l := range loads {
		l.end()
		if n := l.failed.Load(); n > 0 {
			t.Errorf("%s: %d of %d failed: %v", name, n, n+l.ok.Load(), l.lastError())
		}
	}
}

func unaryCall(ctx context.Context, service testgrpc.TestServiceClient) error {
	got, err := service.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: 3000, Payload: &testgrpc.Payload{Body: make([]byte, 2000)}})
	if err == nil && len(got.GetPayload().GetBody()) != 3000 {
		err = fmt.Errorf("%d bytes", len(got.GetPayload().GetBody()))
	}
	return err
}

func uploadCall(ctx context.Context, service testgrpc.TestServiceClient) error {
	stream, err := service.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	for range 20 {
		if err := stream.Send(&testgrpc.StreamingInputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, 5000)}}); err != nil && err != io.EOF { //nolint:errorlint // as it is documented
			return err
		}
	}
	got, err := stream.CloseAndRecv()
	if err == nil && got.GetAggregatedPayloadSize() != 20*5000 {
		err = fmt.Errorf("the server got %d bytes", got.GetAggregatedPayloadSize())
	}
	return err
}

func answersCall(ctx context.Context, service testgrpc.TestServiceClient) error {
	asked := &testgrpc.StreamingOutputCallRequest{}
	for range 20 {
		asked.ResponseParameters = append(asked.ResponseParameters, &testgrpc.ResponseParameters{Size: 4000, IntervalUs: 5000})
	}
	stream, err := service.StreamingOutputCall(ctx, asked)
	if err != nil {
		return err
	}
	return receive(stream, 20, 4000)
}

func duplexCall(ctx context.Context, service testgrpc.TestServiceClient) error {
	stream, err := service.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	for range 10 {
		if err := stream.Send(&testgrpc.StreamingOutputCallRequest{ResponseParameters: []*testgrpc.ResponseParameters{{Size: 700, IntervalUs: 10_000}}}); err != nil && err != io.EOF { //nolint:errorlint // as it is documented
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return receive(stream, 10, 700)
}

// receive receives this many messages of this size, and the end.
func receive(stream interface {
	Recv() (*testgrpc.StreamingOutputCallResponse, error)
}, messages, size int) error {
	for n := 0; ; n++ {
		got, err := stream.Recv()
		switch {
		case err == io.EOF && n == messages: //nolint:errorlint // as it is documented
			return nil
		case err == io.EOF: //nolint:errorlint // as it is documented
			return fmt.Errorf("the end after %d messages", n)
		case err != nil:
			return err
		case len(got.GetPayload().GetBody()) != size:
			return fmt.Errorf("%d bytes", len(got.GetPayload().GetBody()))
		}
	}
}

package integration

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	grpcstatus "google.golang.org/grpc/status"
)

// grpcConfig is an http listener for servers with HTTP/2 without TLS.
func grpcConfig(listen string, backends ...string) string {
	return fmt.Sprintf("%s    protocol: h2c\n", httpConfig(listen, "max_size: 500", backends...))
}

// startGRPC starts a gRPC server of grpc-go's interop tests. It answers health checks if the service can. stop closes
// it at once.
func startGRPC(t testing.TB, service testgrpc.TestServiceServer, opts ...grpc.ServerOption) (addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(s, service)
	if h, ok := service.(healthgrpc.HealthServer); ok {
		healthgrpc.RegisterHealthServer(s, h)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	stop = sync.OnceFunc(func() {
		s.Stop()
		<-served
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// grpcClient connects to the gateway with grpc-go.
func grpcClient(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestGRPCInterop runs grpc-go's own interoperability tests through the gateway: the four shapes of calls, deadlines,
// cancellation, metadata and statuses. They end the process if one fails.
func TestGRPCInterop(t *testing.T) {
	backend, _ := startGRPC(t, interop.NewTestServer())
	listen := address(t)
	startGateway(t, grpcConfig(listen, backend))
	conn := grpcClient(t, listen)
	service := testgrpc.NewTestServiceClient(conn)
	for name, do := range map[string]func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption){
		"empty unary": interop.DoEmptyUnaryCall, "large unary": interop.DoLargeUnaryCall, "client streaming": interop.DoClientStreaming,
		"server streaming": interop.DoServerStreaming, "ping pong": interop.DoPingPong, "empty stream": interop.DoEmptyStream,
		"timeout": interop.DoTimeoutOnSleepingServer, "cancel after begin": interop.DoCancelAfterBegin,
		"cancel after first response": interop.DoCancelAfterFirstResponse, "metadata": interop.DoCustomMetadata,
		"status": interop.DoStatusCodeAndMessage, "special status": interop.DoSpecialStatusMessage,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			do(ctx, service)
		})
	}
	t.Run("unimplemented", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(conn))
		interop.DoUnimplementedMethod(ctx, conn)
	})
}

// TestGRPCServersThatLeave: no call fails with a server that ends each connection after a while (GOAWAY).
func TestGRPCServersThatLeave(t *testing.T) {
	const callers, conns = 20, 5
	counted := &counting{}
	backend, _ := startGRPC(t, interop.NewTestServer(), grpc.StatsHandler(counted), grpc.KeepaliveParams(keepalive.ServerParameters{
		MaxConnectionAge: 300 * time.Millisecond, MaxConnectionAgeGrace: patience,
	}))
	listen := address(t)
	g := startGateway(t, grpcConfig(listen, backend))
	service := testgrpc.NewTestServiceClient(grpcClient(t, listen))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for i := 0; counted.conns.Load() < conns; i++ {
				if _, err := service.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: int32(i % 10_000)}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if _, metrics := g.get("/metrics"); !containsAll(metrics, []string{"http_upstream_goaways_total{", "http_upstream_connections_opened_total{"}) {
		t.Error("no connection was left by its server")
	}
}

// counting counts the connections of a server.
type counting struct{ conns atomic.Int64 }

func (c *counting) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	c.conns.Add(1)
	return ctx
}
func (*counting) HandleConn(context.Context, stats.ConnStats)                     {}
func (*counting) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (*counting) HandleRPC(context.Context, stats.RPCStats)                       {}

// waitingServer reports when a call arrives and when its client has given up.
type waitingServer struct {
	testgrpc.UnimplementedTestServiceServer
	came, left chan struct{}
}

func (s *waitingServer) EmptyCall(ctx context.Context, _ *testgrpc.Empty) (*testgrpc.Empty, error) {
	select {
	case s.came <- struct{}{}:
	case <-ctx.Done(): // the call arrived after its client had given up
		return nil, ctx.Err()
	}
	<-ctx.Done()
	s.left <- struct{}{}
	return nil, ctx.Err()
}

// StreamingOutputCall sends one message, then waits for the end of its client.
func (s *waitingServer) StreamingOutputCall(_ *testgrpc.StreamingOutputCallRequest, stream testgrpc.TestService_StreamingOutputCallServer) error {
	if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestGRPCCancellation: a cancellation reaches the server, and so does a deadline.
func TestGRPCCancellation(t *testing.T) {
	server := &waitingServer{came: make(chan struct{}), left: make(chan struct{}, 1)}
	backend, _ := startGRPC(t, server)
	listen := address(t)
	startGateway(t, grpcConfig(listen, backend))
	service := testgrpc.NewTestServiceClient(grpcClient(t, listen))
	call := func(ctx context.Context) <-chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := service.EmptyCall(ctx, &testgrpc.Empty{})
			failed <- err
		}()
		return failed
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := call(ctx)
	<-server.came
	cancel()
	if err := <-failed; grpcstatus.Code(err) != codes.Canceled {
		t.Errorf("canceled: %v", err)
	}
	<-server.left
	for deadline, came := 500*time.Millisecond, false; !came; deadline *= 5 { // a call that arrives after its deadline is not passed to the server
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		failed := call(ctx)
		select {
		case <-server.came:
			came = true
			<-server.left
		case <-ctx.Done():
		}
		if err := <-failed; grpcstatus.Code(err) != codes.DeadlineExceeded {
			t.Errorf("with a deadline: %v", err)
		}
		cancel()
		if deadline > patience {
			t.Fatal("no call has come to the server")
		}
	}
}

// TestGRPCErrorsOfTheGateway: errors of the gateway are gRPC statuses.
func TestGRPCErrorsOfTheGateway(t *testing.T) {
	server := &waitingServer{came: make(chan struct{}, 1), left: make(chan struct{}, 1)}
	backend, stop := startGRPC(t, server)
	listen := address(t)
	config := grpcConfig(listen, backend)
	startGateway(t, config)
	service := testgrpc.NewTestServiceClient(grpcClient(t, listen))

	stream, err := service.StreamingOutputCall(t.Context(), &testgrpc.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := service.EmptyCall(t.Context(), &testgrpc.Empty{})
		failed <- err
	}()
	<-server.came
	stop()
	if err := <-failed; grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("a call without an answer: %v", err)
	}
	if _, err := stream.Recv(); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("a stream that broke off: %v", err)
	}
	var header metadata.MD
	_, err = service.EmptyCall(t.Context(), &testgrpc.Empty{}, grpc.Header(&header))
	if grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("a call without a server: %v %v", err, header)
	}
}

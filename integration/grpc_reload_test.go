package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// named is the interop server. It sends its name in a header and answers health checks.
type named struct {
	testgrpc.TestServiceServer
	*health.Server
	name string
}

func newNamed(name string) named { return named{interop.NewTestServer(), health.NewServer(), name} }

const serverName = "server-name"

// FullDuplexCall implements testgrpc.TestServiceServer.
func (s named) FullDuplexCall(stream testgrpc.TestService_FullDuplexCallServer) error {
	if err := stream.SetHeader(metadata.Pairs(serverName, s.name)); err != nil {
		return err
	}
	return s.TestServiceServer.FullDuplexCall(stream)
}

// TestGRPCReloadLosesNoStream: open streams and new calls are not affected by reloads that change every part of an
// upstream.
func TestGRPCReloadLosesNoStream(t *testing.T) {
	const streams, callers = 6, 4
	first, _ := startGRPC(t, newNamed("first"))
	second, _ := startGRPC(t, newNamed("second"))
	listen := address(t)
	config := grpcConfig(listen, first)
	g := startGateway(t, config)
	service := testgrpc.NewTestServiceClient(grpcClient(t, listen))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var talks []*load
	for range streams {
		talks = append(talks, startLoad(t, 1, talk(ctx, t, service, "first")))
	}
	calls := startLoad(t, callers, func(ctx context.Context) error {
		_, err := service.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: 1000})
		return err
	})
	for _, changed := range []string{
		// Other connections.
		config + "    http2: {max_streams: 2}\n",
		// Another server.
		grpcConfig(listen, second),
		// Limits.
		strings.Replace(config, "max_size: 500", "max_size: 400, max_lifetime: 1m", 1),
		config + "    connect_timeout: 7s\n",
		grpcConfig(listen, second, first),
		config,
	} {
		g.reload(changed, "applied")
		for _, l := range talks {
			l.awaitMore(t, 5)
		}
		calls.awaitMore(t, 20)
	}
	for _, l := range append(talks, calls) {
		l.end()
		if n := l.failed.Load(); n > 0 {
			t.Errorf("%d of %d failed: %v", n, n+l.ok.Load(), l.lastError())
		}
	}
	if got, err := newTalk(t.Context(), service); err != nil || got != "first" {
		t.Errorf("a new stream is served by %q: %v", got, err)
	}
}

// talk opens a stream to a server, on which each call sends a message and receives one.
func talk(ctx context.Context, t *testing.T, service testgrpc.TestServiceClient, server string) func(context.Context) error {
	t.Helper()
	stream, err := service.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	say := func(size int32) error {
		err := stream.Send(&testgrpc.StreamingOutputCallRequest{ResponseParameters: []*testgrpc.ResponseParameters{{Size: size}}})
		if err != nil {
			return err
		}
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		if n := len(got.GetPayload().GetBody()); n != int(size) {
			return fmt.Errorf("%d bytes, want %d", n, size)
		}
		return nil
	}
	if err := say(1); err != nil {
		t.Fatal(err)
	}
	if header, err := stream.Header(); err != nil || len(header[serverName]) != 1 || header[serverName][0] != server {
		t.Fatalf("served by %v, want %q: %v", header, server, err)
	}
	size := int32(1)
	return func(context.Context) error {
		size = size*7%50_000 + 1
		return say(size)
	}
}

// newTalk opens a stream and returns the name of the server.
func newTalk(ctx context.Context, service testgrpc.TestServiceClient) (server string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := service.FullDuplexCall(ctx)
	if err != nil {
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	header, err := stream.Header()
	return strings.Join(header[serverName], " "), err
}

// TestReloadChangesTheProtocol under load: no request fails.
func TestReloadChangesTheProtocol(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.Proto) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	listen := address(t)
	config := httpConfig(listen, "max_size: 50", s.Listener.Addr().String())
	g := startGateway(t, config)
	client := httpClient(t)
	requests := startLoad(t, 8, func(context.Context) error {
		code, body, err := get(client, "http://"+listen+"/")
		if err == nil && (code != http.StatusOK || !strings.HasPrefix(body, "HTTP/")) {
			err = fmt.Errorf("%d %q", code, body)
		}
		return err
	})
	for _, protocol := range []string{"h2c", "h1", "h2c", "h1", "h2c"} {
		g.reload(config+"    protocol: "+protocol+"\n", "applied")
		want := map[string]string{"h1": "HTTP/1.1", "h2c": "HTTP/2.0"}[protocol]
		if code, body, err := get(httpClient(t), "http://"+listen+"/"); err != nil || code != http.StatusOK || body != want {
			t.Errorf("after the reload to %s: %d %q %v", protocol, code, body, err)
		}
		requests.awaitMore(t, 50)
	}
	requests.end()
	if n := requests.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests failed: %v", n, n+requests.ok.Load(), requests.lastError())
	}
}

// TestGRPCHealth: an h2c endpoint that reports NOT_SERVING gets no calls until it reports SERVING.
func TestGRPCHealth(t *testing.T) {
	servers := []named{newNamed("first"), newNamed("second")}
	servers[0].SetServingStatus("", healthgrpc.HealthCheckResponse_NOT_SERVING)
	var backends []string
	for _, s := range servers {
		addr, _ := startGRPC(t, s)
		backends = append(backends, addr)
	}
	listen := address(t)
	g := startGateway(t, grpcConfig(listen, backends...)+"    health: {grpc: true, interval: 100ms, timeout: 1m}\n")
	service := testgrpc.NewTestServiceClient(grpcClient(t, listen))
	for out, s := range servers {
		serves := 1 - out
		eventually(t, s.name+" is out, and the other is not", func() error {
			for i, addr := range backends {
				if healthy := g.scrape().sum("headpond_upstream_endpoint_healthy", `endpoint="`+addr+`"`); (healthy == 1) != (i == serves) {
					return fmt.Errorf("%s: healthy = %v", servers[i].name, healthy)
				}
			}
			return nil
		})
		for range 10 {
			if server, err := newTalk(t.Context(), service); err != nil || server != servers[serves].name {
				t.Errorf("served by %q, want %q: %v", server, servers[serves].name, err)
			}
		}
		s.SetServingStatus("", healthgrpc.HealthCheckResponse_SERVING)
		servers[serves].SetServingStatus("", healthgrpc.HealthCheckResponse_NOT_SERVING)
	}
}

package integration

import (
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"

	"github.com/headpond/headpond/internal/clienttest"
	"github.com/headpond/headpond/internal/conntest"
)

// message is the text of an error in grpcurl's output.
var message = regexp.MustCompile(`(?m)^ *Message: .*$`)

// TestGRPCurl: grpcurl sees through the gateway what it sees straight, in clear text and with TLS: services by reflection, the four shapes
// of calls, statuses, health and deadlines.
func TestGRPCurl(t *testing.T) {
	s := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
	healthgrpc.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	server := conntest.Run(t, conntest.Listen(t), s.Serve, s.Stop)
	dir, plaintext, secure := t.TempDir(), address(t), address(t)
	issue(t, dir, "ca", "web")
	startGateway(t, strings.Replace(grpcConfig(plaintext, server), "upstreams:\n",
		"  - {name: secure, protocol: http, listen: \""+secure+"\", upstream: api, tls: {cert: "+dir+"/ca-web.crt, key: "+dir+"/ca-web.key}}\nupstreams:\n", 1))
	const service = "grpc.testing.TestService"
	for _, args := range [][]string{
		{"", "list"}, {"", "describe", service},
		{`{"response_size": 100000, "payload": {"body": "AAAA"}}`, service + "/UnaryCall"},
		{`{"response_parameters": [{"size": 10}, {"size": 70000}, {"size": 3}]}`, service + "/StreamingOutputCall"},
		{`{"payload": {"body": "AAAA"}} {"payload": {"body": "AAAAAAAA"}}`, service + "/StreamingInputCall"},
		{`{"response_parameters": [{"size": 10}]} {"response_parameters": [{"size": 20}]}`, service + "/FullDuplexCall"},
		{`{"response_status": {"code": 7, "message": "no, über"}}`, service + "/UnaryCall"},
		{`{}`, service + "/UnimplementedCall"}, {`{}`, "grpc.health.v1.Health/Check"},
		{`deadline {"response_parameters": [{"size": 10, "interval_us": 100000000}]}`, service + "/StreamingOutputCall"},
	} {
		body, after := args[0], args[1:]
		var flags []string
		if rest, ok := strings.CutPrefix(body, "deadline "); ok {
			body, flags = rest, []string{"-max-time", "2"}
		}
		if body != "" {
			flags = append(flags, "-d", body)
		}
		see := func(at ...string) string { // with the exit code's text
			out, err := clienttest.GoTool(t, "grpcurl", append(append(flags[:len(flags):len(flags)], at...), after...)...).CombinedOutput()
			if err != nil {
				out = append(out, err.Error()...)
			}
			if args[0] != body { // the client or the gateway says first that the time is over, each in its words
				out = message.ReplaceAll(out, nil)
			}
			return string(out)
		}
		want := see("-plaintext", server)
		if strings.Contains(want, "connect") || want == "" {
			t.Errorf("%q straight: %q", args, want)
		}
		for name, got := range map[string]string{"clear text": see("-plaintext", plaintext), "TLS": see("-insecure", secure)} {
			if got != want {
				t.Errorf("%q, %s: %.300q, straight %.300q", args, name, got, want)
			}
		}
	}
}

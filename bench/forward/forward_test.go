package forward_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/headpond/headpond/bench/internal/arms"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

var workloads = []struct {
	name string
	body []byte
}{
	{"1MiB", make([]byte, 1<<20)},
	{"get", nil},
}

// answer reads the request whole and sends 128 bytes to a GET, none to a POST.
func answer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if r.Method == http.MethodGet {
		_, _ = w.Write(make([]byte, 128))
	}
}

func BenchmarkForward(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(answer))
	defer server.Close()
	kinds := []struct {
		name  string
		start func(*testing.B, string) string
	}{
		{"old", start("http-old")}, {"stdlib", start("http-new")}, {"headpond", start("http-library")}, {"gateway", startGateway},
		{"harness", start("http-empty")},
	}
	for _, arm := range kinds {
		for _, w := range workloads {
			b.Run(arm.name+"/"+w.name, func(b *testing.B) { run(b, arm.start(b, server.Listener.Addr().String()), w.body) })
		}
	}
}

// run sends b.N requests to url from as many clients as there are processors.
func run(b *testing.B, url string, body []byte) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}}
	defer client.CloseIdleConnections()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := request(client, url, body); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func request(client *http.Client, url string, body []byte) error {
	var resp *http.Response
	var err error
	if body == nil {
		resp, err = client.Get(url)
	} else {
		resp, err = client.Post(url, "application/octet-stream", bytes.NewReader(body))
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return err
}

func serve(b *testing.B, h http.Handler) string {
	s := httptest.NewServer(h)
	b.Cleanup(s.Close)
	return s.URL
}

// start starts one of the benchmarks' proxies.
func start(kind string) func(b *testing.B, target string) string {
	return func(b *testing.B, target string) string {
		h, err := arms.Handler(kind, target)
		if err != nil {
			b.Fatal(err)
		}
		return serve(b, h)
	}
}

func startGateway(b *testing.B, target string) string {
	up, err := httpproxy.NewUpstream("api", httpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(target)}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(up.Close)
	p, err := httpproxy.New(httpproxy.Config{
		Listener: listener.Config{Logger: slog.New(slog.DiscardHandler)},
		Routes:   []httpproxy.Route{{Upstream: up}},
	})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go p.Serve(l)
	b.Cleanup(func() { _ = p.Drain(b.Context()) })
	return "http://" + l.Addr().String()
}

package load_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/bench/internal/backend"
	"github.com/headpond/headpond/bench/internal/load"
)

// serve starts a backend.
func serve(t *testing.T, kind backend.Kind) *backend.Backend {
	t.Helper()
	b, err := backend.Listen("127.0.0.1:0", kind)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b
}

// ask runs a workload twice on one client and requires answers without errors.
func ask(t *testing.T, addr string, w load.Workload, rate float64) load.Result {
	t.Helper()
	c, err := load.Open(t.Context(), load.Config{Addr: addr, Conns: 3, Threads: 2, Workload: w})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var r load.Result
	for i := 0; i < 2 || r.All == 0 && t.Context().Err() == nil; i++ { // on a busy machine 50 ms may pass without an answer
		if r, err = c.Run(t.Context(), 50*time.Millisecond, rate); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
		if r.All < r.Ops || r.Latency.Count() < r.All {
			t.Fatalf("%d operations, %d in all, %d latencies", r.Ops, r.All, r.Latency.Count())
		}
	}
	return r
}

func TestWorkloads(t *testing.T) {
	echo, web := serve(t, backend.Echo), serve(t, backend.HTTP)
	for _, rate := range []float64{0, 500} {
		ask(t, echo.Addr(), load.Echo(64), rate)
		ask(t, web.Addr(), load.Get("/"), rate)
		ask(t, web.Addr(), load.Post("/", 1<<20), rate/10)
	}
	before := web.Accepted()
	r := ask(t, web.Addr(), load.PerConnection(load.Get("/")), 0)
	if n := web.Accepted() - before; n < r.All {
		t.Errorf("%d operations with a connection each were %d connections", r.All, n)
	}
}

// TestBackendAgreesWithNetHTTP uses the backend with the standard library's client, and our client with its server.
func TestBackendAgreesWithNetHTTP(t *testing.T) {
	web := serve(t, backend.HTTP)
	resp, err := http.Get("http://" + web.Addr())
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || len(body) != 128 {
		t.Errorf("%d bytes, %v; want 128", len(body), err)
	}
	var got atomic.Int64
	std := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got.Add(n)
	}))
	defer std.Close()
	r := ask(t, std.Listener.Addr().String(), load.Post("/x", 100_000), 0)
	if n := got.Load(); n < r.All*100_000 {
		t.Errorf("%d bytes of %d bodies arrived", n, r.All)
	}
}

func TestErrorsAreCounted(t *testing.T) {
	web := serve(t, backend.HTTP)
	c, err := load.Open(t.Context(), load.Config{Addr: web.Addr(), Workload: load.Query("SELECT 1")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	d, err := load.Open(t.Context(), load.Config{Addr: gone, Conns: 2, Workload: load.PerConnection(load.Get("/"))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if r, err := d.Run(t.Context(), 50*time.Millisecond, 0); err != nil || r.Err == nil || r.Errors == 0 || r.Ops != 0 {
		t.Errorf("a server that is not there: %d operations, %d errors (%v), %v", r.Ops, r.Errors, r.Err, err)
	}
	if _, err := load.Open(t.Context(), load.Config{Addr: gone, Workload: load.Get("/")}); err == nil {
		t.Error("connected to nobody")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Run(ctx, time.Hour, 0); err == nil {
		t.Error("an interrupted run is no error")
	}
}

// TestMeasuredDelays measures a server with known delays. How much too long they are measured depends on the load of the machine;
// headpond-bench checks that, not this test. They are never measured too short.
func TestMeasuredDelays(t *testing.T) {
	r, err := load.Self(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Measured < r.Known {
		t.Errorf("a mean delay of %v is measured as %v", r.Known, r.Measured)
	}
	if r.Omitted > 0.1 {
		t.Errorf("of the operations due during a stall %.0f %% are missing", 100*r.Omitted)
	}
}

// TestVerdict has usable and broken generators.
func TestVerdict(t *testing.T) {
	const known = 10 * time.Millisecond
	for r, good := range map[load.SelfResult]bool{
		{Known: known, Measured: known}:                              true,
		{Known: known, Measured: known * 1019 / 1000, Omitted: 0.09}: true,
		{Known: known, Measured: known * 1021 / 1000}:                false,
		{Known: known, Measured: known * 979 / 1000}:                 false,
		{Known: known, Measured: known, Omitted: 0.5}:                false, // waits for an answer before the next request
	} {
		if err := r.Verdict(); (err == nil) != good {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestHonoursConnectionClose: the server closes after each answer and announces it.
func TestHonoursConnectionClose(t *testing.T) {
	std := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
	defer std.Close()
	if r := ask(t, std.Listener.Addr().String(), load.Get("/"), 0); r.Reconnects != r.All {
		t.Errorf("%d operations, %d reconnects", r.All, r.Reconnects)
	}
}

// TestConnectionsClosedBetweenRounds: the server closes connections that are idle, which is no error.
func TestConnectionsClosedBetweenRounds(t *testing.T) {
	std := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer std.Close()
	c, err := load.Open(t.Context(), load.Config{Addr: std.Listener.Addr().String(), Conns: 3, Threads: 1, Workload: load.Get("/")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for round, reconnects := range []int64{0, 3} {
		r, err := c.Run(t.Context(), 50*time.Millisecond, 0)
		if err != nil || r.Err != nil || r.Reconnects != reconnects {
			t.Errorf("round %d: %v, %v, %d reconnects, want %d", round, err, r.Err, r.Reconnects, reconnects)
		}
		std.CloseClientConnections()
	}
}

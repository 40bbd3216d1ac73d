package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headpond/headpond/bench/internal/backend"
	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// http2Conns is the number of the client's connections in W2f with several streams.
const http2Conns = 4

// http2Proxies are the proxies that speak HTTP/2, without TLS, on both sides. nginx does not to servers.
func (e *Env) http2Proxies(target func() string) []run.Arm {
	arms := append([]run.Arm{direct(target)}, e.gateways("http", target, func(g *peers.Gateway) { g.H2 = true })...)
	return append(arms, arm("haproxy", func() (*peers.Target, error) {
		return e.Starter.StartHAProxy(peers.HAProxy{Mode: "http", Target: target(), Threads: e.Loops, H2: true})
	}))
}

// http2 is W2f.
func (e *Env) http2() []run.Group {
	web := run.Group{
		Name: "HTTP/2", Arms: e.http2Proxies(func() string { return e.std.Addr }),
		Prepare: func(context.Context) error { return e.backend(&e.std, string(backend.Std)) },
	}
	for _, streams := range []int{16, 64} {
		web.Cases = append(web.Cases, run.Case{
			Info: result.Case{
				ID: fmt.Sprintf("W2f/%d", streams), Suite: "http", Conns: http2Conns, Metrics: latencyMetrics,
				Title: fmt.Sprintf("HTTP/2 on both sides, GET, 128 bytes, %d streams on %d connections", streams, http2Conns),
			},
			Baselines: []string{"haproxy"}, Open: openHTTP2(streams, (*http2Meter).get),
		})
	}
	body := int64(min(1, e.Seconds) * (1 << 30))
	for _, c := range []struct {
		id, title string
		do        func(*http2Meter, int, int64) error
	}{{"down", "answer", (*http2Meter).download}, {"up", "request", (*http2Meter).upload}} {
		web.Cases = append(web.Cases, run.Case{
			Info: result.Case{
				ID: "W2f/" + c.id, Suite: "http", Conns: 1, Metrics: []string{result.CPUPerGiB, result.GBs, result.Peak},
				Title: fmt.Sprintf("HTTP/2 on both sides, a body of %s with the %s", size(body), c.title),
			},
			Baselines: []string{"haproxy"}, Beside: float64(body) / 1e9, Open: openHTTP2Body(body, c.do),
		})
	}
	rpc := run.Group{
		Name: "gRPC", Arms: e.http2Proxies(func() string { return e.grpc.Addr }),
		Prepare: func(context.Context) error { return e.backend(&e.grpc, string(backend.GRPC)) },
	}
	for _, calls := range []int{1, 16} {
		rpc.Cases = append(rpc.Cases, run.Case{
			Info: result.Case{
				ID: fmt.Sprintf("W2f/grpc/%d", calls), Suite: "http", Conns: 1, Metrics: latencyMetrics,
				Title: fmt.Sprintf("gRPC, unary, 128 bytes each way, grpc-go on both ends, %s", strings.Replace(connections(calls), "connection", "call", 1)) + " at a time",
				Note:  "What a proxy adds to a call is the difference to direct",
			},
			Baselines: []string{"haproxy"}, Open: openGRPC(calls),
		})
	}
	return []run.Group{web, rpc}
}

// http2Meter makes calls by clients of its own: each of its workers makes one after the other.
type http2Meter struct {
	target  *peers.Target
	workers int
	clients []*http.Client
	call    func(m *http2Meter, worker int) error
	close   []func() error
}

func openHTTP2(workers int, call func(*http2Meter, int) error) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		return newHTTP2Meter(s.(armTarget).Target, min(workers, http2Conns), workers, call), nil
	}
}

func newHTTP2Meter(target *peers.Target, conns, workers int, call func(*http2Meter, int) error) *http2Meter {
	m := &http2Meter{target: target, workers: workers, call: call}
	for range conns {
		t := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
		t.Protocols.SetUnencryptedHTTP2(true)
		m.clients = append(m.clients, &http.Client{Transport: t})
		m.close = append(m.close, func() error { t.CloseIdleConnections(); return nil })
	}
	return m
}

// Close closes the connections.
func (m *http2Meter) Close() error {
	var errs []error
	for _, c := range m.close {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// Round lets the workers make calls for d.
func (m *http2Meter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	began := time.Now()
	times, errs := make([]hist.Histogram, m.workers), make([]error, m.workers)
	var wg sync.WaitGroup
	for i := range m.workers {
		wg.Go(func() {
			for begun := began; errs[i] == nil && ctx.Err() == nil && time.Since(began) < d; {
				errs[i] = m.call(m, i)
				now := time.Now()
				times[i].Record(now.Sub(begun))
				begun = now
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	cpu, peak, err := a.end()
	if err := errors.Join(append(errs, err, ctx.Err())...); err != nil {
		return result.Sample{}, err
	}
	all := &times[0]
	for i := range times[1:] {
		all.Merge(&times[1+i])
	}
	n := float64(all.Count())
	v := map[string]float64{
		result.Throughput: n / took.Seconds(),
		result.P50:        micros(all.Quantile(0.5)),
		result.P99:        micros(all.Quantile(0.99)),
		result.P999:       micros(all.Quantile(0.999)),
	}
	if m.target.Proc != nil {
		v[result.CPU], v[result.Peak], v[result.Switches] = micros(cpu)/n, peak, float64(a.switched())/n
	}
	return result.Sample{Values: v, Latency: all}, nil
}

// do sends a request on one of the connections, and reads the answer to its end.
func (m *http2Meter) do(worker int, r *http.Request, err error) (answer []byte, n int64, _ error) {
	if err != nil {
		return nil, 0, err
	}
	resp, err := m.clients[worker%len(m.clients)].Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		return nil, 0, fmt.Errorf("%s: %s, %s", r.URL, resp.Proto, resp.Status)
	}
	if resp.ContentLength > 1024 {
		n, err = backend.Slowly(resp.Body, 0)
		return nil, n, err
	}
	answer, err = io.ReadAll(resp.Body)
	return answer, int64(len(answer)), err
}

func (m *http2Meter) get(worker int) error {
	r, err := http.NewRequest(http.MethodGet, "http://"+m.target.Addr+"/", nil)
	_, _, err = m.do(worker, r, err)
	return err
}

func (m *http2Meter) download(worker int, size int64) error {
	r, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s%s?size=%d", m.target.Addr, backend.DownPath, size), nil)
	if _, n, err := m.do(worker, r, err); err != nil || n != size {
		return fmt.Errorf("%d of %d bytes have arrived: %w", n, size, err)
	}
	return nil
}

func (m *http2Meter) upload(worker int, size int64) error {
	body, w := io.Pipe()
	go func() { _ = w.CloseWithError(backend.Produce(w, size, make([]byte, streamBuffer))) }()
	defer body.Close()
	r, err := http.NewRequest(http.MethodPost, fmt.Sprintf("http://%s%s?slow=0s", m.target.Addr, backend.UpPath), body)
	if err == nil {
		r.ContentLength = size
	}
	answer, _, err := m.do(worker, r, err)
	if err != nil || string(answer) != strconv.FormatInt(size, 10) {
		return fmt.Errorf("an upload of %d bytes was answered %q: %w", size, answer, err)
	}
	return nil
}

// http2Body moves one body per round.
type http2Body struct {
	*http2Meter
	size int64
	move func(m *http2Meter, worker int, size int64) error
}

func openHTTP2Body(size int64, move func(*http2Meter, int, int64) error) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		return &http2Body{newHTTP2Meter(s.(armTarget).Target, 1, 1, nil), size, move}, nil
	}
}

// Round moves a body, however long that takes.
func (m *http2Body) Round(ctx context.Context, _ time.Duration, _ float64) (result.Sample, error) {
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	began := time.Now()
	stop := context.AfterFunc(ctx, func() { _ = m.Close() })
	defer stop()
	if err := m.move(m.http2Meter, 0, m.size); err != nil {
		return result.Sample{}, err
	}
	v := map[string]float64{result.GBs: float64(m.size) / 1e9 / time.Since(began).Seconds()}
	if m.target.Proc != nil {
		cpu, peak, err := a.end()
		if err != nil {
			return result.Sample{}, err
		}
		v[result.CPUPerGiB], v[result.Peak] = float64(cpu)/1e6/(float64(m.size)/(1<<30)), peak
	}
	return result.Sample{Values: v}, nil
}

func openGRPC(calls int) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		target := s.(armTarget).Target
		conn, err := grpc.NewClient(target.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(backend.Raw{})))
		if err != nil {
			return nil, err
		}
		request := make([]byte, backend.MessageSize)
		return &http2Meter{target: target, workers: calls, close: []func() error{conn.Close}, call: func(*http2Meter, int) error {
			var answer []byte
			if err := conn.Invoke(context.Background(), backend.UnaryMethod, &request, &answer); err != nil {
				return err
			}
			if !slices.Equal(answer, request) {
				return fmt.Errorf("a call with %d bytes was answered with %d others", len(request), len(answer))
			}
			return nil
		}}, nil
	}
}

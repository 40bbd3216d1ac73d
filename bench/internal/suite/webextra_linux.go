package suite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/bench/internal/backend"
	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// webExtras are W2c, W2d and W2e, whose backends are the standard library's.
func (e *Env) webExtras() []run.Group {
	std := func() string { return e.std.Addr }
	secure := func() string { return e.stdTLS.Addr }
	subscribers := 1000
	if e.Quick {
		subscribers = 200
	}
	plain := run.Group{
		Name: "HTTP streams", Arms: append([]run.Arm{direct(std)}, e.fastProxies(std, false)...),
		Prepare: func(context.Context) error { return e.backend(&e.std, string(backend.Std)) },
		Cases: []run.Case{{
			Info: result.Case{
				ID: "W2c", Suite: "http", Conns: 2 * slowBodies, Metrics: []string{result.Peak, result.GBs},
				Title: fmt.Sprintf("HTTP, memory: %d uploads and %d downloads of 1 GiB, whose readers take 12 MiB/s; cut off at the end of the round", slowBodies, slowBodies),
			},
			Baselines: proxyBaselines, Seconds: max(1, e.Seconds), Open: openSlow,
		}, {
			Info: result.Case{
				ID: "W2d", Suite: "http", Conns: subscribers, Metrics: []string{result.CPU, result.P50, result.P99, result.PerClient},
				Title: fmt.Sprintf("HTTP, %s event streams of 10 events a second: cost of an event, and how late it arrives", result.Format(float64(subscribers))),
			},
			Baselines: proxyBaselines, Seconds: max(1, e.Seconds), Open: openEvents(subscribers),
		}},
	}
	tls := run.Group{
		Name: "HTTP to TLS", Arms: e.fastProxies(secure, true),
		Prepare: func(context.Context) error { return e.backend(&e.stdTLS, string(backend.StdTLS)) },
		Cases: []run.Case{{
			Info: result.Case{
				ID: "W2e/tls", Suite: "http", Conns: 16, Metrics: requestMetrics,
				Title: "HTTP GET, a client connection for each request, 16 at a time, TLS to the backend",
			},
			Baselines: proxyBaselines, Open: e.openLoad(load.PerConnection(load.Get("/")), 16, func() *peers.Backend { return e.stdTLS }),
		}},
	}
	return []run.Group{plain, tls}
}

// streamsMeter has connections that live for a round.
type streamsMeter struct {
	target *peers.Target
	n      int
	// serve sends a request and reads until the connection is closed.
	serve func(m *streamsMeter, i int, c net.Conn) error

	moved  atomic.Int64
	opened atomic.Int64
	timed  atomic.Bool // events count
	mu     sync.Mutex  // guards delays
	delays *hist.Histogram
	sample func(m *streamsMeter, v map[string]float64, took time.Duration, a account) error
}

// Close has nothing to close.
func (m *streamsMeter) Close() error { return nil }

// Round opens the connections, waits until each has an answer, looks for d, and hangs up.
func (m *streamsMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	m.moved.Store(0)
	m.opened.Store(0)
	m.timed.Store(false)
	m.delays = new(hist.Histogram)
	before := int64(0)
	if m.target.Proc != nil {
		before = m.target.Proc.Memory().RSS
	}
	conns, err := m.dial(ctx)
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { _ = m.serve(m, i, c) }) // it ends when it is cut off
	}
	defer wg.Wait()
	defer closeAll(conns)
	if err != nil {
		return result.Sample{}, err
	}
	if err := m.await(ctx); err != nil {
		return result.Sample{}, err
	}
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	m.timed.Store(true)
	began := time.Now()
	if err := pause(ctx, d); err != nil {
		return result.Sample{}, err
	}
	took := time.Since(began)
	m.mu.Lock()
	defer m.mu.Unlock()
	v := map[string]float64{}
	if m.target.Proc != nil {
		v[result.PerClient] = float64(m.target.Proc.Memory().RSS-before) / 1024 / float64(m.n)
	}
	if err := m.sample(m, v, took, a); err != nil {
		return result.Sample{}, err
	}
	s := result.Sample{Values: v}
	if m.delays.Count() > 0 {
		s.Latency = m.delays
		m.delays = new(hist.Histogram)
	}
	return s, nil
}

func (m *streamsMeter) dial(ctx context.Context) ([]net.Conn, error) {
	var conns []net.Conn
	for range m.n {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", m.target.Addr)
		if err != nil {
			return conns, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// await waits until every connection has begun.
func (m *streamsMeter) await(ctx context.Context) error {
	for deadline := time.Now().Add(10 * time.Second); m.opened.Load() < int64(m.n); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("of %d connections %d have an answer after 10 s", m.n, m.opened.Load())
		}
	}
	return nil
}

// openEvents is the Open of W2d.
func openEvents(n int) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		return &streamsMeter{target: s.(armTarget).Target, n: n, serve: subscribe, sample: func(m *streamsMeter, v map[string]float64, took time.Duration, a account) error {
			if m.delays.Count() == 0 {
				return errors.New("no event arrived")
			}
			v[result.P50], v[result.P99] = micros(m.delays.Quantile(0.5)), micros(m.delays.Quantile(0.99))
			if m.target.Proc == nil {
				return nil
			}
			cpu, _, err := a.end()
			v[result.CPU] = micros(cpu) / float64(m.delays.Count())
			return err
		}}, nil
	}
}

// subscribe reads events and how old each is.
func subscribe(m *streamsMeter, _ int, c net.Conn) error {
	if _, err := c.Write([]byte("GET " + backend.EventsPath + " HTTP/1.1\r\nHost: bench.test\r\n\r\n")); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 1024)
	for first := true; ; first = false {
		line, err := r.ReadString('\n')
		for ; err == nil && !strings.HasPrefix(line, "data: "); line, err = r.ReadString('\n') {
		}
		if err != nil {
			return err
		}
		sent, err := strconv.ParseInt(strings.TrimSpace(line[len("data: "):]), 10, 64)
		if err != nil {
			return err
		}
		if first {
			m.opened.Add(1)
		}
		if m.timed.Load() {
			late := time.Duration(time.Now().UnixNano() - sent)
			m.mu.Lock()
			m.delays.Record(late)
			m.mu.Unlock()
		}
	}
}

// slowBodies is how many bodies of W2c go each way.
const slowBodies = 32

// openSlow is the Open of W2c: the first half downloads and reads slowly, the other uploads to who reads slowly.
func openSlow(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
	return &streamsMeter{target: s.(armTarget).Target, n: 2 * slowBodies, serve: slowly, sample: func(m *streamsMeter, v map[string]float64, took time.Duration, a account) error {
		v[result.GBs] = float64(m.moved.Load()) / 1e9 / took.Seconds()
		if m.target.Proc == nil {
			return nil
		}
		_, peak, err := a.end()
		v[result.Peak] = peak
		return err
	}}, nil
}

// slowly is one connection of W2c.
func slowly(m *streamsMeter, i int, c net.Conn) error {
	if i%2 == 0 {
		if _, err := c.Write([]byte("GET " + backend.DownPath + " HTTP/1.1\r\nHost: bench.test\r\n\r\n")); err != nil {
			return err
		}
		m.opened.Add(1)
		return backend.Slowly(counted{c, &m.moved})
	}
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: bench.test\r\nContent-Length: %d\r\n\r\n", backend.UpPath, backend.Huge); err != nil {
		return err
	}
	m.opened.Add(1)
	for buf := make([]byte, streamBuffer); ; {
		n, err := c.Write(buf)
		m.moved.Add(int64(n))
		if err != nil {
			return err
		}
	}
}

// counted counts what is read.
type counted struct {
	net.Conn
	n *atomic.Int64
}

// Read implements io.Reader.
func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

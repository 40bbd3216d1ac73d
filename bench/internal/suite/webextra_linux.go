package suite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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

// webExtras are W2c, W2d and W2e. Their backends use the standard library.
func (e *Env) webExtras() []run.Group {
	std := func() string { return e.std.Addr }
	secure := func() string { return e.stdTLS.Addr }
	// Shorter rounds have shorter bodies.
	subscribers, body, slow, listen, rounds := 1000, int64(min(1, e.Seconds)*(1<<30)), max(1, e.Seconds), max(3, e.Seconds), 5
	if e.Quick {
		subscribers, body, slow, listen, rounds = 200, 8<<20, 0.4, 0.3, 3
	}
	bodies := float64(2*slowBodies) * float64(body)
	plain := run.Group{
		Name: "HTTP streams", Arms: append([]run.Arm{direct(std)}, e.fastProxies(std, false, false)...),
		Prepare: func(context.Context) error { return e.backend(&e.std, string(backend.Std)) },
		Cases: []run.Case{{
			Info: result.Case{
				ID: "W2c", Suite: "http", Conns: 2 * slowBodies, Metrics: []string{result.Peak, result.GBs},
				Title: fmt.Sprintf("HTTP, memory: %d uploads and %d downloads of %s at a time, whose readers take 12 MiB/s at first", slowBodies, slowBodies, size(body)),
				Note:  fmt.Sprintf("Every body is read slowly for %g s, then to its end as fast as it comes, and counted", slow),
			},
			Baselines: proxyBaselines, Arms: slowArms, Seconds: slow, Beside: bodies / 1e9, Rounds: rounds, Cold: true, Open: openSlow(body),
		}, {
			Info: result.Case{
				ID: "W2d", Suite: "http", Conns: subscribers, Metrics: []string{result.CPU, result.P50, result.P99, result.PerClient},
				Title: fmt.Sprintf("HTTP, %s event streams of 10 events a second: cost of an event, and how late it arrives", result.Format(float64(subscribers))),
				Note:  "What a proxy adds to the delay of an event is the difference to direct. Memory is that at the end of a round above that before the first, when the program has served some streams",
			},
			Baselines: proxyBaselines, Seconds: listen, Rounds: rounds, Open: openEvents(subscribers),
		}},
	}
	old := arm("study-old", func() (*peers.Target, error) { return e.Starter.StartSelf("https-old", secure()) })
	tls := run.Group{
		Name: "HTTP to TLS", Arms: append(e.fastProxies(secure, true, false), old),
		Prepare: func(context.Context) error { return e.backend(&e.stdTLS, string(backend.StdTLS)) },
		Cases: []run.Case{{
			Info: result.Case{
				ID: "W2e/tls", Suite: "http", Conns: 16, Metrics: requestMetrics,
				Title: "HTTP GET, a client connection for each request, 16 at a time, TLS to the backend",
				Note:  "study-old opens a connection to the backend for each: what it needs more is what using them again saves",
			},
			Baselines: proxyBaselines, Open: e.openLoad(load.PerConnection(load.Get("/")), 16, func() *peers.Backend { return e.stdTLS }),
		}},
	}
	return []run.Group{plain, tls}
}

// streamsMeter opens connections that live for a round.
type streamsMeter struct {
	target *peers.Target
	n      int
	// serve sends a request on connection i and reads its answer. It is called when a round of
	// duration d begins.
	serve func(m *streamsMeter, i int, c net.Conn, d time.Duration) error
	// With whole a round ends with the last answer; otherwise the connections are closed after d.
	whole  bool
	sample func(m *streamsMeter, v map[string]float64, took time.Duration, a account) error

	moved  atomic.Int64
	opened atomic.Int64
	timed  atomic.Bool // events are being counted
	mu     sync.Mutex  // guards what follows
	delays *hist.Histogram
	failed error // the first error
	ended  int   // connections that have ended
	before int64 // the process's memory after a visit: a proxy may keep what a round's connections took
}

// visit opens some connections and closes them, so that what follows is not charged with the program's own pages.
func (m *streamsMeter) visit(ctx context.Context) error {
	few := &streamsMeter{target: m.target, n: max(1, m.n/50), serve: m.serve, delays: new(hist.Histogram)}
	conns, err := few.dial(ctx)
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { few.end(few.serve(few, i, c, 0)) })
	}
	defer wg.Wait()
	defer closeAll(conns)
	if err != nil {
		return err
	}
	return few.await(ctx)
}

// Close has nothing to close.
func (m *streamsMeter) Close() error { return nil }

// Round opens the connections, waits until all have begun, measures for d or until the last answer,
// and closes them.
func (m *streamsMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	m.moved.Store(0)
	m.opened.Store(0)
	m.timed.Store(false)
	m.delays, m.failed, m.ended = new(hist.Histogram), nil, 0
	if m.target.Proc != nil && m.before == 0 && !m.whole {
		if err := m.visit(ctx); err != nil {
			return result.Sample{}, err
		}
		m.before = m.target.Proc.Memory().Data
	}
	conns, err := m.dial(ctx)
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { m.end(m.serve(m, i, c, d)) })
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
	if err := m.last(ctx, d, conns, &wg); err != nil {
		return result.Sample{}, err
	}
	return m.take(a, time.Since(began))
}

// end records the end of a connection.
func (m *streamsMeter) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended++
	if m.failed == nil {
		m.failed = err
	}
}

// last waits for d and the first event, or for the last answer.
func (m *streamsMeter) last(ctx context.Context, d time.Duration, conns []net.Conn, wg *sync.WaitGroup) error {
	if !m.whole {
		if err := pause(ctx, d); err != nil {
			return err
		}
		return m.something(ctx)
	}
	stop := context.AfterFunc(ctx, func() { closeAll(conns) })
	defer stop()
	wg.Wait()
	return ctx.Err()
}

// something waits for the first event. If the machine stood still, that may come after the end of a short round.
func (m *streamsMeter) something(ctx context.Context) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		m.mu.Lock()
		n, ended := m.delays.Count(), m.ended
		m.mu.Unlock()
		if n > 0 || ended > 0 {
			return nil // take reports the connections that have ended
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no event has arrived on %d streams for 10 s", m.n)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// take returns the figures of a round, or an error if a connection has ended too early or wrongly.
func (m *streamsMeter) take(a account, took time.Duration) (result.Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil || !m.whole && m.ended > 0 {
		return result.Sample{}, fmt.Errorf("%d of %d connections have ended: %w", m.ended, m.n, m.failed)
	}
	v := map[string]float64{}
	if m.target.Proc != nil {
		v[result.PerClient] = float64(m.target.Proc.Memory().Data-m.before) / 1024 / float64(m.n)
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
			m.mu.Lock()
			defer m.mu.Unlock()
			return fmt.Errorf("of %d connections %d have an answer after 10 s, %d have ended: %w", m.n, m.opened.Load(), m.ended, m.failed)
		}
	}
	return nil
}

// openEvents returns the Open of W2d.
func openEvents(n int) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		return &streamsMeter{target: s.(armTarget).Target, n: n, serve: subscribe, sample: func(m *streamsMeter, v map[string]float64, _ time.Duration, a account) error {
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

// subscribe reads events and records their age.
func subscribe(m *streamsMeter, _ int, c net.Conn, _ time.Duration) error {
	if _, err := c.Write([]byte("GET " + backend.EventsPath + " HTTP/1.1\r\nHost: bench.test\r\n\r\n")); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 1024), nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the event stream's answer is %s", resp.Status)
	}
	lines := bufio.NewReaderSize(resp.Body, 64)
	for first := true; ; first = false {
		line, err := lines.ReadString('\n')
		if errors.Is(err, net.ErrClosed) {
			return nil // the round is over
		}
		if err != nil {
			return err
		}
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		sent, err := strconv.ParseInt(text, 10, 64)
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

// slowArms are the arms of W2c. Each further one would move another 64 GiB per round.
var slowArms = []string{"direct", "gateway-uring", "gateway-epoll", "gateway-goroutine", "haproxy", "nginx"}

// slowBodies is the number of bodies in each direction in W2c.
const slowBodies = 32

// openSlow returns the Open of W2c. The first half of the clients download and read slowly; the others upload to a
// server that reads slowly.
func openSlow(size int64) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		return &streamsMeter{target: s.(armTarget).Target, n: 2 * slowBodies, whole: true, serve: func(m *streamsMeter, i int, c net.Conn, d time.Duration) error {
			if i%2 == 0 {
				return download(m, c, size, d)
			}
			return upload(m, c, size, d)
		}, sample: func(m *streamsMeter, v map[string]float64, took time.Duration, a account) error {
			if moved := m.moved.Load(); moved != size*int64(m.n) {
				return fmt.Errorf("%d bytes of %d bodies of %d have arrived", moved, m.n, size)
			}
			v[result.GBs] = float64(m.moved.Load()) / 1e9 / took.Seconds()
			if m.target.Proc == nil {
				return nil
			}
			_, peak, err := a.end()
			v[result.Peak] = peak
			return err
		}}, nil
	}
}

// download reads a body slowly for d, then as fast as possible to its end.
func download(m *streamsMeter, c net.Conn, size int64, d time.Duration) error {
	if _, err := fmt.Fprintf(c, "GET %s?size=%d HTTP/1.1\r\nHost: bench.test\r\n\r\n", backend.DownPath, size); err != nil {
		return err
	}
	m.opened.Add(1)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	n, err := backend.Slowly(resp.Body, d)
	m.moved.Add(n)
	return err
}

// upload sends a body to a server that reads slowly for d, and waits for the acknowledgement.
func upload(m *streamsMeter, c net.Conn, size int64, d time.Duration) error {
	if _, err := fmt.Fprintf(c, "POST %s?slow=%s HTTP/1.1\r\nHost: bench.test\r\nContent-Length: %d\r\n\r\n", backend.UpPath, d, size); err != nil {
		return err
	}
	m.opened.Add(1)
	if err := backend.Produce(c, size, make([]byte, streamBuffer)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || string(answer) != strconv.FormatInt(size, 10) {
		return fmt.Errorf("an upload of %d bytes was answered %s, %q, %w", size, resp.Status, answer, err)
	}
	m.moved.Add(size)
	return nil
}

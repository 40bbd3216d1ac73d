package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/bench/internal/backend"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// bulkBytes is the total that a full round moves in each direction. bulkTime is how many times as long as other rounds
// that takes.
const (
	bulkBytes = 4 << 30
	bulkTime  = 5
)

// streamBuffer is the size of one read or write.
const streamBuffer = 256 << 10

// streamMeter moves data in both directions on several connections.
type streamMeter struct {
	target  *peers.Target
	conns   []net.Conn
	in, out [][]byte
}

func openStream(n int) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(ctx context.Context, _ string, s run.Stopper) (run.Meter, error) {
		m := &streamMeter{target: s.(armTarget).Target}
		for range n {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", m.target.Addr)
			if err != nil {
				return nil, errors.Join(err, m.Close())
			}
			m.conns = append(m.conns, c)
			m.in, m.out = append(m.in, make([]byte, streamBuffer)), append(m.out, make([]byte, streamBuffer))
		}
		return m, nil
	}
}

// bulk is how many bytes each of n connections moves in each direction in a round of the given
// length.
func bulk(seconds float64, n int) int64 { return int64(seconds * bulkBytes / bulkTime / float64(n)) }

// Round moves the bytes that correspond to d, however long that takes.
func (m *streamMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	each := bulk(d.Seconds(), len(m.conns))
	stop := context.AfterFunc(ctx, func() { _ = m.Close() })
	defer stop()
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	began := time.Now()
	errs := make([]error, len(m.conns))
	var wg sync.WaitGroup
	for i, c := range m.conns {
		wg.Go(func() {
			if _, errs[i] = c.Write(backend.StreamHead(each)); errs[i] == nil {
				errs[i] = backend.Exchange(c, each, m.in[i], m.out[i])
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return result.Sample{}, err
	}
	moved := float64(each) * float64(2*len(m.conns))
	v := map[string]float64{result.GBs: moved / 1e9 / took.Seconds()}
	if m.target.Proc != nil {
		cpu, peak, err := a.end()
		if err != nil {
			return result.Sample{}, err
		}
		v[result.CPUPerGiB] = float64(cpu) / 1e6 / (moved / (1 << 30))
		v[result.Peak] = peak
	}
	return result.Sample{Values: v}, nil
}

// Close closes the connections.
func (m *streamMeter) Close() error {
	for _, c := range m.conns {
		_ = c.Close()
	}
	return nil
}

func (e *Env) streamTarget() string { return e.stream.Addr }

func (e *Env) prepareStream(context.Context) error {
	return e.backend(&e.stream, string(backend.Stream))
}

// connections returns "1 connection" or "64 connections".
func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

// size formats a number of bytes.
func size(n int64) string {
	if n >= 1<<30 {
		return result.Format(float64(n)/(1<<30)) + " GiB"
	}
	return result.Format(float64(n)/(1<<20)) + " MiB"
}

// streams is W1d.
func (e *Env) streams(suite string, arms []string) run.Group {
	g := run.Group{Name: suite + ", streams", Arms: e.byteProxies(e.streamTarget), Prepare: e.prepareStream}
	counts := []int{1, 64}
	if e.Quick {
		counts = counts[:1]
	}
	seconds := e.Seconds * bulkTime
	if e.Quick {
		seconds = e.Seconds * 2
	}
	for _, n := range counts {
		g.Cases = append(g.Cases, run.Case{
			Info: result.Case{
				ID: fmt.Sprintf("W1d/%d", n), Suite: suite, Conns: n, Metrics: []string{result.CPUPerGiB, result.GBs, result.Peak},
				Title: fmt.Sprintf("TCP, bulk both ways at once, %s of %s each way", connections(n), size(bulk(seconds, n))),
			},
			Baselines: proxyBaselines, Arms: arms, Open: openStream(n), Seconds: seconds,
		})
	}
	return g
}

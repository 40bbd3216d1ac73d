package suite

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// idleMeter holds clients that do nothing.
type idleMeter struct {
	target *peers.Target
	conns  []net.Conn
	before int64 // resident memory without clients
}

// dialers open the clients of W3d at a time; the server's backlog must hold them.
const dialers = 16

// openIdle connects n clients that log in and then wait.
func openIdle(n int, dial func(addr string) func(context.Context) (net.Conn, error)) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(ctx context.Context, _ string, s run.Stopper) (run.Meter, error) {
		t := s.(armTarget).Target
		m := &idleMeter{target: t, conns: make([]net.Conn, n)}
		open := dial(t.Addr)
		first, err := open(ctx) // the first makes the pool, which is not the clients'
		if err != nil {
			return nil, err
		}
		defer first.Close()
		m.before = t.Proc.Memory().RSS
		var wg sync.WaitGroup
		errs := make([]error, dialers)
		for d := range dialers {
			wg.Go(func() {
				for i := d; i < n && errs[d] == nil && ctx.Err() == nil; i += dialers {
					if m.conns[i], errs[d] = open(ctx); errs[d] != nil {
						m.conns[i] = nil
					}
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				_ = m.Close()
				return nil, fmt.Errorf("%d idle clients: %w", n, err)
			}
		}
		return m, nil
	}
}

// Round looks at what the process has and does while nobody asks for anything.
func (m *idleMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	cpu, err := m.target.Proc.CPU()
	if err != nil {
		return result.Sample{}, err
	}
	began := time.Now()
	select {
	case <-ctx.Done():
		return result.Sample{}, ctx.Err()
	case <-time.After(d):
	}
	after, err := m.target.Proc.CPU()
	if err != nil {
		return result.Sample{}, err
	}
	rss := m.target.Proc.Memory().RSS
	return result.Sample{Values: map[string]float64{
		result.PerClient: float64(rss-m.before) / 1024 / float64(len(m.conns)),
		result.IdleCPU:   float64(after-cpu) / 1e6 / time.Since(began).Seconds(),
		"rss_mib":        float64(rss) / (1 << 20),
	}}, nil
}

// Close hangs up.
func (m *idleMeter) Close() error {
	for _, c := range m.conns {
		if c != nil {
			_ = c.Close()
		}
	}
	return nil
}

// idleClients is W3d.
func (e *Env) idleClients(suite string) run.Case {
	n := 10_000
	if e.Quick {
		n = 2_000
	}
	return run.Case{
		Info: result.Case{
			ID: "W3d", Suite: suite, Conns: n, Metrics: []string{result.PerClient, result.IdleCPU, "rss_mib"},
			Title: fmt.Sprintf("PostgreSQL, %s idle clients", result.Format(float64(n))),
		},
		Baselines: []string{"pgbouncer", "gateway-goroutine"}, Rounds: 3,
		Open: openIdle(n, func(addr string) func(context.Context) (net.Conn, error) { return dialPostgres(addr, "disable") }),
	}
}

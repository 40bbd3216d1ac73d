package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// idleMeter has clients that do nothing. They exist for one round only: those of all arms together would need too many
// descriptors.
type idleMeter struct {
	target *peers.Target
	open   func(context.Context) (net.Conn, error)
	n      int
	first  net.Conn
	before int64 // memory with one client, which includes the pool
}

// dialers is how many clients of W3d connect at a time. The server's backlog must hold them.
const dialers = 16

// openIdle returns the Open of cases with n clients that log in and then wait.
func openIdle(n int, dial func(addr string) func(context.Context) (net.Conn, error)) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(ctx context.Context, _ string, s run.Stopper) (run.Meter, error) {
		t := s.(armTarget).Target
		m := &idleMeter{target: t, open: dial(t.Addr), n: n}
		var err error
		if m.first, err = m.open(ctx); err != nil {
			return nil, err
		}
		if err := pause(ctx, quiesce); err != nil {
			return nil, err
		}
		m.before = t.Proc.Memory().Data
		return m, nil
	}
}

// connect opens the clients.
func (m *idleMeter) connect(ctx context.Context) ([]net.Conn, error) {
	conns := make([]net.Conn, m.n)
	var wg sync.WaitGroup
	errs := make([]error, dialers)
	for d := range dialers {
		wg.Go(func() {
			for i := d; i < m.n && errs[d] == nil && ctx.Err() == nil; i += dialers {
				c, err := m.open(ctx)
				if err != nil {
					errs[d] = fmt.Errorf("client %d of %d: %w", i, m.n, err)
					return
				}
				conns[i] = c
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(conns, func(c net.Conn) bool { return c == nil }), errors.Join(append(errs, ctx.Err())...)
}

// quiesce is how long a process may work after its start and after the clients' logins before it counts as idle. The gateway
// returns memory after a second or two without work.
const quiesce = 4 * time.Second

// Round connects the clients and measures the process while they are idle.
func (m *idleMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	conns, err := m.connect(ctx)
	defer closeAll(conns)
	if err != nil {
		return result.Sample{}, err
	}
	if err := pause(ctx, quiesce); err != nil {
		return result.Sample{}, err
	}
	cpu, err := m.target.Proc.CPU()
	if err != nil {
		return result.Sample{}, err
	}
	began := time.Now()
	if err := pause(ctx, d); err != nil {
		return result.Sample{}, err
	}
	after, err := m.target.Proc.CPU()
	if err != nil {
		return result.Sample{}, err
	}
	memory := m.target.Proc.Memory()
	return result.Sample{Values: map[string]float64{
		result.PerClient: float64(memory.Data-m.before) / 1024 / float64(m.n),
		result.IdleCPU:   float64(after-cpu) / 1e6 / time.Since(began).Seconds(),
		result.RSS:       float64(memory.RSS) / (1 << 20),
	}}, nil
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Close closes the first client.
func (m *idleMeter) Close() error { return m.first.Close() }

// idleClients is W3d. Its processes have done nothing before: memory from earlier work, returned later, would be
// subtracted from what the clients need.
func (e *Env) idleClients(suite string) run.Group {
	n, seconds, rounds := 10_000, max(1, e.Seconds), 5
	if e.Quick {
		n, seconds, rounds = 2_000, 0.2, 1
	}
	return run.Group{Name: "PostgreSQL, idle", Arms: e.poolers()[1:], Prepare: e.preparePostgres, Cases: []run.Case{{
		Info: result.Case{
			ID: "W3d", Suite: suite, Conns: n, Metrics: []string{result.PerClient, result.IdleCPU, result.RSS},
			Title: fmt.Sprintf("PostgreSQL, %s idle clients", result.Format(float64(n))),
			Note:  "KiB/client is by how much the resident memory of a process that has done nothing else has grown, without the pages of its program, with all that it needs once",
		},
		Baselines: []string{"pgbouncer", "gateway-goroutine"}, Rounds: rounds, Seconds: seconds, Cold: true, // a round is long, and begins and ends without clients
		Beside: quiesce.Seconds() + float64(n)/2500,
		Open:   openIdle(n, func(addr string) func(context.Context) (net.Conn, error) { return dialPostgres(addr, "disable") }),
	}}}
}

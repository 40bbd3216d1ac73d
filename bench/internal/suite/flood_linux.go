package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/headpond/headpond/bench/internal/flood"
	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

const (
	floodRate   = 10_000
	floodHonest = 4
	// floodPatience is when an honest client gives up: the kernel sends a dropped handshake again after 1, 3 and 7 seconds.
	floodPatience = 10 * time.Second
	// floodPause is between two connections of an honest client.
	floodPause = 5 * time.Millisecond
)

// flood is W9: honest clients while others connect and vanish.
func (e *Env) flood() []run.Group {
	target := e.echoTarget
	arms := append(e.gateways("tcp", target, nil), arm("haproxy", func() (*peers.Target, error) {
		return e.Starter.StartHAProxy(peers.HAProxy{Mode: "tcp", Target: target(), Threads: e.Loops})
	}), arm("nginx", func() (*peers.Target, error) { return e.Starter.StartNginx("stream", target(), false) }))
	seconds, rounds := 3.0, 9
	if e.Quick {
		seconds, rounds = 1, 3
	}
	g := run.Group{Name: "Floods", Prepare: e.prepareEcho, Arms: arms}
	for _, c := range []struct {
		id, does string
		kind     flood.Kind
	}{{"W9/reset", "reset", flood.Reset}, {"W9/leave", "end", flood.Leave}} {
		g.Cases = append(g.Cases, run.Case{
			Info: result.Case{
				ID: c.id, Suite: "flood", Conns: floodHonest,
				Metrics: []string{result.Worst, result.P99, result.P50, result.Failed, result.Reached, result.CPU},
				Title: fmt.Sprintf("TCP, %d clients with a connection for each %d bytes there and back, while others make %s connections a second and %s them at once",
					floodHonest, echoSize, result.Format(floodRate), c.does),
				Note: "worst is the slowest answer of a round; reached is how many of the vanishing connections cost the server one; op is a vanishing connection",
			},
			Baselines: []string{"haproxy", "nginx", "gateway-goroutine"}, Rounds: rounds, Seconds: seconds, Beside: 1,
			Open: e.openFlood(c.kind),
		})
	}
	return []run.Group{g}
}

// floodMeter has honest clients and a flood.
type floodMeter struct {
	target *peers.Target
	echo   *peers.Backend
	kind   flood.Kind
}

func (e *Env) openFlood(kind flood.Kind) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
		return &floodMeter{target: s.(armTarget).Target, echo: e.echo, kind: kind}, nil
	}
}

// Close does nothing: no connection outlives its round.
func (m *floodMeter) Close() error { return nil }

// honest is what the honest clients have seen.
type honest struct {
	answered hist.Histogram
	failed   int64
}

// Round implements run.Meter.
func (m *floodMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	addr, err := netip.ParseAddrPort(m.target.Addr)
	if err != nil {
		return result.Sample{}, err
	}
	before, err := m.echo.Accepted()
	if err != nil {
		return result.Sample{}, err
	}
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	var all sync.WaitGroup
	var clients [floodHonest]honest
	until := time.Now().Add(d)
	for i := range clients {
		all.Go(func() { clients[i].run(ctx, m.target.Addr, until) })
	}
	vanished, floodErr := flood.Run(ctx, flood.Config{Target: addr, Kind: m.kind, Rate: floodRate, For: d})
	all.Wait()
	clients[0].ask(ctx, m.target.Addr) // behind all that the flood has left in the queue
	cpu, _, err := a.end()
	if err := errors.Join(floodErr, err, ctx.Err()); err != nil {
		return result.Sample{}, err
	}
	after, err := m.echo.Accepted()
	if err != nil {
		return result.Sample{}, err
	}
	sum := &clients[0]
	for i := range clients[1:] {
		sum.answered.Merge(&clients[i+1].answered)
		sum.failed += clients[i+1].failed
	}
	h := &sum.answered
	flooded := float64(max(vanished, 1))
	return result.Sample{Values: map[string]float64{
		result.Worst:   float64(h.Max()) / 1e6,
		result.P50:     micros(h.Quantile(0.5)),
		result.P99:     micros(h.Quantile(0.99)),
		result.Failed:  100 * float64(sum.failed) / float64(max(h.Count(), 1)),
		result.Reached: 100 * max(float64(after-before-h.Count()+sum.failed), 0) / flooded,
		result.CPU:     micros(cpu) / flooded,
	}, Latency: h}, nil
}

// run asks until the given time, at least once.
func (c *honest) run(ctx context.Context, addr string, until time.Time) {
	for first := true; ctx.Err() == nil && (first || time.Now().Before(until)); first = false {
		c.ask(ctx, addr)
		time.Sleep(floodPause)
	}
}

// ask makes a connection for one exchange. A failed one counts with the time that it took.
func (c *honest) ask(ctx context.Context, addr string) {
	began := time.Now()
	if askOnce(ctx, addr, began.Add(floodPatience)) != nil {
		c.failed++
	}
	c.answered.Record(time.Since(began))
}

func askOnce(ctx context.Context, addr string, deadline time.Time) error {
	d := net.Dialer{Deadline: deadline}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(deadline)
	var b [echoSize]byte
	return exchange(c, b[:], b[:])
}

package suite

import (
	"context"
	"fmt"

	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// latencyMetrics are the metrics of most cases.
var latencyMetrics = []string{result.CPU, result.Throughput, result.P50, result.P99, result.P999, result.Peak, result.Switches, result.Syscalls, result.Reuse}

// echoSize is the size of the request and the answer of W1c.
const echoSize = 64

// byteProxies are the arms for a TCP backend: the gateway's engines, the peers, and a pair of goroutines.
func (e *Env) byteProxies(target func() string) []run.Arm {
	arms := append([]run.Arm{direct(target)}, e.gateways("tcp", target, nil)...)
	arms = append(arms, arm("haproxy", func() (*peers.Target, error) {
		return e.Starter.StartHAProxy(peers.HAProxy{Mode: "tcp", Target: target(), Threads: e.Loops})
	}))
	arms = append(arms, e.defaults(arm("haproxy-default", func() (*peers.Target, error) {
		return e.Starter.StartHAProxy(peers.HAProxy{Mode: "tcp", Target: target()})
	}))...)
	return append(arms,
		arm("nginx", func() (*peers.Target, error) { return e.Starter.StartNginx("stream", target(), false) }),
		arm("iocopy", func() (*peers.Target, error) { return e.Starter.StartSelf("iocopy", target()) }),
	)
}

// proxyBaselines are the baselines, in order of preference.
var proxyBaselines = []string{"haproxy", "nginx", "haproxy-default", "iocopy", "direct"}

// echoTarget is the address of the echo backend.
func (e *Env) echoTarget() string { return e.echo.Addr }

func (e *Env) echoBackend() *peers.Backend { return e.echo }

func (e *Env) prepareEcho(context.Context) error { return e.backend(&e.echo, "echo") }

// sustained is W1c with conns clients, as fast as possible and at part loads.
func (e *Env) sustained(suite string, arms []string, conns int) []run.Case {
	id := fmt.Sprintf("W1c/%d", conns)
	open := e.openLoad(load.Echo(echoSize), conns, e.echoBackend)
	full := run.Case{
		Info: result.Case{
			ID: id, Suite: suite, Conns: conns, Metrics: latencyMetrics,
			Title: fmt.Sprintf("TCP, %s, %d bytes there and back", clients(conns), echoSize),
		},
		Baselines: proxyBaselines, Arms: arms, Open: open,
	}
	return e.partLoads(full, arms)
}

// partLoads returns full, and for some of its arms the same at 70, 20 and 5 % of the throughput of the slowest of them:
// servers are rarely busier.
func (e *Env) partLoads(full run.Case, arms []string) []run.Case {
	cases := []run.Case{full}
	loads := []int{70, 20, 5}
	if e.Quick {
		loads = loads[:1]
	}
	for _, percent := range loads {
		paced := full
		paced.Info.ID = fmt.Sprintf("%s@%d", full.Info.ID, percent)
		paced.Info.Title += fmt.Sprintf(", at %d %% of the slowest arm's throughput", percent)
		paced.RateOf, paced.Load, paced.Arms = full.Info.ID, float64(percent)/100, arms
		cases = append(cases, paced)
	}
	return cases
}

// clients returns "1 client" or "64 clients".
func clients(n int) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", n)
}

// warmArm keeps 64 connections to the backend open ahead of demand.
func (e *Env) warmArm() run.Arm {
	return arm("gateway-warm", func() (*peers.Target, error) {
		return e.Starter.StartGateway(peers.Gateway{Engine: "auto", Protocol: "tcp", Target: e.echo.Addr, Warm: 64})
	})
}

// namesOf returns the names of arms.
func namesOf(arms []run.Arm) []string {
	var names []string
	for _, a := range arms {
		names = append(names, a.Name)
	}
	return names
}

// tcp is workload W1 through the proxies.
func (e *Env) tcp() []run.Group {
	arms := e.byteProxies(e.echoTarget)
	counts := []int{1, 16, 64, 256}
	if e.Quick {
		counts = []int{64}
	}
	g := run.Group{Name: "TCP", Arms: arms, Prepare: e.prepareEcho}
	for _, n := range counts {
		cases := e.sustained("tcp", nil, n)
		if n != 64 {
			cases = cases[:1]
		}
		g.Cases = append(g.Cases, cases...)
	}
	g.Cases[0].Info.Claim = "4,700 → 103,900 op/s sustained, 22 times, by pooling"
	g.Cases[0].Info.Because = "the study compared net.Dial with taking a connection from a map and had no proxy in the path; here every byte goes through the proxy"
	g.Arms = append(g.Arms, e.warmArm())
	for i := range g.Cases { // connections opened in advance make no difference to these
		g.Cases[i].Arms = namesOf(arms)
	}
	g.Cases = append(g.Cases, run.Case{
		Info: result.Case{
			ID: "W1b/proxy", Suite: "tcp", Conns: 16, Metrics: latencyMetrics,
			Title: "TCP, a connection for each 1 KiB there and back, 16 at a time; -warm has connections to the backend open already",
		},
		Baselines: []string{"gateway-uring", "gateway-epoll", "gateway-goroutine"}, Open: e.openLoad(load.PerConnection(load.Echo(1<<10)), 16, e.echoBackend),
	}, run.Case{
		Info: result.Case{
			ID: "W1e", Suite: "tcp", Conns: 16, Metrics: latencyMetrics,
			Title: "TCP, a connection for each 64 bytes there and back, 16 at a time",
		},
		Baselines: proxyBaselines, Arms: namesOf(arms), Open: e.openLoad(load.PerConnection(load.Echo(echoSize)), 16, e.echoBackend),
	})
	groups := append([]run.Group{g, e.streams("tcp", nil)}, e.tcpLibrary()...)
	if !e.Quick {
		groups = append(groups, e.tcpToTLS())
	}
	return groups
}

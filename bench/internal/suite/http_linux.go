package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// requestMetrics are the metrics of HTTP, where connections to the backend are reused.
var requestMetrics = append(slices.Clone(latencyMetrics), result.Closed)

// fastProxies are the gateway and the peers, for an HTTP backend, with TLS if tls is set. With bulk the peers are
// configured for large bodies.
func (e *Env) fastProxies(target func() string, tls, bulk bool) []run.Arm {
	haproxy := func(name string, threads int) run.Arm {
		return arm(name, func() (*peers.Target, error) {
			return e.Starter.StartHAProxy(peers.HAProxy{Mode: "http", Target: target(), Threads: threads, TLS: tls, Bulk: bulk})
		})
	}
	arms := append(e.gateways("http", target, func(g *peers.Gateway) { g.TLS = tls }), haproxy("haproxy", e.Loops))
	arms = append(arms, e.defaults(haproxy("haproxy-default", 0))...)
	return append(arms, arm("nginx", func() (*peers.Target, error) { return e.Starter.StartNginx("http", target(), tls) }))
}

// webProxies are the arms for an HTTP backend. "reverseproxy" is the standard library's proxy and "library" is
// httppool.Forward, each with as many threads as the other arms. "harness" is a net/http handler that answers without a
// backend, the floor of those two. "study-old" and "study-new" are the study's arms.
func (e *Env) webProxies(target func() string, bulk bool) []run.Arm {
	arms := append([]run.Arm{direct(target)}, e.fastProxies(target, false, bulk)...)
	self := func(name, kind string, env ...string) run.Arm {
		return arm(name, func() (*peers.Target, error) { return e.Starter.StartSelf(kind, target(), env...) })
	}
	threads := fmt.Sprintf("GOMAXPROCS=%d", e.Loops)
	arms = append(arms, self("reverseproxy", "http-reverseproxy", threads))
	arms = append(arms, e.defaults(self("reverseproxy-default", "http-reverseproxy"))...)
	arms = append(arms, self("library", "http-library", threads))
	arms = append(arms, e.defaults(self("library-default", "http-library"))...)
	arms = append(arms, self("harness", "http-empty", threads))
	return append(arms, self("study-new", "http-new"), self("study-old", "http-old"))
}

func (e *Env) webTarget() string { return e.web.Addr }

func (e *Env) prepareWeb(context.Context) error { return e.backend(&e.web, "http") }

func (e *Env) webBackend() *peers.Backend { return e.web }

// gets is W2b with conns connections, as fast as possible and at part loads.
func (e *Env) gets(suite string, arms []string, conns int) []run.Case {
	id := fmt.Sprintf("W2b/%d", conns)
	full := run.Case{
		Info: result.Case{
			ID: id, Suite: suite, Conns: conns, Metrics: requestMetrics,
			Title: fmt.Sprintf("HTTP GET, 128 bytes, %s", strings.Replace(connections(conns), "connection", "kept connection", 1)),
		},
		Baselines: proxyBaselines, Arms: arms, Open: e.openLoad(load.Get("/"), conns, e.webBackend),
	}
	return e.partLoads(full, fast)
}

// fast are the arms of the paced cases. Without the arms of the standard library and the study, 70 % of the slowest is
// still a load for the others.
var fast = []string{"direct", "gateway-uring", "gateway-epoll", "gateway-goroutine", "haproxy", "haproxy-default", "nginx"}

// http is workload W2.
func (e *Env) http() []run.Group {
	uploads := run.Group{Name: "HTTP, uploads", Arms: e.webProxies(e.webTarget, true), Prepare: e.prepareWeb, Cases: []run.Case{{
		Info: result.Case{
			ID: "W2a", Suite: "http", Conns: 4, Metrics: requestMetrics,
			Title:   "HTTP POST of 1 MiB, 4 kept connections",
			Claim:   "1,057 → 2,516 op/s by streaming the body over a shared transport (study-old → study-new)",
			Because: "client, proxy and server of the study were one process; here each is its own, on kept connections",
		},
		Baselines: append([]string{"study-new"}, proxyBaselines...), Open: e.openLoad(load.Post("/", 1<<20), 4, e.webBackend),
	}}}
	g := run.Group{Name: "HTTP", Arms: e.webProxies(e.webTarget, false), Prepare: e.prepareWeb}
	clients := []int{1, 64, 512}
	if e.Quick {
		clients = []int{64}
	}
	for _, n := range clients {
		cases := e.gets("http", nil, n)
		if n != 64 {
			cases = cases[:1]
		}
		g.Cases = append(g.Cases, cases...)
	}
	g.Cases = append(g.Cases, run.Case{
		Info: result.Case{
			ID: "W2e/clear", Suite: "http", Conns: 16, Metrics: requestMetrics,
			Title: "HTTP GET, a client connection for each request, 16 at a time",
		},
		Baselines: proxyBaselines, Open: e.openLoad(load.PerConnection(load.Get("/")), 16, e.webBackend),
	})
	return slices.Concat([]run.Group{uploads, g, e.webLibrary()}, e.webExtras(), e.http2())
}

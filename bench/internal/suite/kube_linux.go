package suite

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/pool/tcppool"
)

// kube is W8: what the pooled-proxy study claims, at a real Kubernetes API server. An operation is one connection, or one
// request, in each case.
func (e *Env) kube() ([]run.Group, error) {
	for _, t := range []peers.Tool{e.Starter.Tools.KubeAPIServer, e.Starter.Tools.Etcd} {
		if t.Path == "" {
			return nil, fmt.Errorf("kube: %s is not installed: %s", t.Name, t.Advice)
		}
	}
	return []run.Group{e.kubeLibrary(), e.kubeProxies(), e.kubeIdle()}, nil
}

func (e *Env) prepareKube(ctx context.Context) error {
	if e.api != nil {
		return nil
	}
	var err error
	e.api, err = e.Starter.StartKubeAPI(ctx)
	return err
}

// kubeLibrary is the study's first two claims, without a proxy.
func (e *Env) kubeLibrary() run.Group {
	arms := []run.Arm{
		libraryArm("dial", func(context.Context) (library, error) {
			return repeated(1, func(ctx context.Context) error {
				c, err := e.dialKube(ctx, e.api.Addr)
				if err != nil {
					return err
				}
				return c.Close()
			}), nil
		}),
		e.kubePoolArm("tcppool", func(net.Conn) error { return nil }),
		libraryArm("dial-get", func(context.Context) (library, error) {
			get := e.kubeGet()
			return repeated(1, func(ctx context.Context) error {
				c, err := e.dialKube(ctx, e.api.Addr)
				if err != nil {
					return err
				}
				defer c.Close()
				return get(c)
			}), nil
		}),
		e.kubePoolArm("tcppool-get", e.kubeGet()),
	}
	return run.Group{Name: "Kubernetes API, library", Prepare: e.prepareKube, Arms: arms, Cases: []run.Case{{
		Info: result.Case{
			ID: "W8/connect", Suite: "kube", Metrics: libraryMetrics, Title: "Kubernetes API: connect, shake hands and close, or get and release",
			Claim:   "94.6 µs → 251 ns, 376 times",
			Because: "the study's connections had no TLS, and its pool did not look whether a connection still lives. API servers speak TLS only, so each connection is a handshake",
		},
		Baselines: []string{"dial"}, Arms: []string{"dial", "tcppool"}, Open: openLibrary,
	}, {
		Info: result.Case{
			ID: "W8/get", Suite: "kube", Metrics: libraryMetrics, Title: "Kubernetes API: get a namespace, on a connection of its own or a pooled one",
			Claim:   "222.9 → 14.8 µs, 15 times",
			Because: "the study's request was 1 KiB to an echo server. Here most of the time of a request on a pooled connection is the API server's",
		},
		Baselines: []string{"dial-get"}, Arms: []string{"dial-get", "tcppool-get"}, Open: openLibrary,
	}}}
}

// kubePoolArm uses a connection of tcppool for each operation.
func (e *Env) kubePoolArm(name string, use func(net.Conn) error) run.Arm {
	return libraryArm(name, func(context.Context) (library, error) {
		d, err := tcppool.New(tcppool.Config{TLS: e.api.TLS})
		if err != nil {
			return library{}, err
		}
		opened := func() (sum int64) {
			for _, s := range d.Stats() {
				sum += int64(s.Opened) //nolint:gosec // far below
			}
			return sum
		}
		return repeated(1, func(ctx context.Context) error {
			c, err := d.Get(ctx, "tcp", e.api.Addr)
			if err != nil {
				return err
			}
			if err := use(c); err != nil {
				_ = c.Close()
				return err
			}
			c.Release()
			return nil
		}).pooling(opened, d.Close), nil
	})
}

// kubeProxies is requests through proxies that do not end TLS.
func (e *Env) kubeProxies() run.Group {
	target := func() string { return e.api.Addr }
	arms := append([]run.Arm{direct(target)}, e.gateways("tcp", target, nil)...)
	arms = append(arms, arm("haproxy", func() (*peers.Target, error) {
		return e.Starter.StartHAProxy(peers.HAProxy{Mode: "tcp", Target: target(), Threads: e.Loops})
	}), arm("nginx", func() (*peers.Target, error) { return e.Starter.StartNginx("stream", target(), false) }))
	metrics := []string{result.CPU, result.Throughput, result.P50, result.P99, result.P999, result.Peak, result.Switches}
	return run.Group{Name: "Kubernetes API", Prepare: e.prepareKube, Arms: arms, Cases: []run.Case{{
		Info: result.Case{
			ID: "W8/kept", Suite: "kube", Conns: 16, Metrics: metrics, Title: "Kubernetes API, get a namespace, 16 clients with a connection each",
			Claim:   "4,700 → 103,900 op/s, 22 times, by pooling",
			Because: "the study compared net.Dial with taking a connection from a map. Here every request goes through the proxy, and the API server sets the pace: compare with W8/fresh",
		},
		Baselines: proxyBaselines, Open: e.openKube(16, false),
	}, {
		Info: result.Case{
			ID: "W8/fresh", Suite: "kube", Conns: 4, Metrics: metrics, Title: "Kubernetes API, get a namespace, 4 clients with a connection for each request",
		},
		Baselines: proxyBaselines, Open: e.openKube(4, true),
	}}}
}

// kubeIdle is what watches cost a proxy while nothing changes.
func (e *Env) kubeIdle() run.Group {
	n, rounds := 1000, 5
	if e.Quick {
		n, rounds = 200, 1
	}
	g := e.kubeProxies()
	return run.Group{Name: "Kubernetes API, idle", Prepare: e.prepareKube, Arms: g.Arms[1:], Cases: []run.Case{{
		Info: result.Case{
			ID: "W8/idle", Suite: "kube", Conns: n, Metrics: []string{result.PerClient, result.IdleCPU, result.RSS},
			Title: fmt.Sprintf("Kubernetes API, %s idle watches over TLS", result.Format(float64(n))),
			Note:  "KiB/client is by how much the resident memory of a process that has done nothing else has grown, without the pages of its program, with all that it needs once",
		},
		Baselines: []string{"haproxy", "nginx", "gateway-goroutine"}, Rounds: rounds, Seconds: max(1, e.Seconds), Cold: true,
		Beside: quiesce.Seconds() + float64(n)/200,
		Open: openIdle(n, func(addr string) func(context.Context) (net.Conn, error) {
			return func(ctx context.Context) (net.Conn, error) { return e.watchKube(ctx, addr) }
		}),
	}}}
}

// dialKube connects to the API server, directly or through a proxy.
func (e *Env) dialKube(ctx context.Context, addr string) (*tls.Conn, error) {
	d := tls.Dialer{Config: e.api.TLS}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return c.(*tls.Conn), nil //nolint:forcetypeassert // a tls.Dialer's is one
}

// kubeRequest is a request over HTTP/1.1.
func (e *Env) kubeRequest(path string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: application/json\r\n\r\n", path, e.api.Addr, e.api.Token)
}

// kubeGet returns a function that gets a namespace on a connection. One goroutine may call it.
func (e *Env) kubeGet() func(net.Conn) error {
	const path = "/api/v1/namespaces/default"
	whole, answer := load.Get(path).Whole, make([]byte, 16<<10)
	return func(c net.Conn) error {
		if _, err := c.Write(e.kubeRequest(path)); err != nil {
			return err
		}
		for n := 0; ; {
			m, err := c.Read(answer[n:])
			if err != nil {
				return err
			}
			n += m
			if size, err := whole(answer[:n]); size > 0 || err != nil {
				return err
			}
		}
	}
}

// watchPath watches something that does not change. Version 0 is any that the API server's cache has. Without a version
// the API server begins each watch only after its limit of 3 s for a cache to become fresh, at least with etcd 3.4.23,
// which does not support requests for progress.
const watchPath = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0&fieldSelector=metadata.name%3Dnone&timeoutSeconds=3600"

// watchKube opens a watch, and returns when it has begun.
func (e *Env) watchKube(ctx context.Context, addr string) (net.Conn, error) {
	c, err := e.dialKube(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	_, err = c.Write(e.kubeRequest(watchPath))
	const ok = "HTTP/1.1 200"
	head := make([]byte, 4<<10)
	n := 0
	for err == nil && n < len(ok) {
		var m int
		m, err = c.Read(head[n:])
		n += m
	}
	if err == nil && string(head[:len(ok)]) != ok {
		err = fmt.Errorf("watch: %q", head[:min(n, 200)])
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// kubeMeter has clients that get a namespace over TLS, as fast as they are answered.
type kubeMeter struct {
	env    *Env
	target *peers.Target
	kept   []net.Conn // one for each client; nil = each request has its own
	n      int
}

// openKube returns the Open of cases with n clients.
func (e *Env) openKube(n int, fresh bool) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(ctx context.Context, _ string, s run.Stopper) (run.Meter, error) {
		m := &kubeMeter{env: e, target: s.(armTarget).Target, n: n}
		for range n {
			if fresh {
				break
			}
			c, err := e.dialKube(ctx, m.target.Addr)
			if err != nil {
				return nil, errors.Join(err, m.Close())
			}
			m.kept = append(m.kept, c)
		}
		return m, nil
	}
}

// Close closes the clients' connections.
func (m *kubeMeter) Close() error {
	closeAll(m.kept)
	return nil
}

// Round implements run.Meter.
func (m *kubeMeter) Round(ctx context.Context, d time.Duration, _ float64) (result.Sample, error) {
	a, err := begin(m.target)
	if err != nil {
		return result.Sample{}, err
	}
	began := time.Now()
	h, err := m.run(ctx, began.Add(d))
	if err != nil {
		return result.Sample{}, err
	}
	took := time.Since(began)
	cpu, peak, err := a.end()
	if err != nil {
		return result.Sample{}, err
	}
	v := map[string]float64{
		result.Throughput: float64(h.Count()) / took.Seconds(),
		result.P50:        micros(h.Quantile(0.5)),
		result.P99:        micros(h.Quantile(0.99)),
		result.P999:       micros(h.Quantile(0.999)),
	}
	if m.target.Proc != nil {
		v[result.CPU] = micros(cpu) / float64(h.Count())
		v[result.Peak] = peak
		v[result.Switches] = float64(a.switched()) / float64(h.Count())
	}
	return result.Sample{Values: v, Latency: h}, nil
}

// run sends requests until the given time, at least one for each client.
func (m *kubeMeter) run(ctx context.Context, until time.Time) (*hist.Histogram, error) {
	all := make([]hist.Histogram, m.n)
	errs := make([]error, m.n)
	var clients sync.WaitGroup
	for i := range m.n {
		clients.Go(func() {
			get := m.env.kubeGet()
			for last := time.Now(); errs[i] == nil && (last.Before(until) || all[i].Count() == 0); {
				errs[i] = m.once(ctx, i, get)
				now := time.Now()
				all[i].Record(now.Sub(last))
				last = now
			}
		})
	}
	clients.Wait()
	for i := range all[1:] {
		all[0].Merge(&all[i+1])
	}
	return &all[0], errors.Join(errs...)
}

// once sends one request of a client.
func (m *kubeMeter) once(ctx context.Context, client int, get func(net.Conn) error) error {
	if m.kept != nil {
		return get(m.kept[client])
	}
	c, err := m.env.dialKube(ctx, m.target.Addr)
	if err != nil {
		return err
	}
	defer c.Close()
	return get(c)
}

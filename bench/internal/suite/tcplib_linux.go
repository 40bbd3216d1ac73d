package suite

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"

	"github.com/headpond/headpond/bench/internal/backend"
	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/pool/tcppool"
)

// tcpLibrary is W1a and W1b: the library in a program, without a proxy.
func (e *Env) tcpLibrary() []run.Group {
	establish := run.Group{Name: "TCP library", Prepare: e.prepareEcho, Arms: []run.Arm{
		e.dialArm("dial", 100, nil), e.studyArm(100, nil), e.floorArm(100), e.pooledArm("tcppool", 100, nil),
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W1a", Suite: "tcp", Metrics: libraryMetrics, Title: "TCP library: 100 times connect and close, or get and release",
			Claim: "94.6 µs → 251 ns for each of them, 376 times",
			Because: "the study's pool (arm study) and the floor (mutexslice: a mutex and a slice by address) hand out connections without looking whether they still live; " +
				"ours looks at each that was used, or looked at more than 5 µs ago (one system call)",
		},
		Baselines: []string{"dial"}, Open: openLibrary,
	}}}
	establishTLS := run.Group{Name: "TCP library, TLS", Prepare: e.prepareEchoTLS, Arms: []run.Arm{
		e.dialTLSArm("dial", 100, nil), e.pooledTLSArm("tcppool", 100, nil),
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W1a/tls", Suite: "tcp", Metrics: libraryMetrics, Title: "TCP library: 100 times connect, shake hands (TLS 1.3) and close, or get and release",
			Note: "dial resumes no session, as the study's did not",
		},
		Baselines: []string{"dial"}, Open: openLibrary,
	}}}
	body := make([]byte, 1<<10)
	realisticTLS := run.Group{Name: "TCP library, TLS", Prepare: e.prepareEchoTLS, Arms: []run.Arm{
		e.dialTLSArm("dial", 1, body), e.pooledTLSArm("tcppool", 1, body),
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W1b/library-tls", Suite: "tcp", Metrics: libraryMetrics, Title: "TCP library: 1 KiB there and back over TLS 1.3, with a connection each time or a pooled one",
		},
		Baselines: []string{"dial"}, Open: openLibrary,
	}}}
	realistic := run.Group{Name: "TCP library", Prepare: e.prepareEcho, Arms: []run.Arm{
		e.dialArm("dial", 1, body), e.studyArm(1, body), e.pooledArm("tcppool", 1, body),
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W1b", Suite: "tcp", Metrics: libraryMetrics, Title: "TCP library: 1 KiB there and back, with a connection each time or a pooled one",
			Claim:   "222.9 → 14.8 µs, 5,189 → 360 B, 115 → 10 allocations (15 times)",
			Because: "client and server of the study were one process, so that its allocations are those of both",
		},
		Baselines: []string{"dial"}, Open: openLibrary,
	}}}
	return []run.Group{establish, establishTLS, realistic, realisticTLS}
}

// dialArm connects, exchanges body if there is one, and closes, n times.
func (e *Env) dialArm(name string, n int, body []byte) run.Arm {
	return libraryArm(name, func(context.Context) (library, error) {
		answer := make([]byte, len(body))
		return repeated(n, func(ctx context.Context) error {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", e.echo.Addr)
			if err != nil {
				return err
			}
			defer c.Close()
			return exchange(c, body, answer)
		}), nil
	})
}

// studyArm is dialArm with the study's pool.
func (e *Env) studyArm(n int, body []byte) run.Arm {
	return libraryArm("study", func(context.Context) (library, error) {
		p := &studyPool{conns: map[string][]*studyConn{}}
		answer := make([]byte, len(body))
		return repeated(n, func(context.Context) error {
			c, err := p.get(e.echo.Addr)
			if err != nil {
				return err
			}
			err = exchange(c, body, answer)
			p.release(c)
			return err
		}).pooling(p.opened, p.close), nil
	})
}

// floorArm is the cheapest possible pool: a mutex and a slice per address, without checks.
func (e *Env) floorArm(n int) run.Arm {
	return libraryArm("mutexslice", func(context.Context) (library, error) {
		addr := e.echo.Addr
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return library{}, err
		}
		var mu sync.Mutex
		idle := map[string][]net.Conn{addr: {c}}
		return repeated(n, func(context.Context) error {
			mu.Lock()
			list := idle[addr]
			c := list[len(list)-1]
			idle[addr] = list[:len(list)-1]
			mu.Unlock()
			mu.Lock()
			idle[addr] = append(idle[addr], c)
			mu.Unlock()
			return nil
		}).pooling(func() int64 { return 1 }, func() { _ = c.Close() }), nil
	})
}

// pooledArm is dialArm with tcppool and its defaults, which are the study's: 10 connections, idle for 5 minutes.
func (e *Env) pooledArm(name string, n int, body []byte) run.Arm {
	return pooledBy(tcppool.Config{}, name, n, body, func() string { return e.echo.Addr })
}

// pooledBy exchanges body (unless empty) on pooled connections, n times.
func pooledBy(cfg tcppool.Config, name string, n int, body []byte, addr func() string) run.Arm {
	return libraryArm(name, func(context.Context) (library, error) {
		d, err := tcppool.New(cfg)
		if err != nil {
			return library{}, err
		}
		answer := make([]byte, len(body))
		opened := func() (sum int64) {
			for _, s := range d.Stats() {
				sum += int64(s.Opened)
			}
			return sum
		}
		return repeated(n, func(ctx context.Context) error {
			c, err := d.Get(ctx, "tcp", addr())
			if err != nil {
				return err
			}
			if err := exchange(c, body, answer); err != nil {
				_ = c.Close()
				return err
			}
			c.Release()
			return nil
		}).pooling(opened, d.Close), nil
	})
}

func (e *Env) prepareEchoTLS(context.Context) error {
	return e.backend(&e.echoTLS, string(backend.EchoTLS))
}

// clientTLS is the configuration for TLS 1.3 to the echo backend.
func clientTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13} //nolint:gosec // the certificate is of this run
}

// dialTLSArm connects, does the handshake, exchanges body (unless empty) and closes, n times.
func (e *Env) dialTLSArm(name string, n int, body []byte) run.Arm {
	return libraryArm(name, func(context.Context) (library, error) {
		d := tls.Dialer{Config: clientTLS()}
		answer := make([]byte, len(body))
		return repeated(n, func(ctx context.Context) error {
			c, err := d.DialContext(ctx, "tcp", e.echoTLS.Addr)
			if err != nil {
				return err
			}
			defer c.Close()
			return exchange(c, body, answer)
		}), nil
	})
}

// pooledTLSArm is the same with tcppool, which does the handshake when it opens a connection.
func (e *Env) pooledTLSArm(name string, n int, body []byte) run.Arm {
	return pooledBy(tcppool.Config{TLS: clientTLS()}, name, n, body, func() string { return e.echoTLS.Addr })
}

// tcpToTLS is W1b through the proxy, with TLS to the backend.
func (e *Env) tcpToTLS() run.Group {
	target := func() string { return e.echoTLS.Addr }
	secure := func(g *peers.Gateway) { g.TLS = true }
	arms := append(e.gateways("tcp", target, secure), arm("gateway-warm", func() (*peers.Target, error) {
		return e.Starter.StartGateway(peers.Gateway{Engine: "auto", Protocol: "tcp", Target: target(), Warm: 64, TLS: true})
	}), arm("haproxy", func() (*peers.Target, error) {
		return e.Starter.StartHAProxy(peers.HAProxy{Mode: "tcp", Target: target(), Threads: e.Loops, TLS: true})
	}))
	return run.Group{Name: "TCP to TLS", Arms: arms, Prepare: e.prepareEchoTLS, Cases: []run.Case{{
		Info: result.Case{
			ID: "W1b/tls", Suite: "tcp", Conns: 16, Metrics: latencyMetrics,
			Title: "TCP, a connection for each 1 KiB there and back, 16 at a time, TLS to the backend",
			Note:  "-warm has TCP connections open already; the handshake comes with the client, after the PROXY header, and resumes an earlier session",
		},
		Baselines: proxyBaselines, Open: e.openLoad(load.PerConnection(load.Echo(1<<10)), 16, func() *peers.Backend { return e.echoTLS }),
	}}}
}

func exchange(c net.Conn, body, answer []byte) error {
	if len(body) == 0 {
		return nil
	}
	if _, err := c.Write(body); err != nil {
		return err
	}
	_, err := io.ReadFull(c, answer)
	return err
}

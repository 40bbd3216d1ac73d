package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/headpond/headpond/bench/internal/hist"
	"github.com/headpond/headpond/bench/internal/poll"
)

// Config says which requests to send, and to which server.
type Config struct {
	// Addr is the server, "127.0.0.1:port".
	Addr string
	// Conns is the number of connections, and so of concurrent operations. Default 1.
	Conns int
	// Threads is the number of generator threads that share the connections. Default: see Threads.
	Threads  int
	Workload Workload
	// Open connects and logs in; the default only connects. A Fresh workload does not use it.
	Open func(ctx context.Context) (net.Conn, error)
}

// Threads is the default number of generators: a quarter of the processors, at least one.
func Threads() int { return max(1, runtime.NumCPU()/4) }

// Client holds connections to one server. Its methods are for one goroutine at a time.
type Client struct {
	cfg     Config
	workers []*worker
}

// Result is the result of one run.
type Result struct {
	// Ops counts answers within the run. All also counts answers that came while the run ended; the server's cost is
	// divided by All.
	Ops, All int64
	// Reconnects counts answers after which the server closed the connection.
	Reconnects int64
	// Errors counts failed operations; Err is the first.
	Errors  int64
	Err     error
	Elapsed time.Duration
	Latency hist.Histogram
}

// Throughput is operations per second.
func (r Result) Throughput() float64 { return float64(r.Ops) / r.Elapsed.Seconds() }

// Open connects. The connections stay open from run to run.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	cfg.Conns = max(cfg.Conns, 1)
	if cfg.Threads <= 0 {
		cfg.Threads = Threads()
	}
	cfg.Threads = min(cfg.Threads, cfg.Conns)
	c := &Client{cfg: cfg}
	for i := range cfg.Threads {
		w, err := newWorker(cfg, i)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.workers = append(c.workers, w)
		for range cfg.Conns*(i+1)/cfg.Threads - cfg.Conns*i/cfg.Threads {
			w.conns = append(w.conns, &conn{fd: -1})
		}
	}
	return c, c.connect(ctx)
}

// connect opens the connections that are not open.
func (c *Client) connect(ctx context.Context) error {
	if c.cfg.Workload.Fresh {
		return nil
	}
	for _, w := range c.workers {
		for _, cn := range w.conns {
			if cn.fd >= 0 {
				continue
			}
			nc, err := c.open(ctx)
			if err != nil {
				return fmt.Errorf("connect to %s: %w", c.cfg.Addr, err)
			}
			fd, err := poll.Detach(nc)
			if err != nil {
				return err
			}
			if err := w.adopt(cn, fd); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Client) open(ctx context.Context) (net.Conn, error) {
	if c.cfg.Open != nil {
		return c.cfg.Open(ctx)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", c.cfg.Addr)
}

// Run sends requests for d: rate operations per second in all, or with rate 0 as fast as answers come. It returns early
// when ctx ends.
func (c *Client) Run(ctx context.Context, d time.Duration, rate float64) (Result, error) {
	if err := c.connect(ctx); err != nil {
		return Result{}, err
	}
	var wg sync.WaitGroup
	results := make([]Result, len(c.workers))
	errs := make([]error, len(c.workers))
	for i, w := range c.workers {
		share := rate * float64(len(w.conns)) / float64(c.cfg.Conns)
		wg.Go(func() {
			// Never unlocked: this thread's timer slack was changed, so the runtime must end it with the goroutine.
			runtime.LockOSThread()
			poll.Precise()
			results[i], errs[i] = w.run(ctx, d, share)
		})
	}
	wg.Wait()
	all := results[0]
	for _, r := range results[1:] {
		all.Ops += r.Ops
		all.All += r.All
		all.Reconnects += r.Reconnects
		all.Errors += r.Errors
		all.Err = errors.Join(all.Err, r.Err)
		all.Elapsed = max(all.Elapsed, r.Elapsed)
		all.Latency.Merge(&r.Latency)
	}
	return all, errors.Join(append(errs, ctx.Err())...)
}

// Close closes the connections.
func (c *Client) Close() error {
	var err error
	for _, w := range c.workers {
		for _, cn := range w.conns {
			if cn.fd >= 0 {
				_ = syscall.Close(cn.fd)
				cn.fd = -1
			}
		}
		err = errors.Join(err, w.poll.Close())
	}
	return err
}

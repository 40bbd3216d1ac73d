package tcpproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

func TestBackendDownAndBack(t *testing.T) {
	addr := conntest.FreeAddress(t)
	var log conntest.Log
	p, proxy := start(t, []string{addr}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.Listener.Logger = log.Logger()
	})
	from := conntest.WantRefused(t, proxy)
	if n := p.Stats().Errors[listener.ReasonUpstreamUnavailable]; n != 1 {
		t.Errorf("counted %d, want 1 upstream_unavailable", n)
	}
	line := log.String()
	for _, part := range []string{from, "upstream=backends", addr, "refused"} {
		if !strings.Contains(line, part) {
			t.Errorf("the log lacks %q: %s", part, line)
		}
	}
	conntest.ServeAt(t, addr, conntest.Echo)
	conntest.Eventually(t, "clients get through once the pool's back-off is over", func() bool {
		return conntest.RoundTrip(proxy, "hello") == nil
	})
}

func TestOtherEndpointWhenOneIsDown(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{conntest.FreeAddress(t), backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}, nil)
	for range 10 {
		conntest.Exchange(t, conntest.Dial(t, addr), "hello")
	}
	if errs := p.Stats().Errors; len(errs) > 0 {
		t.Errorf("errors: %v, want none", errs)
	}
}

// TestBanner: a server speaks first, and data that arrives on a waiting connection goes to its
// client.
func TestBanner(t *testing.T) {
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		io.WriteString(c, "220 ready\r\n")
		conntest.Echo(c)
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MinIdle: 2}}}, nil)
	for range 5 {
		c := conntest.Dial(t, addr)
		conntest.Want(t, c, "220 ready\r\n")
		conntest.Exchange(t, c, "HELO")
		c.Close()
	}
}

// TestStaleWarmConnection has a server that closes connections which wait for a client, and then no longer: no client
// gets a dead one. If the server speaks first, as with SMTP and MySQL, what it has said on a dead one hides its end.
func TestStaleWarmConnection(t *testing.T) {
	for name, banner := range map[string]string{"silent": "", "with a banner": "220 ready\r\n"} {
		t.Run(name, func(t *testing.T) {
			const warm = 4
			drop := make(chan struct{})
			closed := make(chan struct{}, warm)
			var accepted atomic.Int32
			backend := conntest.Serve(t, func(c *net.TCPConn) {
				io.WriteString(c, banner)
				if accepted.Add(1) > warm {
					conntest.Echo(c)
					return
				}
				<-drop
				c.Close()
				closed <- struct{}{}
			})
			var up *upstream.Upstream[net.Conn]
			_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MinIdle: warm}}},
				func(c *tcpproxy.Config) { up = c.Upstream })
			for up.Status().Endpoints[0].Pool.Idle < warm {
				runtime.Gosched()
			}
			close(drop)
			for range warm {
				<-closed
			}
			enginetest.Poll(t)
			for range 2 * warm {
				c := conntest.Dial(t, addr)
				conntest.Want(t, c, banner)
				conntest.Exchange(t, c, "alive?")
			}
		})
	}
}

// TestServerThatAnswersAtOnce: a server that sends everything at once and closes, as for the daytime protocol, works
// too.
func TestServerThatAnswersAtOnce(t *testing.T) {
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		io.WriteString(c, "22 NOV 2026\r\n")
		c.Close()
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MinIdle: 2}}}, nil)
	for range 6 {
		c := conntest.Dial(t, addr)
		conntest.Want(t, c, "22 NOV 2026\r\n")
		conntest.WantGone(t, c)
	}
}

func TestWarmConnectionsServeOneClientEach(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		mu.Lock()
		defer mu.Unlock()
		if len(b) > 0 {
			seen[c.RemoteAddr().String()] += len(b)
		}
		io.WriteString(c, "done")
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MinIdle: 3}}}, nil)
	for range 12 {
		c := conntest.Dial(t, addr)
		io.WriteString(c, "x")
		c.CloseWrite()
		conntest.Want(t, c, "done")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 12 {
		t.Errorf("12 clients were served over %d connections", len(seen))
	}
}

func TestIdleTimeout(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.IdleTimeout = 50 * time.Millisecond
	})
	conntest.WantRefused(t, addr)
	p.Close()
	if n := p.Stats().Errors[listener.ReasonTimeout]; n != 1 {
		t.Errorf("errors: %v, want one timeout", p.Stats().Errors)
	}
}

func TestQueue(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.Listener.MaxConns, c.Listener.MaxQueue, c.Listener.QueueTimeout = 1, 1, conntest.Patience
	})
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "first")
	a, b := conntest.Dial(t, addr), conntest.Dial(t, addr) // one waits, one finds the queue full
	gone := make(chan int, 2)
	for i, c := range []*net.TCPConn{a, b} {
		go func() {
			io.WriteString(c, "queued")
			_, err := io.ReadFull(c, make([]byte, 6))
			if err != nil {
				i = -1
			}
			gone <- i
		}()
	}
	if i := <-gone; i != -1 {
		t.Fatalf("client %d was served although there is no place", i)
	}
	first.Close()
	if i := <-gone; i == -1 {
		t.Error("the client in the queue was not served")
	}
	if st := p.Stats(); st.Rejected != 1 || st.Errors[listener.ReasonRejected] != 1 {
		t.Errorf("rejected %d, errors %v, want 1", st.Rejected, st.Errors)
	}
}

func TestPoolExhausted(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend},
		tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, MaxWaiters: -1}}}, nil)
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "first")
	conntest.WantRefused(t, addr)
	if n := p.Stats().Errors[listener.ReasonPoolExhausted]; n != 1 {
		t.Errorf("errors: %v, want one pool_exhausted", p.Stats().Errors)
	}
	conntest.Exchange(t, first, "undisturbed")
}

func TestDrain(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "before")
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(context.Background()) }()
	for !p.Stats().Draining {
		conntest.Exchange(t, c, "while it begins")
	}
	conntest.Exchange(t, c, "running streams continue")
	c.CloseWrite()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

func TestDrainEnds(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "before")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain: %v, want context.Canceled", err)
	}
	conntest.WantGone(t, c)
}

func TestUpdateKeepsStreams(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	other := conntest.Serve(t, func(c *net.TCPConn) { io.WriteString(c, "other") })
	up, err := tcpproxy.NewUpstream("other", tcpproxy.UpstreamOptions{Settings: upstream.Settings{Endpoints: upstream.Endpoints(other)}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "before")
	cfg := tcpproxy.Config{Listener: listener.Config{Name: "test", Logger: quiet}, Upstream: up}
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	conntest.Exchange(t, c, "after")
	conntest.Want(t, conntest.Dial(t, addr), "other")
	cfg.SendProxy = 3
	if err := p.Update(cfg); !errors.Is(err, tcpproxy.ErrConfig) {
		t.Errorf("Update with SendProxy 3: %v, want ErrConfig", err)
	}
}

func TestUnixSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(c, c)
	})
	_, addr := start(t, []string{"unix:" + path}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, strings.Repeat("0123456789abcdef", 1<<13))
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("after the end: %q, %v", b, err)
	}
}

// TestNoHalfClose has upstream connections that cannot be half closed: the end
// of one direction ends the session, normally.
func TestNoHalfClose(t *testing.T) {
	up, err := upstream.New(upstream.Config[net.Conn]{
		Name: "pipes", Settings: upstream.Settings{Endpoints: upstream.Endpoints("pipe:1")}, Logger: quiet,
		Open: func(context.Context, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { defer far.Close(); io.Copy(far, far) }()
			return fiber.StreamOf(near), nil
		},
		Close: func(c net.Conn) { c.Close() },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	p, addr := start(t, nil, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.Upstream = up })
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "through a pipe")
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("after the end: %q, %v", b, err)
	}
	if err := p.Drain(t.Context()); err != nil || len(p.Stats().Errors) > 0 {
		t.Errorf("%v, errors %v", err, p.Stats().Errors)
	}
}

// TestAccessLog wants one line for each session.
func TestAccessLog(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	var log conntest.Log
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.Listener.Logger = log.Logger()
		c.Listener.AccessLog = true
	})
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "12345")
	c.CloseWrite()
	if err := p.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	line := log.String()
	for _, part := range []string{"msg=access", "listener=test", "client=" + c.LocalAddr().String(),
		"endpoint=" + backend, "bytes_in=5", "bytes_out=5"} {
		if !strings.Contains(line, part) {
			t.Errorf("the line lacks %q: %s", part, line)
		}
	}
	if strings.Count(line, "\n") != 1 {
		t.Errorf("want one line: %s", line)
	}
}

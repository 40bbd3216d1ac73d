package tcpproxy_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// TestCutOffIsAReset: a stream that a drain cuts off must not look complete.
func TestCutOffIsAReset(t *testing.T) {
	for range 20 {
		release := make(chan struct{})
		backend := conntest.Serve(t, func(c *net.TCPConn) {
			io.WriteString(c, "the first half")
			<-release
		})
		p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
		c := conntest.Dial(t, addr)
		conntest.Want(t, c, "the first half")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		p.Drain(ctx)
		close(release)
		if err := conntest.WantGone(t, c); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the client sees %v, want a reset", err)
		}
		if e := p.Stats().Errors; e[listener.ReasonDrained] != 1 || len(e) != 1 {
			t.Fatalf("errors: %v, want one drained", e)
		}
	}
}

// TestDrainWhileAcquiring: the upstream is not to blame for a drain.
func TestDrainWhileAcquiring(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	var up *upstream.Upstream[net.Conn]
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1}}}, func(c *tcpproxy.Config) { up = c.Upstream })
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "first")
	c := conntest.Dial(t, addr)
	for up.Status().Endpoints[0].Pool.Waiting < 1 { // one that has only been accepted is none of the session's
		conntest.Exchange(t, first, "until the second waits")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.Drain(ctx)
	conntest.WantGone(t, c)
	if e := p.Stats().Errors; e[listener.ReasonDrained] != 2 || len(e) != 1 {
		t.Errorf("errors: %v, want two drained", e)
	}
}

// TestClientLeavesWhileAcquiring: a client that has gone loses its place in the pool's queue; one
// that has only closed its sending side does not.
func TestClientLeavesWhileAcquiring(t *testing.T) {
	t.Cleanup(tcpproxy.SetLookInterval(time.Millisecond))
	leave := map[string]func(c *net.TCPConn){
		"reset":                    func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"reset with bytes unread":  func(c *net.TCPConn) { io.WriteString(c, "x"); c.SetLinger(0); c.Close() },
		"closed and nothing sent":  func(c *net.TCPConn) { c.Close() },
		"reset after a half-close": func(c *net.TCPConn) { io.WriteString(c, "x"); c.CloseWrite(); c.SetLinger(0); c.Close() },
	}
	for name, leave := range leave {
		t.Run(name, func(t *testing.T) {
			lines := make(chan string, 8)
			backend := conntest.Serve(t, conntest.Echo)
			p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1}}},
				func(c *tcpproxy.Config) {
					c.ConnectTimeout = conntest.Patience
					c.Listener.Logger = slog.New(slog.NewTextHandler(lineWriter(lines), nil))
				})
			first := conntest.Dial(t, addr)
			conntest.Exchange(t, first, "first")
			half := conntest.Dial(t, addr)
			io.WriteString(half, "question")
			half.CloseWrite()
			leaving := conntest.Dial(t, addr)
			conntest.Eventually(t, "it is accepted", func() bool { return p.Stats().Accepted == 3 })
			leave(leaving)
			if line := <-lines; !strings.Contains(line, "the client left while it waited") {
				t.Error(line)
			}
			if e := p.Stats().Errors; e[listener.ReasonClientGone] != 1 || len(e) != 1 {
				t.Errorf("errors: %v, want one client_gone", e)
			}
			first.Close()
			conntest.Want(t, half, "question")
		})
	}
}

// TestHalfClosedBehindABalancer: the engine may have received what a client sent after its PROXY header, so that only
// its end is left in the socket. It waits for the answer all the same.
func TestHalfClosedBehindABalancer(t *testing.T) {
	t.Cleanup(tcpproxy.SetLookInterval(time.Millisecond))
	lines, opening, goOn := make(chan string, 8), make(chan struct{}), make(chan struct{})
	backend := conntest.Serve(t, conntest.Echo)
	up, err := upstream.New(upstream.Config[net.Conn]{
		Name: "slow", Settings: upstream.Settings{Endpoints: upstream.Endpoints(backend)}, Logger: quiet,
		Open: func(ctx context.Context, endpoint string) (net.Conn, error) {
			opening <- struct{}{}
			<-goOn
			return enginetest.Dial(ctx, endpoint)
		},
		Close: func(c net.Conn) { _ = c.Close() },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.ConnectTimeout, c.Upstream, c.Listener.AcceptProxy = conntest.Patience, up, true
		c.Listener.Logger = slog.New(slog.NewTextHandler(lineWriter(lines), nil))
	})
	come := func() *net.TCPConn {
		c := conntest.Dial(t, addr)
		io.WriteString(c, "PROXY TCP4 192.0.2.7 198.51.100.1 5555 443\r\n")
		<-opening
		return c
	}
	half := come()
	io.WriteString(half, "question")
	half.CloseWrite()
	gone := come()
	gone.SetLinger(0)
	gone.Close()
	if line := <-lines; !strings.Contains(line, "the client left while it waited") {
		t.Error(line)
	}
	close(goOn)
	conntest.Want(t, half, "question")
}

// TestClientThatCannotBeAsked waits: nothing shows that it has gone.
func TestClientThatCannotBeAsked(t *testing.T) {
	t.Cleanup(tcpproxy.SetLookInterval(time.Millisecond))
	lines := make(chan string, 8)
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1}}}, func(c *tcpproxy.Config) {
		c.ConnectTimeout = conntest.Patience
		c.Listener.Logger = slog.New(slog.NewTextHandler(lineWriter(lines), nil))
	})
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "first")
	client, server := net.Pipe()
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(conntest.Patience))
	pipes := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	pipes.conns <- server
	served := make(chan error, 1)
	go func() { served <- p.Serve(pipes) }()
	for p.Stats().Active < 2 {
		conntest.Exchange(t, first, "until the pipe is in")
	}
	leaving := conntest.Dial(t, addr)
	conntest.Eventually(t, "it is accepted", func() bool { return p.Stats().Accepted == 3 })
	leaving.Close()
	if line := <-lines; !strings.Contains(line, "the client left while it waited") || strings.Contains(line, "client=pipe") {
		t.Error(line)
	}
	first.Close()
	conntest.Exchange(t, client, "second")
	p.Close()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// pipeListener accepts the connections put into it.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

func (*pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) { w <- string(p); return len(p), nil }

// TestClientGoneWithBothDirectionsFull: the server reads nothing before it has written all, and the
// client has gone. The client's last data, which is never read, must not keep the session for the
// whole idle time-out.
func TestClientGoneWithBothDirectionsFull(t *testing.T) {
	t.Cleanup(tcpproxy.SetRemainderTimeout(time.Millisecond))
	ended := make(chan error, 1)
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		_, err := c.Write(make([]byte, 256<<20))
		ended <- err
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	conntest.Want(t, c, "\x00")
	c.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := io.Copy(c, zeros{}); !errors.Is(err, os.ErrDeadlineExceeded) { // until every buffer is full
		t.Fatal(err)
	}
	c.Close()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the server has written all of it to a client that is gone")
		}
	case <-time.After(conntest.Patience):
		t.Error("the session stays although its client has left")
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

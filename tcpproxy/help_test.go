package tcpproxy_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

func TestMain(m *testing.M) { leaktest.Main(enginetest.Runner(m)) }

// patience ends a test that hangs; nothing is measured with it.
const patience = 60 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// server is a TCP server that runs serve on every connection.
type server struct {
	addr string
	l    net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	open []net.Conn
}

func serve(t *testing.T, addr string, handle func(*net.TCPConn)) *server {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String(), l: l}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open = append(s.open, c)
			s.mu.Unlock()
			s.wg.Go(func() { defer c.Close(); handle(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(s.stop)
	return s
}

// stop closes the listener and every connection.
func (s *server) stop() {
	s.l.Close()
	s.mu.Lock()
	for _, c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func echo(c *net.TCPConn) {
	io.Copy(c, c)
	c.CloseWrite()
}

// start runs a proxy before endpoints; change may adapt its configuration.
func start(t *testing.T, endpoints []string, o tcpproxy.UpstreamOptions, change func(*tcpproxy.Config)) (p *tcpproxy.Proxy, addr string) {
	t.Helper()
	o.Logger, o.Dial, o.Go = quiet, enginetest.Dial, fiber.Go
	up, err := tcpproxy.NewUpstream("backends", endpoints, o)
	if err != nil {
		t.Fatal(err)
	}
	cfg := tcpproxy.Config{Listener: listener.Config{Name: "test", Protocol: "tcp", Logger: quiet}, Upstream: up}
	if change != nil {
		change(&cfg)
	}
	p, err = tcpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if l, err = enginetest.Listener(l); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	t.Cleanup(func() {
		p.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := up.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
	return p, l.Addr().String()
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// ask writes request and wants the very same back.
func ask(t *testing.T, c net.Conn, request string) {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	want(t, c, request)
}

func want(t *testing.T, c net.Conn, text string) {
	t.Helper()
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(c, buf); err != nil {
		t.Fatalf("read: %v, want %q", err, text)
	}
	if string(buf) != text {
		t.Fatalf("got %q, want %q", buf, text)
	}
}

// wantGone wants the connection to be closed or reset, not to time out.
func wantGone(t *testing.T, c net.Conn) error {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if err == nil {
		t.Fatalf("read %d bytes, want the connection to be gone", n)
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		t.Fatal("the connection stays open")
	}
	return err
}

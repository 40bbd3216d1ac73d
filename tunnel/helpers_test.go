package tunnel_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tunnel"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	bg  = context.Background()
	key = []byte("a key of these two gateways")
)

// patience is for what takes milliseconds on an idle machine.
const patience = time.Minute

// soon is a context that ends a test that would hang.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(bg, patience)
	t.Cleanup(cancel)
	return ctx
}

// logged is a log that a test reads.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// line returns the first line that has all of the words.
func (l *logged) line(words ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
next:
	for line := range strings.Lines(l.buf.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		return line
	}
	return ""
}

// ends are the two ends of a tunnel.
type ends struct {
	server    *tunnel.Server
	client    *tunnel.Client
	address   string
	serverLog *logged
	clientLog *logged
	sockets   *sockets
}

// options change how a tunnel is set up.
type options struct {
	server func(*tunnel.ServerConfig)
	client func(*tunnel.ClientConfig)
}

func start(t testing.TB, o options) *ends {
	t.Helper()
	e := &ends{serverLog: &logged{}, clientLog: &logged{}, sockets: &sockets{}}
	sc := tunnel.ServerConfig{
		Listener: listener.Config{Name: "peers", Protocol: "tunnel", Logger: e.serverLog.logger()},
		Config:   tunnel.Config{PSK: key},
	}
	if o.server != nil {
		o.server(&sc)
	}
	var err error
	if e.server, err = tunnel.NewServer(sc); err != nil {
		t.Fatal(err)
	}
	e.address = serve(t, e.server)
	cc := tunnel.ClientConfig{
		Tunnel: "far", Address: e.address, Dial: e.sockets.dial,
		Config: tunnel.Config{Name: "branch", PSK: key, Logger: e.clientLog.logger()},
	}
	if o.client != nil {
		o.client(&cc)
	}
	if e.client, err = tunnel.NewClient(cc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.client.Close()
		e.server.Close()
		if t.Failed() {
			t.Logf("client's log:\n%s\nserver's log:\n%s", e.clientLog, e.serverLog)
		}
	})
	return e
}

// serve serves on a free port and returns the address.
func serve(t testing.TB, s *tunnel.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// allow is a server's policy.
func allow(rules ...string) func(*tunnel.ServerConfig) {
	return func(c *tunnel.ServerConfig) { c.Policy = policy(rules...) }
}

func policy(rules ...string) (p tunnel.Policy) {
	for _, r := range rules {
		p.Allow = append(p.Allow, tunnel.MustParseRule(r))
	}
	return p
}

// sockets dials and can cut what it has dialled.
type sockets struct {
	mu   sync.Mutex
	all  []net.Conn
	dead bool // dialling fails
}

func (s *sockets) dial(ctx context.Context, address string) (net.Conn, error) {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if dead {
		return nil, fmt.Errorf("no way to %s", address)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		s.mu.Lock()
		s.all = append(s.all, c)
		s.mu.Unlock()
	}
	return c, err
}

// cut resets every socket there is.
func (s *sockets) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	s.all = nil
}

// block makes dialling fail, or work again.
func (s *sockets) block(dead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = dead
}

// backend serves each connection with handle, on a free port.
func backend(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	return l.Addr().String()
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func echoServer(t testing.TB) string { return backend(t, echo) }

// exchange sends a line and wants it back.
func exchange(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("write: %v", err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got, err, text)
	}
}

// eventually polls until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	ctx := soon(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", patience, what)
		case <-tick.C:
		}
	}
}

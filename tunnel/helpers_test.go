package tunnel_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tunnel"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	bg  = context.Background()
	key = []byte("a key of these two gateways")
)

// soon is a context that ends a test that would hang.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(bg, conntest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// ends are the two ends of a tunnel.
type ends struct {
	server    *tunnel.Server
	client    *tunnel.Client
	address   string
	serverLog *conntest.Log
	clientLog *conntest.Log
	sockets   *sockets
}

// options change how a tunnel is set up.
type options struct {
	server func(*tunnel.ServerConfig)
	client func(*tunnel.ClientConfig)
}

func start(t testing.TB, o options) *ends {
	t.Helper()
	e := &ends{serverLog: &conntest.Log{}, clientLog: &conntest.Log{}, sockets: &sockets{}}
	sc := tunnel.ServerConfig{
		Listener: listener.Config{Name: "peers", Protocol: "tunnel", Logger: e.serverLog.Logger()},
		Config:   tunnel.Config{PSK: key},
	}
	if o.server != nil {
		o.server(&sc)
	}
	var err error
	if e.server, err = tunnel.NewServer(sc); err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, e.server, func() { e.server.Tunnel() })
	e.address = serve(t, e.server)
	cc := tunnel.ClientConfig{
		Tunnel: "far", Address: e.address, Dial: e.sockets.dial,
		Config: tunnel.Config{Name: "branch", PSK: key, Logger: e.clientLog.Logger()},
	}
	if o.client != nil {
		o.client(&cc)
	}
	if e.client, err = tunnel.NewClient(cc); err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, e.client, func() { e.client.Stats() })
	t.Cleanup(func() {
		e.client.Close()
		e.server.Close()
		if t.Failed() {
			t.Logf("client's log:\n%s\nserver's log:\n%s", e.clientLog, e.serverLog)
		}
	})
	return e
}

// serve serves on a free port, until s is closed, and returns the address.
func serve(t testing.TB, s *tunnel.Server) string {
	t.Helper()
	return conntest.Run(t, conntest.Listen(t), s.Serve, func() {})
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

// sockets dials and can cut its connections.
type sockets struct {
	mu   sync.Mutex
	all  []net.Conn
	dead bool   // dialling fails
	only string // to this address
}

// frozen is a socket that brings nothing any more once it is stopped.
type frozen struct {
	*net.TCPConn
	stopped chan struct{}
	once    sync.Once
}

func (f *frozen) Read(p []byte) (int, error) {
	n, err := f.TCPConn.Read(p)
	select {
	case <-f.stopped:
		for err == nil { // until it is closed
			_, err = f.TCPConn.Read(p)
		}
		return 0, err
	default:
		return n, err
	}
}

// freeze makes every socket there is bring nothing.
func (s *sockets) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		f := c.(*frozen)
		f.once.Do(func() { close(f.stopped) })
	}
}

// blockOnly makes dialling the address fail; "": none.
func (s *sockets) blockOnly(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.only = address
}

func (s *sockets) dial(ctx context.Context, address string) (net.Conn, error) {
	s.mu.Lock()
	dead := s.dead || s.only == address
	s.mu.Unlock()
	if dead {
		return nil, fmt.Errorf("no way to %s", address)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	f := &frozen{TCPConn: c.(*net.TCPConn), stopped: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, f)
	return f, nil
}

// cut resets every socket there is.
func (s *sockets) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		_ = c.(*frozen).SetLinger(0)
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

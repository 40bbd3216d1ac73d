package tcpproxy_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) { leaktest.Main(enginetest.Runner(m)) }

var quiet = slog.New(slog.DiscardHandler)

// start runs a proxy before endpoints; change may adapt its configuration.
func start(t *testing.T, endpoints []string, o tcpproxy.UpstreamOptions, change func(*tcpproxy.Config)) (p *tcpproxy.Proxy, addr string) {
	t.Helper()
	o.Endpoints = upstream.Endpoints(endpoints...)
	if o.Logger, o.Go = quiet, fiber.Go; o.Dial == nil {
		o.Dial = enginetest.Dial
	}
	o.Limits.OpenTimeout = cmp.Or(o.Limits.OpenTimeout, conntest.Patience) // a busy machine may need the default for a connection
	up, err := tcpproxy.NewUpstream("backends", o)
	if err != nil {
		t.Fatal(err)
	}
	cfg := tcpproxy.Config{Listener: listener.Config{Name: "test", Protocol: "tcp", Logger: quiet}, Upstream: up, ConnectTimeout: conntest.Patience}
	if change != nil {
		change(&cfg)
	}
	p, err = tcpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, p, func() { up.Status() })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
		defer cancel()
		if err := up.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
	return p, conntest.Run(t, enginetest.Listen(t), p.Serve, p.Close)
}

// connect is conntest.Dial to a proxy with a short time-out. The reset may come before the test's process sees the connection: then
// there is none.
func connect(t *testing.T, addr string) (c *net.TCPConn, ok bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if wasReset(err) {
		return nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(conntest.Patience))
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn), true
}

// wasReset reports whether one of the errors of a connection says so: the socket says it once, to whoever asks first.
func wasReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ENOTCONN)
}

package tcpproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// dialLocal connects from an address of this machine, which needs no capability.
func dialLocal(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
	return d.DialContext(ctx, "tcp", endpoint)
}

// tellAddress is a server that says which address its client has.
func tellAddress(c *net.TCPConn) {
	io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String()+"\n")
	conntest.Echo(c)
}

// acceptProxy believes the PROXY headers of this machine.
func acceptProxy(c *tcpproxy.Config) {
	c.Listener.AcceptProxy, c.Listener.TrustedProxies = true, networks("127.0.0.0/8")
}

// TestTransparent: each server's connection comes from the address of its client, and serves no other one. An endpoint that refuses
// connections is passed over.
func TestTransparent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("only 127.0.0.1 is an address of this machine")
	}
	gone := conntest.Listen(t)
	refuses := gone.Addr().String()
	_ = gone.Close()
	var up *upstream.Upstream[net.Conn]
	_, addr := start(t, []string{refuses, conntest.Serve(t, tellAddress)}, tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Balance: upstream.First}, DialFrom: dialLocal,
	}, func(c *tcpproxy.Config) { acceptProxy(c); up = c.Upstream })
	clients := []string{"127.0.0.1", "127.0.0.1"}
	if runtime.GOOS == "linux" {
		clients = append(clients, "127.0.0.7", "127.9.9.9", "127.0.0.7")
	}
	for _, client := range clients {
		c := as(t, addr, client)
		conntest.Want(t, c, client+"\n")
		conntest.Exchange(t, c, "hello")
		_ = c.Close()
	}
	conntest.Eventually(t, "no lease is out", func() bool { return up.Status().Endpoints[1].Pool.InUse == 0 })
	if s := up.Status().Endpoints; s[0].Failures == 0 || s[1].Failures > 0 || s[1].Pool.Reused > 0 {
		t.Errorf("%+v", s)
	}
}

// TestTransparentBlamesNoEndpoint: a failure that may be due to the client's address does not count against the endpoint, and a
// client without an address gets no connection.
func TestTransparentBlamesNoEndpoint(t *testing.T) {
	var up *upstream.Upstream[net.Conn]
	var dials atomic.Int32
	p, addr := start(t, []string{conntest.Serve(t, tellAddress)}, tcpproxy.UpstreamOptions{
		DialFrom: func(context.Context, netip.Addr, string) (net.Conn, error) {
			dials.Add(1)
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EADDRNOTAVAIL}
		},
	}, func(c *tcpproxy.Config) { acceptProxy(c); up = c.Upstream })
	conntest.WantGone(t, as(t, addr, "0.0.0.0"))
	if n := dials.Load(); n > 0 {
		t.Errorf("%d dials from no address", n)
	}
	conntest.WantGone(t, as(t, addr, "192.0.2.9"))
	conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
	if s := up.Status().Endpoints[0]; s.Failures > 0 || s.Pool.InUse > 0 || dials.Load() == 0 {
		t.Errorf("after %d attempts: %+v", dials.Load(), s)
	}
	if n := p.Stats().Errors[listener.ReasonUpstreamUnavailable]; n != 2 {
		t.Errorf("errors: %v", p.Stats().Errors)
	}
}

// TestTransparentTriesWithoutClient: an endpoint that was ejected comes back when it accepts connections.
func TestTransparentTriesWithoutClient(t *testing.T) {
	gone := conntest.Listen(t)
	endpoint := gone.Addr().String()
	_ = gone.Close()
	var up *upstream.Upstream[net.Conn]
	_, addr := start(t, []string{endpoint}, tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Ejection: upstream.Ejection{Failures: 1, Base: 1, Max: 1e6}}, DialFrom: dialLocal,
	}, func(c *tcpproxy.Config) { up = c.Upstream })
	if c, ok := connect(t, addr); ok {
		conntest.WantGone(t, c)
	}
	conntest.Eventually(t, "the endpoint is ejected", func() bool { return up.Status().Endpoints[0].Ejected })
	_, _ = conntest.ServeAt(t, endpoint, tellAddress)
	conntest.Eventually(t, "the endpoint is back", func() bool { return !up.Status().Endpoints[0].Ejected })
	conntest.Want(t, conntest.Dial(t, addr), "127.0.0.1\n")
}

// TestTransparentMoves: a session whose endpoint breaks off before its first byte continues at another one, as its client.
func TestTransparentMoves(t *testing.T) {
	breaks := conntest.Serve(t, func(c *net.TCPConn) { _ = c.SetLinger(0) })
	_, addr := start(t, []string{breaks, conntest.Serve(t, tellAddress)}, tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Balance: upstream.First}, DialFrom: dialLocal,
	}, nil)
	conntest.Want(t, conntest.Dial(t, addr), "127.0.0.1\n")
}

// TestTransparentEndpointRemoved: a connection to an endpoint that is removed while it is being opened is closed, and the session
// continues with another one.
func TestTransparentEndpointRemoved(t *testing.T) {
	dialling, release, closed := make(chan struct{}, 1), make(chan struct{}), make(chan struct{}, 1)
	first := conntest.Serve(t, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		closed <- struct{}{}
	})
	second := conntest.Serve(t, tellAddress)
	var up *upstream.Upstream[net.Conn]
	settings := upstream.Settings{Balance: upstream.First, OnRemoved: upstream.CloseRemoved}
	_, addr := start(t, []string{first, second}, tcpproxy.UpstreamOptions{
		Settings: settings,
		DialFrom: func(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error) {
			if endpoint == first {
				dialling <- struct{}{}
				fiber.Block(func() { <-release })
			}
			return dialLocal(ctx, from, endpoint)
		},
	}, func(c *tcpproxy.Config) { up = c.Upstream })
	c := conntest.Dial(t, addr)
	<-dialling
	settings.Endpoints, settings.Limits = upstream.Endpoints(second), tcpproxy.WarmLimits(pool.Limits{})
	if err := up.Update(settings); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the endpoint is removed", func() bool { return up.Status().Endpoints[0].Address == second || up.Status().Endpoints[0].Removed })
	close(release)
	conntest.Want(t, c, "127.0.0.1\n")
	<-closed
}

func TestTransparentKeepsNothingReady(t *testing.T) {
	for _, l := range []pool.Limits{{MinIdle: 1}, {MaxWarm: 1}} {
		_, err := tcpproxy.NewUpstream("u", tcpproxy.UpstreamOptions{
			Settings: upstream.Settings{Endpoints: upstream.Endpoints("127.0.0.1:1"), Limits: l}, DialFrom: dialLocal,
		})
		if !errors.Is(err, tcpproxy.ErrConfig) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

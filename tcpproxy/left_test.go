package tcpproxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// TestEndpointsThatBreakOffFail: an endpoint that resets a connection, or ends its stream, in place of an answer to a ClientHello has
// failed, and each client that leaves it is counted.
func TestEndpointsThatBreakOffFail(t *testing.T) {
	hello := helloOf(t, "a.test")
	for name, breaks := range map[string]func(*net.TCPConn){"reset": resets, "end": ends} {
		t.Run(name, func(t *testing.T) {
			broken, good := conntest.Serve(t, after(len(hello), breaks)), conntest.Serve(t, conntest.Echo)
			o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, Ejection: upstream.Ejection{Failures: 2, Base: time.Hour, Max: time.Hour}}}
			var up *upstream.Upstream[net.Conn]
			p, addr := start(t, []string{broken, good}, o, func(c *tcpproxy.Config) { up, c.ConnectTimeout = c.Upstream, conntest.Patience })
			for range 3 {
				client := conntest.Dial(t, addr)
				if _, err := client.Write(hello); err != nil {
					t.Fatal(err)
				}
				conntest.Want(t, client, string(hello))
			}
			if s := p.Stats(); s.Moved != 2 || len(s.Errors) > 0 {
				t.Errorf("%d sessions have moved, errors %v; want the 2 before the ejection, and none", s.Moved, s.Errors)
			}
			if e := up.Status().Endpoints[0]; !e.Ejected {
				t.Errorf("the endpoint that breaks off: %+v", e)
			}
		})
	}
}

// TestOnlyEndpointThatEndsFails, also where no session can move.
func TestOnlyEndpointThatEndsFails(t *testing.T) {
	hello := helloOf(t, "a.test")
	broken, refuses := conntest.Serve(t, after(len(hello), ends)), conntest.FreeAddress(t)
	o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, Ejection: upstream.Ejection{Failures: 1000, Base: time.Hour, Max: time.Hour}}}
	var up *upstream.Upstream[net.Conn]
	p, addr := start(t, []string{broken, refuses}, o, func(c *tcpproxy.Config) { up, c.ConnectTimeout = c.Upstream, conntest.Patience })
	p.SpendBudget()
	client := conntest.Dial(t, addr)
	if _, err := client.Write(hello); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the client gets %d bytes, %v; want the end of the stream", n, err)
	}
	_ = client.Close()
	conntest.Eventually(t, "the failure is counted", func() bool { return up.Status().Endpoints[0].Failures == 1 })
	if s := p.Stats(); s.Moved != 0 || len(s.Errors) > 0 {
		t.Errorf("%d sessions have moved, errors %v; want none", s.Moved, s.Errors)
	}
}

// TestNoOtherEndpoint: the first endpoint breaks off, and then none accepts connections. The cause is in the log, and counted.
func TestNoOtherEndpoint(t *testing.T) {
	hello := helloOf(t, "a.test")
	l := conntest.Listen(t)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.ReadFull(c, make([]byte, len(hello)))
		_ = l.Close()
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}()
	var log conntest.Log
	o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}
	p, addr := start(t, []string{l.Addr().String(), conntest.FreeAddress(t)}, o, func(c *tcpproxy.Config) {
		c.ConnectTimeout, c.Listener.Logger = conntest.Patience, log.Logger()
	})
	client := conntest.Dial(t, addr)
	if _, err := client.Write(hello); err != nil {
		t.Fatal(err)
	}
	if err := conntest.WantGone(t, client); !wasReset(err) {
		t.Errorf("the client sees %v, want a reset", err)
	}
	conntest.Eventually(t, "the session's end is counted", func() bool { return len(p.Stats().Errors) > 0 })
	if e := p.Stats().Errors; e[listener.ReasonBackendGone] != 1 || len(e) != 1 {
		t.Errorf("errors: %v, want one backend_gone", e)
	}
	line := log.Line("session broke off")
	for _, part := range []string{"endpoint=" + l.Addr().String(), "before its first byte", "no other endpoint"} {
		if !strings.Contains(line, part) {
			t.Errorf("the log lacks %q: %s", part, line)
		}
	}
}

// TestFailedWriteHidesNoAnswer: the second piece of a ClientHello cannot be sent, because the server has broken off. If it has answered before, the
// client gets the answer; otherwise the client continues with another endpoint.
func TestFailedWriteHidesNoAnswer(t *testing.T) {
	hello := helloOf(t, "a.test")
	for _, answer := range []string{"answer", ""} {
		for _, err := range []error{syscall.ECONNRESET, io.EOF} {
			t.Run(answer+" "+err.Error(), func(t *testing.T) {
				broken := &unwritable{answer: answer, err: err}
				for _, c := range []*chan struct{}{&broken.first, &broken.failed, &broken.heard, &broken.closed} {
					*c = make(chan struct{})
				}
				var dials atomic.Int32
				good := conntest.Serve(t, conntest.Echo)
				o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}, Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
					if dials.Add(1) > 1 {
						return enginetest.Dial(ctx, good)
					}
					return broken, nil
				}}
				p, addr := start(t, []string{conntest.FreeAddress(t), good}, o, func(c *tcpproxy.Config) { c.ConnectTimeout = conntest.Patience })
				client := conntest.Dial(t, addr)
				if _, err := client.Write(hello[:100]); err != nil {
					t.Fatal(err)
				}
				<-broken.first
				if _, err := client.Write(hello[100:]); err != nil {
					t.Fatal(err)
				}
				if answer == "" {
					close(broken.heard)
					conntest.Want(t, client, string(hello))
				} else {
					conntest.Want(t, client, answer)
					close(broken.heard)
					if err := conntest.WantGone(t, client); err == io.EOF {
						_ = client.Close()
					}
					conntest.Eventually(t, "the session's end is counted", func() bool { return p.Stats().Errors[listener.ReasonBackendGone] == 1 })
				}
				if n, want := p.Stats().Moved, uint64(1-min(len(answer), 1)); n != want {
					t.Errorf("%d sessions have moved, want %d", n, want)
				}
			})
		}
	}
}

// unwritable is a connection whose second Write fails. It is read when that has happened.
type unwritable struct {
	net.Conn
	answer string // what is read first; "" = nothing
	err    error  // what is read next, once the client has heard the answer

	first, failed, heard, closed chan struct{}
	writes                       int
	end                          sync.Once
}

func (c *unwritable) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 1 {
		close(c.first)
		return len(p), nil
	}
	close(c.failed)
	return 0, syscall.ECONNRESET
}

func (c *unwritable) Read(p []byte) (int, error) {
	next := c.heard
	if c.answer != "" {
		next = c.failed
	}
	for _, event := range []chan struct{}{c.failed, next} {
		select {
		case <-event:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	n := copy(p, c.answer)
	if c.answer = ""; n > 0 {
		return n, nil
	}
	return 0, c.err
}

func (c *unwritable) Close() error {
	c.end.Do(func() { close(c.closed) })
	return nil
}

func (*unwritable) SetDeadline(time.Time) error { return nil }
func (*unwritable) LocalAddr() net.Addr         { return &net.TCPAddr{} }
func (*unwritable) RemoteAddr() net.Addr        { return &net.TCPAddr{} }

// TestChangedCertificateRulesDuringHandshake: a client in its handshake gets the new upstream if the new settings ask for the same certificates as its
// handshake did, and stays with the old one if they may ask for others.
func TestChangedCertificateRulesDuringHandshake(t *testing.T) {
	for name, c := range map[string]struct {
		before, after func(*tls.Config)
		want          string
	}{
		"the same":          {func(c *tls.Config) { c.ClientAuth = tls.RequestClientCert }, func(*tls.Config) {}, "inner:"},
		"none any more":     {func(c *tls.Config) { c.ClientAuth = tls.RequestClientCert }, func(c *tls.Config) { c.ClientAuth = tls.NoClientCert }, "inner:"},
		"other authorities": {func(c *tls.Config) { c.ClientAuth = tls.VerifyClientCertIfGiven }, func(c *tls.Config) { c.ClientCAs = x509.NewCertPool() }, "a:"},
		"by name": {func(*tls.Config) {}, func(c *tls.Config) {
			strict := c.Clone()
			strict.ClientAuth = tls.RequireAnyClientCert
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return strict, nil }
		}, "a:"},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := certs.New().Configs()
			c.before(server)
			var cfg tcpproxy.Config
			p, addr := startRoutes(t, func(c *tcpproxy.Config) {
				c.TLS, c.ConnectTimeout = server, time.Hour
				c.Routes[0].SNI = []string{"localhost"}
				cfg = *c
			})
			inner := to(t, "inner", says("inner"))
			conn := tls.Client(&pausing{Conn: conntest.Dial(t, addr), pause: func() {
				cfg.TLS = server.Clone()
				c.after(cfg.TLS)
				cfg.Routes = []tcpproxy.Route{{SNI: []string{"localhost"}, Upstream: inner}}
				if err := p.Update(cfg); err != nil {
					t.Error(err)
				}
			}}, client)
			conntest.Want(t, conn, c.want)
		})
	}
}

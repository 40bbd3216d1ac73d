package tcpproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// noFiber returns a function that waits until no session has a fiber. It is called before there are any.
func noFiber(t *testing.T) (idle func()) {
	before := enginetest.Fibers() // one of them accepts
	return func() {
		t.Helper()
		conntest.Eventually(t, "no fiber is left", func() bool {
			fiber.Sleep(time.Millisecond)
			return enginetest.Fibers() <= max(before, 1)
		})
	}
}

// halfCloser is a client's connection.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// TestIdleSessionsHoldNoStack: a session with nothing to copy has no fiber. It copies what comes later, also bulk, and ends like any
// other.
func TestIdleSessionsHoldNoStack(t *testing.T) {
	server, client := certs.New().Configs()
	hello := string(helloOf(t, "a.test"))
	for name, tc := range map[string]struct {
		first         string
		client        *tls.Config // of the test's client; nil = it speaks no TLS
		tls, upstream *tls.Config
	}{
		"TLS passes": {first: hello}, "no TLS": {first: "hello"}, "TLS ends": {first: "hello", client: client, tls: server},
		"TLS begins": {first: "hello", upstream: client}, "TLS both": {first: "hello", client: client, tls: server, upstream: client},
	} {
		t.Run(name, func(t *testing.T) {
			echo := conntest.Echo
			if tc.upstream != nil {
				echo = func(c *net.TCPConn) {
					s := tls.Server(c, server)
					_, _ = io.Copy(s, s)
					_ = s.CloseWrite()
				}
			}
			p, addr := start(t, []string{conntest.Serve(t, echo), conntest.Serve(t, echo)}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
				c.TLS, c.UpstreamTLS = tc.tls, tc.upstream
			})
			idle := noFiber(t)
			var c halfCloser = conntest.Dial(t, addr)
			if tc.client != nil {
				c = tls.Client(c, tc.client)
			}
			for range 2 { // two pieces: after the first one the session may still go to another endpoint
				conntest.Exchange(t, c, tc.first)
			}
			for range 3 {
				idle()
				conntest.Exchange(t, c, "more")
			}
			bulk := bytes.Repeat([]byte("bulk"), 1<<20)
			go func() { _, _ = c.Write(bulk) }()
			got := make([]byte, len(bulk))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, bulk) {
				t.Fatalf("bulk: %v", err)
			}
			conntest.Exchange(t, c, "and on")
			idle()
			_ = c.CloseWrite()
			if n, err := c.Read(got); err != io.EOF {
				t.Errorf("%d bytes, %v; want the end", n, err)
			}
			_ = c.Close() // without which crypto/tls's end of the socket stays open
			conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
			s, total := p.Stats(), uint64(len(bulk)+2*len(tc.first)+3*len("more")+len("and on"))
			if in, out := s.BytesIn, s.BytesOut; in < total || out < total || tc.tls == nil && (in > total || out > total) || len(s.Errors) > 0 {
				t.Errorf("%d bytes in, %d out, errors %v; want %d both ways, and none", s.BytesIn, s.BytesOut, s.Errors, total)
			}
		})
	}
}

// TestIdleTLSSessionEnds: what ends a session while it has no fiber is noticed as at any other time.
func TestIdleTLSSessionEnds(t *testing.T) {
	server, client := certs.New().Configs()
	type ends struct {
		p      *tcpproxy.Proxy
		client *net.TCPConn
		server *net.TCPConn
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tc := range map[string]struct {
		end    func(*testing.T, ends)
		idle   time.Duration
		reason string // that is counted; "" = none
		reset  bool   // what the other side sees
	}{
		"the client resets":  {end: func(_ *testing.T, e ends) { _ = e.client.SetLinger(0); _ = e.client.Close() }, reason: listener.ReasonClientGone, reset: true},
		"the backend ends":   {end: func(_ *testing.T, e ends) { _ = e.server.Close() }},
		"the backend resets": {end: func(_ *testing.T, e ends) { _ = e.server.SetLinger(0); _ = e.server.Close() }, reason: listener.ReasonBackendGone, reset: true},
		"kill": {end: func(t *testing.T, e ends) {
			id, _, _ := listener.ParseID(e.p.Sessions()[0].ID)
			if !e.p.Kill(id, 0) {
				t.Error("there is no session to kill")
			}
		}, reason: listener.ReasonKilled, reset: true},
		"drain":    {end: func(_ *testing.T, e ends) { _ = e.p.Drain(cancelled) }, reason: listener.ReasonDrained, reset: true},
		"time-out": {end: func(*testing.T, ends) {}, idle: 5 * time.Second, reason: listener.ReasonTimeout, reset: true},
	} {
		t.Run(name, func(t *testing.T) {
			accepted := make(chan *net.TCPConn, 1)
			over := make(chan struct{})
			backend := conntest.Serve(t, func(c *net.TCPConn) {
				accepted <- c
				<-over
			})
			t.Cleanup(func() { close(over) })
			p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS, c.IdleTimeout = server, tc.idle })
			idle := noFiber(t)
			raw := conntest.Dial(t, addr)
			c := tls.Client(raw, client)
			_, _ = io.WriteString(c, "question")
			s := <-accepted
			conntest.Want(t, s, "question")
			_, _ = io.WriteString(s, "answer")
			conntest.Want(t, c, "answer")
			idle()
			tc.end(t, ends{p, raw, s})
			if name == "the client resets" {
				if err := conntest.WantGone(t, s); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the backend sees %v, want a reset", err)
				}
			} else {
				_, err := c.Read(make([]byte, 1))
				if got := errors.Is(err, syscall.ECONNRESET); got != tc.reset || !got && err != io.EOF {
					t.Errorf("the client sees %v; want a reset: %v", err, tc.reset)
				}
			}
			_ = c.Close()
			conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
			if e := p.Stats().Errors; len(e) > 1 || tc.reason != "" && e[tc.reason] != 1 || tc.reason == "" && len(e) > 0 {
				t.Errorf("errors: %v, want one %s", e, tc.reason)
			}
		})
	}
}

// TestPanicOfCopyingBlamesNobody: a panic in the copying from or to TLS ends the session, and is neither the client's failure nor the server's.
func TestPanicOfCopyingBlamesNobody(t *testing.T) {
	server, client := certs.New().Configs()
	o := tcpproxy.UpstreamOptions{Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := enginetest.Dial(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		return panicsAtWrite{fiber.StreamOf(c)}, nil
	}}
	p, addr := start(t, []string{conntest.Serve(t, conntest.Echo)}, o, func(c *tcpproxy.Config) { c.TLS = server })
	c := tls.Client(conntest.Dial(t, addr), client)
	_, _ = io.WriteString(c, "question")
	conntest.WantGone(t, c)
	conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
	if e := p.Stats().Errors; e[listener.ReasonInternal] != 1 || len(e) != 1 {
		t.Errorf("errors: %v, want one internal", e)
	}
}

// panicsAtWrite is a connection that cannot be written to.
type panicsAtWrite struct{ fiber.Stream }

func (panicsAtWrite) Write([]byte) (int, error) { panic("no write") }

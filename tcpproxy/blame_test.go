package tcpproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// ejecting are the options of an upstream that ejects an endpoint at its first failure.
func ejecting() tcpproxy.UpstreamOptions {
	return tcpproxy.UpstreamOptions{Settings: upstream.Settings{
		Balance: upstream.First, Ejection: upstream.Ejection{Failures: 1, Base: time.Hour, Max: time.Hour},
	}}
}

// wantBlameless reports endpoints that have failed. All sessions have to be over.
func wantBlameless(t *testing.T, up *upstream.Upstream[net.Conn]) {
	t.Helper()
	for i, e := range up.Status().Endpoints {
		if e.Failures != 0 || e.Ejected {
			t.Errorf("endpoint %d has %d failures, ejected %v; want none", i, e.Failures, e.Ejected)
		}
	}
}

// TestPartOfAHelloBlamesNobody: servers end their streams when the rest of a ClientHello does not come. That is the client's fault, whether its
// session can move or not.
func TestPartOfAHelloBlamesNobody(t *testing.T) {
	hello := helloOf(t, "a.test")
	for name, spent := range map[string]bool{"moves": false, "cannot move": true} {
		for _, part := range []int{1, 3, 5, 100, len(hello) - 1} {
			t.Run(name, func(t *testing.T) {
				var accepted atomic.Int32
				serve := func(c *net.TCPConn) {
					accepted.Add(1)
					after(part, ends)(c)
				}
				var up *upstream.Upstream[net.Conn]
				p, addr := start(t, []string{conntest.Serve(t, serve), conntest.Serve(t, serve)}, ejecting(), func(c *tcpproxy.Config) {
					up, c.ConnectTimeout = c.Upstream, conntest.Patience
				})
				want := int32(2)
				if spent {
					want = 1
					p.StopBudgetClock()
					p.SpendBudget()
				}
				client := conntest.Dial(t, addr)
				if _, err := client.Write(hello[:part]); err != nil {
					t.Fatal(err)
				}
				if n, err := client.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("the client gets %d bytes, %v; want the end of the stream", n, err)
				}
				_ = client.Close()
				conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
				wantBlameless(t, up)
				if n := accepted.Load(); n != want {
					t.Errorf("%d bytes: %d connections to endpoints, want %d", part, n, want)
				}
			})
		}
	}
}

// TestAnsweringEndpointIsNotBlamed: an endpoint that ends its stream at a whole ClientHello has not failed if it has answered another client since
// it was given this one.
func TestAnsweringEndpointIsNotBlamed(t *testing.T) {
	hello := helloOf(t, "a.test")
	got, end := make(chan struct{}), make(chan struct{})
	var accepted atomic.Int32
	refuses := conntest.Serve(t, func(c *net.TCPConn) {
		if accepted.Add(1) > 1 {
			conntest.Echo(c)
			return
		}
		_, _ = io.ReadFull(c, make([]byte, len(hello)))
		close(got)
		<-end
	})
	var up *upstream.Upstream[net.Conn]
	p, addr := start(t, []string{refuses, conntest.Serve(t, conntest.Echo)}, ejecting(), func(c *tcpproxy.Config) {
		up, c.ConnectTimeout = c.Upstream, conntest.Patience
	})
	refused := conntest.Dial(t, addr)
	if _, err := refused.Write(hello); err != nil {
		t.Fatal(err)
	}
	<-got
	served := conntest.Dial(t, addr)
	conntest.Exchange(t, served, "hello")
	conntest.Exchange(t, served, "again") // so the first answer is counted
	close(end)
	conntest.Want(t, refused, string(hello)) // from the other endpoint
	if s := p.Stats(); s.Moved != 1 {
		t.Errorf("%d sessions have moved, want 1", s.Moved)
	}
	_, _ = refused.Close(), served.Close()
	conntest.Eventually(t, "the sessions are over", func() bool { return p.Stats().Active == 0 })
	wantBlameless(t, up)
}

// TestFailedWriteIsTheCause: a later failure does not replace it, once the server has answered or the session leaves the endpoint.
func TestFailedWriteIsTheCause(t *testing.T) {
	written := errors.New("write to upstream: broken pipe")
	reason, err := tcpproxy.AnsweredAfterFailedWrite(written, listener.ReasonTimeout, errors.New("a time-out"))
	if reason != listener.ReasonBackendGone || !errors.Is(err, written) {
		t.Errorf("an answered session has ended with %s, %v; want backend_gone, the failed write", reason, err)
	}
}

// TestPanicAtTheEndReturnsTheLease: a session that panics between its relay and the end of its lease keeps neither the connection nor its place.
func TestPanicAtTheEndReturnsTheLease(t *testing.T) {
	var dials, accepted atomic.Int32
	o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1}}, Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
		c, err := enginetest.Dial(ctx, endpoint)
		if err == nil && dials.Add(1) == 1 {
			c = panicsAtEnd{c}
		}
		return c, err
	}}
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		if accepted.Add(1) == 1 {
			_, _ = io.WriteString(c, "x")
			_, _ = io.ReadFull(c, make([]byte, 1))
			resets(c)
			return
		}
		conntest.Echo(c)
	})
	p, addr := start(t, []string{backend}, o, func(c *tcpproxy.Config) { c.ConnectTimeout = conntest.Patience })
	client := conntest.Dial(t, addr)
	conntest.Want(t, client, "x")
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	conntest.WantGone(t, client)
	conntest.Exchange(t, conntest.Dial(t, addr), "the only place is free")
	conntest.Eventually(t, "the panic is counted", func() bool { return p.Stats().Errors[listener.ReasonInternal] == 1 })
}

// panicsAtEnd is a connection that cannot be reset.
type panicsAtEnd struct{ net.Conn }

func (panicsAtEnd) SetLinger(int) error { panic("no linger") }

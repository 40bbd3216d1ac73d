package tcpproxy_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// lateConn is a connection whose n-th Write returns long after its data was sent: as if its goroutine had lost its
// processor in between.
type lateConn struct {
	net.Conn
	n     int32
	calls atomic.Int32
	until chan struct{} // the write returns when it is closed
}

func (c *lateConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.calls.Add(1) == c.n {
		<-c.until
	}
	return n, err
}

// lateListener accepts connections of package net, the first of which is a lateConn.
type lateListener struct {
	net.Listener
	until    chan struct{}
	accepted atomic.Int32
}

func (l *lateListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.accepted.Add(1) > 1 {
		return c, err
	}
	return &lateConn{Conn: c, n: 1, until: l.until}, nil
}

// answersUntil answers "?" with "!", and "." with nothing.
func answersUntil(c *net.TCPConn) {
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if b[0] == '?' {
			_, _ = io.WriteString(c, "!")
		}
	}
}

// stallTimeout is the StallTimeout of these tests.
const stallTimeout = 50 * time.Millisecond

// TestStallBehindAnAnswer: a client gets an answer and asks again, without an answer, before the gateway's goroutine
// knows that it has sent the first answer. The session ends.
func TestStallBehindAnAnswer(t *testing.T) {
	p, _ := start(t, []string{conntest.Serve(t, answersUntil)}, tcpproxy.UpstreamOptions{Dial: netDial}, func(c *tcpproxy.Config) {
		c.IdleTimeout, c.StallTimeout = -1, stallTimeout
	})
	l := &lateListener{Listener: conntest.Listen(t), until: make(chan struct{})}
	addr := conntest.Run(t, l, p.Serve, p.Close)
	c := conntest.Dial(t, addr)
	_, _ = io.WriteString(c, "?")
	conntest.Want(t, c, "!")
	_, _ = io.WriteString(c, ".")
	conntest.Eventually(t, "the second question is counted", func() bool { return p.Stats().BytesIn == 2 })
	close(l.until)
	if err := conntest.WantGone(t, c); err == nil {
		t.Error("the stream ended in good order")
	}
	conntest.Eventually(t, "the session is counted as timed out", func() bool { return p.Stats().Errors[listener.ReasonTimeout] == 1 })
}

// TestNoStallAfterAnAnswer: a client gets an answer before the gateway's goroutine knows that it has sent the question.
// The session is idle, and continues.
func TestNoStallAfterAnAnswer(t *testing.T) {
	for late := int32(1); late <= 2; late++ { // the first piece is copied in another way
		until := make(chan struct{})
		var dialed atomic.Int32
		dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
			c, err := netDial(ctx, endpoint)
			if err != nil || dialed.Add(1) > 1 {
				return c, err
			}
			return &lateConn{Conn: c, n: late, until: until}, nil
		}
		p, _ := start(t, []string{conntest.Serve(t, answersUntil)}, tcpproxy.UpstreamOptions{Dial: dial}, func(c *tcpproxy.Config) {
			c.IdleTimeout, c.StallTimeout = -1, stallTimeout
		})
		addr := conntest.Run(t, conntest.Listen(t), p.Serve, p.Close)
		c := conntest.Dial(t, addr)
		for range late {
			_, _ = io.WriteString(c, "?")
			conntest.Want(t, c, "!")
		}
		close(until)
		conntest.Eventually(t, "the question is counted", func() bool { return p.Stats().BytesIn == uint64(late) })
		for range 2 { // sessions that begin later and stall
			other := conntest.Dial(t, addr)
			_, _ = io.WriteString(other, ".")
			_ = conntest.WantGone(t, other)
		}
		_, _ = io.WriteString(c, "?")
		conntest.Want(t, c, "!")
	}
}

func netDial(ctx context.Context, endpoint string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", endpoint)
}

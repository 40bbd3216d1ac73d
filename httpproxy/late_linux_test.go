package httpproxy_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// lateConn is a client's connection on which a Read notices the deadline only when there is data, as on a machine that stood
// still meanwhile.
type lateConn struct {
	*net.TCPConn
	late *atomic.Bool // the next Read does so
}

func (c lateConn) Read(p []byte) (int, error) {
	if !c.late.Swap(false) {
		return c.TCPConn.Read(p)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(err, syscall.EAGAIN)
	}); err != nil {
		return 0, err
	}
	return 0, os.ErrDeadlineExceeded
}

// lateConns is a listener of such connections.
type lateConns struct {
	net.Listener
	late *atomic.Bool
}

func (l lateConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return lateConn{c.(*net.TCPConn), l.late}, nil
}

// TestRequestsBeforeALateDeadline are served: a client that has sent its request in time gets an answer, also if the proxy stood
// still until after the deadline.
func TestRequestsBeforeALateDeadline(t *testing.T) {
	var late atomic.Bool
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		if late.Swap(true) { // for the next request
			t.Error("a request whose Read has not noticed a deadline")
		}
		_, _ = io.WriteString(w, "ok")
	})
	p, err := httpproxy.New(routeTo(newUpstream(t, backend)))
	if err != nil {
		t.Fatal(err)
	}
	addr := conntest.Run(t, lateConns{conntest.Listen(t), &late}, p.Serve, func() { _ = p.Drain(context.Background()) })
	late.Store(true)
	client := clientFor(t, "HTTP/1.1")
	for _, which := range []string{"first", "next"} {
		resp, err := client.Post("http://"+addr, "text/plain", http.NoBody) // net/http does not send it again
		if err != nil {
			t.Fatalf("the %s request: %v", which, err)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != "ok" {
			t.Errorf("the %s request: %q, %v", which, body, err)
		}
		_ = resp.Body.Close()
	}
	client.CloseIdleConnections()
}

// drainedConn is such a connection, to which send sends something in the moment in which a drain ends its wait, with a deadline
// in the past.
type drainedConn struct {
	lateConn
	send func()
}

func (c drainedConn) SetReadDeadline(t time.Time) error {
	if t.Before(time.Unix(2, 0)) && !t.IsZero() {
		c.send() // Read notices the deadline
		return nil
	}
	return c.TCPConn.SetReadDeadline(t)
}

// drainedConns is a listener of such connections.
type drainedConns struct {
	lateConns
	send func()
}

func (l *drainedConns) Accept() (net.Conn, error) {
	c, err := l.lateConns.Accept()
	if err != nil {
		return nil, err
	}
	return drainedConn{c.(lateConn), l.send}, nil
}

// TestRequestsAtTheBeginningOfADrain: what a client sends as a drain begins is a request that it gets an answer to. A part of a
// TLS record does not hold the drain up for as long as a head may take.
func TestRequestsAtTheBeginningOfADrain(t *testing.T) {
	var late atomic.Bool
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		late.Store(r.URL.Path == "/first") // for the wait behind it
		_, _ = io.WriteString(w, "ok")
	})
	cfg := routeTo(newUpstream(t, backend))
	cfg.ReadHeaderTimeout = time.Hour
	secure, client := certificates(t)
	for name, part := range map[string]string{"a request": "", "a part of a record": "\x17\x03\x03\x00\x50part"} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			if part != "" {
				cfg.TLS = secure
			}
			p, err := httpproxy.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			var raw net.Conn
			addr := conntest.Run(t, &drainedConns{lateConns{conntest.Listen(t), &late}, func() {
				_, _ = io.WriteString(raw, cmp.Or(part, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
			}}, p.Serve, func() {})
			if raw, err = net.Dial("tcp", addr); err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			c := raw
			if part != "" {
				c = tls.Client(raw, client)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			br := bufio.NewReader(c)
			answer := func() (*http.Response, error) {
				resp, err := http.ReadResponse(br, nil)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
				}
				return resp, err
			}
			_, _ = io.WriteString(c, "GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
			if _, err := answer(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the session waits", func() bool { return !late.Load() })
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			drained := make(chan error, 1)
			go func() { drained <- p.Drain(ctx) }()
			if resp, err := answer(); part == "" && (err != nil || !resp.Close) {
				t.Errorf("the answer is %v, %v", resp, err)
			}
			if err := <-drained; err != nil {
				t.Errorf("the drain: %v", err)
			}
		})
	}
}

// crossedConn is a client's connection whose second Read returns only after a drain has ended its wait.
type crossedConn struct {
	*net.TCPConn
	reads       atomic.Int32
	read        chan struct{} // closed when that Read has data
	interrupted chan struct{}
}

func (c *crossedConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if c.reads.Add(1) == 2 {
		close(c.read)
		<-c.interrupted
	}
	return n, err
}

func (c *crossedConn) SetReadDeadline(t time.Time) error {
	err := c.TCPConn.SetReadDeadline(t)
	if t.Equal(time.Unix(1, 0)) {
		close(c.interrupted)
	}
	return err
}

// oneConn is a listener with one connection, which it wraps.
type oneConn struct {
	net.Listener
	c *crossedConn
}

func (l oneConn) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.c.TCPConn = c.(*net.TCPConn)
	return l.c, nil
}

// TestRequestsThatADrainCrosses: a request that was read as the drain interrupted its session is answered, with its body, which
// comes later than the interrupt's deadline.
func TestRequestsThatADrainCrosses(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	p, err := httpproxy.New(routeTo(newUpstream(t, backend)))
	if err != nil {
		t.Fatal(err)
	}
	server := &crossedConn{read: make(chan struct{}), interrupted: make(chan struct{})}
	addr := conntest.Run(t, oneConn{conntest.Listen(t), server}, p.Serve, func() {})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	br := bufio.NewReader(c)
	answer := func() (string, *http.Response) {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body), resp
	}
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	answer()
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
	<-server.read
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(t.Context()) }()
	<-server.interrupted
	_, _ = io.WriteString(c, "hi")
	if body, resp := answer(); body != "hi" || !resp.Close {
		t.Errorf("%d %q, the last: %t", resp.StatusCode, body, resp.Close)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// stoppedConn is a client's connection on which the machine stands still when a deadline passes, until there is data.
type stoppedConn struct {
	*net.TCPConn
	stopped chan<- struct{}
}

func (c stoppedConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	c.stopped <- struct{}{}
	_ = c.SetReadDeadline(time.Time{})
	var late atomic.Bool
	late.Store(true)
	return lateConn{c.TCPConn, &late}.Read(p)
}

// stoppedConns is a listener of such connections.
type stoppedConns struct {
	net.Listener
	stopped chan<- struct{}
}

func (l stoppedConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return stoppedConn{c.(*net.TCPConn), l.stopped}, nil
}

// TestLateDeadlineOfHTTP2: what a client has sent before the deadline was noticed counts.
func TestLateDeadlineOfHTTP2(t *testing.T) {
	cfg := routeTo(newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })))
	cfg.ReadHeaderTimeout = time.Second
	secure, client := certificates(t)
	cfg.TLS = secure
	p, err := httpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{}, 1)
	addr := conntest.Run(t, stoppedConns{conntest.Listen(t), stopped}, p.Serve, func() { _ = p.Drain(context.Background()) })
	client = client.Clone()
	client.NextProtos = []string{"h2"}
	c, err := tls.Dial("tcp", addr, client)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-stopped
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"+
		"\x00\x00\x08\x06\x00\x00\x00\x00\x00question")
	var got []byte
	for b := make([]byte, 512); !strings.Contains(string(got), "\x06\x01\x00\x00\x00\x00question"); {
		n, err := c.Read(b)
		if got = append(got, b[:n]...); err != nil {
			t.Fatalf("no answer to PING: %q, %v", got, err)
		}
	}
}

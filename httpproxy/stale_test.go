package httpproxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// onceServer answers one request of each connection, and closes it when it has read a second one.
type onceServer struct {
	crowd    int // this many requests are answered together, when all of them have come
	conns    atomic.Int64
	answered atomic.Int64
	vain     atomic.Int64 // second requests
	waiting  chan struct{}
	gathered sync.Once
}

func (s *onceServer) serve(c net.Conn) {
	s.conns.Add(1)
	br := bufio.NewReader(c)
	for i := range 2 {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if i > 0 {
			s.vain.Add(1)
			return
		}
		if s.answered.Add(1) >= int64(s.crowd) {
			s.gathered.Do(func() { close(s.waiting) })
		}
		<-s.waiting
		_, _ = io.WriteString(c, okWith(strings.NewReader("hi")))
	}
}

// TestStaleConnections: every idle connection to a server that answers one request each is stale. A request that may be
// sent again finds that out once, and is then answered on a fresh connection.
func TestStaleConnections(t *testing.T) {
	const crowd, requests = 6, 12
	serverTLS, clientTLS := certificates(t)
	for _, tc := range []struct {
		name, proto string
		tls         bool
	}{{"http1", "HTTP/1.1", false}, {"http2", "HTTP/2.0", false}, {"tls", "HTTP/1.1", true}} {
		t.Run(tc.name, func(t *testing.T) {
			s := &onceServer{crowd: crowd, waiting: make(chan struct{})}
			backend := serveRaw(t, func(c net.Conn) {
				if tc.tls {
					c = tls.Server(c, serverTLS)
				}
				s.serve(c)
				_ = c.Close()
			})
			o := httpproxy.UpstreamOptions{}
			if tc.tls {
				o.TLS = clientTLS
			}
			u := newUpstreamWith(t, o, backend)
			p := startProxy(t, routeTo(u))
			client := clientFor(t, tc.proto)
			var wg sync.WaitGroup
			for range crowd {
				wg.Go(func() { wantHi(t, client, http.MethodGet, p.url) })
			}
			wg.Wait()
			eventually(t, "idle connections", func() bool { return u.Status().Endpoints[0].Pool.Idle == crowd })
			for range requests {
				wantHi(t, client, http.MethodGet, p.url)
			}
			wantHi(t, client, http.MethodPut, p.url)
			e := u.Status().Endpoints[0]
			if e.Stale != requests+1 || e.Failures != 0 || e.LastError != "" || e.Pool.Idle+e.Pool.InUse > crowd {
				t.Errorf("the endpoint's state is %+v", e)
			}
			if conns, vain := s.conns.Load(), s.vain.Load(); conns != crowd+requests+1 || vain != requests+1 {
				t.Errorf("%d connections were opened, %d requests sent in vain", conns, vain)
			}
		})
	}
}

func wantHi(t *testing.T, client *http.Client, method, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != "hi" || err != nil {
		t.Errorf("%s is answered %s %q, %v", method, resp.Status, body, err)
	}
}

// TestStaleConnectionOfAPost: the server may have done the work, but the stale connection does not count against it.
func TestStaleConnectionOfAPost(t *testing.T) {
	s := &onceServer{crowd: 1, waiting: make(chan struct{})}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Ejection: upstream.Ejection{Failures: 1}}}, serveRaw(t, s.serve))
	p := startProxy(t, routeTo(u))
	wantHi(t, http.DefaultClient, http.MethodPost, p.url)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, strings.NewReader("x"))
	if resp, body := do(t, req); resp.StatusCode != 502 {
		t.Errorf("got %s %q", resp.Status, body)
	}
	if e := u.Status().Endpoints[0]; s.vain.Load() != 1 || e.Ejected || e.Failures != 0 {
		t.Errorf("%d requests sent in vain, the endpoint's state is %+v", s.vain.Load(), e)
	}
}

// TestStaleWarmConnection: a connection opened ahead of demand may be closed by the server before its first request.
func TestStaleWarmConnection(t *testing.T) {
	var conns atomic.Int64
	backend := serveRaw(t, func(c net.Conn) {
		first := conns.Add(1) == 1
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil && !first {
			_, _ = io.WriteString(c, okWith(strings.NewReader("hi")))
		}
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MinIdle: 1}, Ejection: upstream.Ejection{Failures: 1}}}, backend)
	p := startProxy(t, routeTo(u))
	eventually(t, "a warm connection", func() bool { return u.Status().Endpoints[0].Pool.Idle == 1 && conns.Load() == 1 })
	wantHi(t, http.DefaultClient, http.MethodGet, p.url)
	if e := u.Status().Endpoints[0]; e.Ejected || e.Failures != 0 {
		t.Errorf("the endpoint's state is %+v", e)
	}
}

// TestStaleConnectionOfAServerThatIsGone: the endpoint that cannot be connected to any more is to blame, and another answers.
func TestStaleConnectionOfAServerThatIsGone(t *testing.T) {
	began := make(chan struct{})
	first, kill := conntest.ServeAt(t, "127.0.0.1:0", func(c *net.TCPConn) {
		_ = c.SetDeadline(time.Now().Add(patience))
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		_, _ = io.WriteString(c, okWith(strings.NewReader("hi")))
		if _, err := http.ReadRequest(br); err == nil {
			close(began)
			_, _ = br.Peek(1) // until it is killed
		}
	})
	second := serveRaw(t, (&onceServer{crowd: 1, waiting: make(chan struct{})}).serve)
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, Ejection: upstream.Ejection{Failures: 1}}}, first, second)
	p := startProxy(t, routeTo(u))
	wantHi(t, http.DefaultClient, http.MethodGet, p.url)
	go func() {
		<-began
		kill()
	}()
	wantHi(t, http.DefaultClient, http.MethodGet, p.url)
	if e := u.Status().Endpoints; !e[0].Ejected || e[1].Failures != 0 {
		t.Errorf("the endpoints are %+v", e)
	}
}

// TestResetBeforeThePost: a request is repeated, whatever its method, if the server's reset arrives before a byte of it
// has left the process: after the connection was found alive, and before the end of the engine's tick.
func TestResetBeforeThePost(t *testing.T) {
	for name, route := range bothForwarders {
		for _, body := range []string{"", "x", strings.Repeat("x", 6<<10), strings.Repeat("x", 20<<10)} {
			t.Run(fmt.Sprintf("%s/%d", name, len(body)), func(t *testing.T) {
				idle := make(chan *net.TCPConn, 1)
				requests := make(chan string, 3)
				backend := serveRaw(t, func(c net.Conn) {
					answerOnce(c, requests)
					select {
					case idle <- c.(*net.TCPConn):
					default:
					}
					<-t.Context().Done()
				})
				d := &dialer{}
				u := newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: d.dial, Ejection: upstream.Ejection{Failures: 1}}, backend)
				route := route
				route.Upstream = u
				p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{route}})
				wantHi(t, http.DefaultClient, http.MethodGet, p.url)
				first := <-idle
				d.doomed.Store(first)
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, strings.NewReader(body))
				if resp, _ := do(t, req); resp.StatusCode != 200 {
					t.Fatalf("the POST is answered %s", resp.Status)
				}
				if a, b := <-requests, <-requests; a != "GET " || b != "POST "+body || len(requests) > 0 {
					t.Errorf("the server has read %.9q, %.9q and %d more requests", a, b, len(requests))
				}
				if e := u.Status().Endpoints[0]; e.Ejected || e.Failures != 0 || d.dialled.Load() != 2 {
					t.Errorf("dialled %d times, the endpoint's state is %+v", d.dialled.Load(), e)
				}
			})
		}
	}
}

// TestResetAfterThePost: a POST of which the server has read a byte is not repeated.
func TestResetAfterThePost(t *testing.T) {
	for name, route := range bothForwarders {
		t.Run(name, func(t *testing.T) {
			var conns atomic.Int64
			requests := make(chan string, 3)
			backend := serveRaw(t, func(c net.Conn) {
				conns.Add(1)
				answerOnce(c, requests)
				_, _ = c.Read(make([]byte, 1))
				_ = c.(*net.TCPConn).SetLinger(0)
			})
			route.Upstream = newUpstream(t, backend)
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{route}})
			wantHi(t, http.DefaultClient, http.MethodGet, p.url)
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, strings.NewReader("x"))
			if resp, body := do(t, req); resp.StatusCode != 502 || conns.Load() != 1 {
				t.Errorf("got %s %q, and %d connections were opened", resp.Status, body, conns.Load())
			}
		})
	}
}

// bothForwarders are routes whose requests the session forwards itself, and by way of the standard library's server.
var bothForwarders = map[string]httpproxy.Route{"session": {}, "standard": {Timeout: patience}}

// answerOnce reads a request, reports it, and answers it.
func answerOnce(c net.Conn, requests chan<- string) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		requests <- r.Method + " " + string(body)
		_, _ = io.WriteString(c, okWith(strings.NewReader("hi")))
	}
}

// dialer opens an engine's connections. With doomed, the next write to a used one comes after a reset.
type dialer struct {
	doomed  atomic.Pointer[net.TCPConn]
	dialled atomic.Int64
}

func (d *dialer) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := enginetest.Dial(ctx, address)
	d.dialled.Add(1)
	switch c := c.(type) {
	case *fiber.Conn:
		return &lateFiberConn{c, late{dialer: d}}, err
	case *net.TCPConn:
		return &lateTCPConn{c, late{dialer: d}}, err
	}
	return c, err
}

type late struct {
	dialer  *dialer
	written bool
}

// write waits for gone, which reports the reset.
func (l *late) write(gone func() bool) {
	if l.written {
		if far := l.dialer.doomed.Swap(nil); far != nil {
			_ = far.SetLinger(0)
			_ = far.Close()
			for !gone() {
			}
		}
	}
	l.written = true
}

type lateFiberConn struct {
	*fiber.Conn
	late
}

func (c *lateFiberConn) Write(p []byte) (int, error) {
	c.write(c.PeerClosed)
	return c.Conn.Write(p)
}

type lateTCPConn struct {
	*net.TCPConn
	late
}

func (c *lateTCPConn) Write(p []byte) (int, error) {
	c.write(func() bool { return fiber.StreamOf(c.TCPConn).Ended() })
	return c.TCPConn.Write(p)
}

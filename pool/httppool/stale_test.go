package httppool_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

// serveOnce answers one request of each connection, the first crowd of them together, and closes it when it has read a
// second one.
func serveOnce(t *testing.T, crowd int) *rawServer {
	var answered atomic.Int64
	var gathered sync.Once
	waiting := make(chan struct{})
	return serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		if answered.Add(1) >= int64(crowd) {
			gathered.Do(func() { close(waiting) })
		}
		<-waiting
		_, _ = io.WriteString(c, ok)
		_, _ = http.ReadRequest(br)
	})
}

// fill sends crowd requests at the same time, so that as many connections are idle.
func fill(t *testing.T, tr *httppool.Transport, url string, crowd int) {
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() {
			if _, body, err := exchange(tr, newRequest(t, "GET", url, nil)); err != nil || body != "hi" {
				t.Errorf("%q, %v", body, err)
			}
		})
	}
	wg.Wait()
}

// TestStaleConnections: a request finds out once that idle connections are stale.
func TestStaleConnections(t *testing.T) {
	const crowd = 6
	s := serveOnce(t, crowd)
	tr := newTransport(t, httppool.Config{})
	fill(t, tr, s.url, crowd)
	for i := range uint64(crowd) {
		wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
		if st := tr.Stats(); st.Retries != i+1 || st.Stale != 0 {
			t.Errorf("stats are %+v", st)
		}
	}
	if n := s.conns.Load(); n != 2*crowd {
		t.Errorf("%d connections were opened", n)
	}
}

// TestStaleConnectionsOfASource that cannot be opened again: the stale ones are used up.
func TestStaleConnectionsOfASource(t *testing.T) {
	const crowd = 6
	s := serveOnce(t, crowd)
	p, err := pool.New(pool.Config[*httppool.Conn]{
		Open: func(ctx context.Context) (*httppool.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				return nil, err
			}
			return httppool.NewConn(ctx, c, nil)
		},
		Close:  func(c *httppool.Conn) { _ = c.Close() },
		Limits: pool.Limits{MaxSize: crowd},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	tr := newTransport(t, httppool.Config{Source: func(ctx context.Context, _ *http.Request) (httppool.Lease, error) {
		l, err := p.Acquire(ctx)
		return leased{l}, err
	}})
	fill(t, tr, s.url, crowd)
	wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
	if st := tr.Stats(); st.Retries != crowd {
		t.Errorf("stats are %+v", st)
	}
}

// TestSourceAvoidsFailedEndpoints: a Source hears where a request has failed, so that it goes elsewhere.
func TestSourceAvoidsFailedEndpoints(t *testing.T) {
	first, other := serveOnce(t, 1), serveAnswers(t, func(int64, int) string { return ok })
	down := false
	poolTo := func(url string) *pool.Pool[*httppool.Conn] {
		d := httppool.Dialer{Dial: func(ctx context.Context, address string) (net.Conn, error) {
			if down && url == first.url {
				return nil, syscall.ECONNREFUSED
			}
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}}
		p, err := pool.New(pool.Config[*httppool.Conn]{
			Open: func(ctx context.Context) (*httppool.Conn, error) {
				return d.Open(ctx, strings.TrimPrefix(url, "http://"))
			},
			Close: func(c *httppool.Conn) { _ = c.Close() },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	preferred, second := poolTo(first.url), poolTo(other.url)
	var avoided [][]string
	tr := newTransport(t, httppool.Config{Source: func(ctx context.Context, _ *http.Request) (httppool.Lease, error) {
		avoided = append(avoided, httppool.Failed(ctx))
		p := preferred
		if slices.Contains(httppool.Failed(ctx), "server") { // the name of leased
			p = second
		}
		l, err := p.Acquire(ctx)
		return leased{l}, err
	}})
	wantBody(t, tr, newRequest(t, "GET", first.url, nil), "hi")
	down = true
	wantBody(t, tr, newRequest(t, "GET", first.url, nil), "hi")
	if n := len(avoided); n != 3 || !slices.Equal(avoided[2], []string{"server"}) {
		t.Errorf("the source was told %q", avoided)
	}
}

// leased is a Lease of one endpoint.
type leased struct{ pool.Lease[*httppool.Conn] }

func (leased) Endpoint() string { return "server" }
func (l leased) Fail(error)     { l.Discard() }

// TestStaleConnectionThatTookNothing: a request of which not a byte was written may be sent again whatever it is.
func TestStaleConnectionThatTookNothing(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return ok })
	dialled := 0
	tr := newTransport(t, httppool.Config{Dial: func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if dialled++; dialled == 1 && err == nil {
			return &writesOnce{Conn: c}, nil
		}
		return c, err
	}})
	wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
	wantBody(t, tr, newRequest(t, "POST", s.url, io.MultiReader(strings.NewReader("not to be read twice"))), "hi")
	if st := tr.Stats(); st.Retries != 1 || dialled != 2 {
		t.Errorf("dialled %d times, stats are %+v", dialled, st)
	}
}

// writesOnce is a connection that is broken when it is written to again.
type writesOnce struct {
	net.Conn
	written bool
}

func (c *writesOnce) Write(p []byte) (int, error) {
	if c.written {
		return 0, syscall.EPIPE
	}
	c.written = true
	return c.Conn.Write(p)
}

// TestStaleConnectionToAServerThatIsGone gets the error of connecting, without endless attempts.
func TestStaleConnectionToAServerThatIsGone(t *testing.T) {
	s := serveOnce(t, 4)
	down := false
	dialled := 0
	tr := newTransport(t, httppool.Config{Dial: func(ctx context.Context, address string) (net.Conn, error) {
		if down {
			dialled++
			return nil, syscall.ECONNREFUSED
		}
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}})
	fill(t, tr, s.url, 4)
	down = true
	_, _, err := exchange(tr, newRequest(t, "GET", s.url, nil))
	wantError(t, err, syscall.ECONNREFUSED)
	if dialled > 3 {
		t.Errorf("dialled %d times for one request", dialled)
	}
}

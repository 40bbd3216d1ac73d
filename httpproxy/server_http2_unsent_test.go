package httpproxy_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// lastWords is a connection whose peer answers and closes it. A write fails before the reader gets what the peer has sent: a system
// reports the two in any order.
type lastWords struct {
	net.Conn
	closed chan struct{} // by the peer
	noted  chan struct{} // that a write has failed: the reader was interrupted
	once   sync.Once
	held   []byte // for the next Read; the reader's
}

func over(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (c *lastWords) Write(p []byte) (int, error) {
	if over(c.closed) {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}

func (c *lastWords) Read(p []byte) (int, error) {
	if n := copy(p, c.held); n > 0 {
		c.held = c.held[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if !over(c.closed) || over(c.noted) {
		return n, err
	}
	c.held = bytes.Clone(p[:n])
	select {
	case <-c.noted:
	case <-time.After(patience):
	}
	return 0, os.ErrDeadlineExceeded
}

func (c *lastWords) SetReadDeadline(at time.Time) error {
	if over(c.closed) && at.Before(time.Now()) {
		c.once.Do(func() { close(c.noted) })
	}
	return c.Conn.SetReadDeadline(at)
}

// TestServerHTTP2AnswersAndCloses: a server answers two requests, gives another back by GOAWAY and closes the connection, while the body of
// the first is sent. That no more of it can be sent loses neither an answer nor a request.
func TestServerHTTP2AnswersAndCloses(t *testing.T) {
	closed, came := make(chan struct{}), make(chan struct{})
	body, next := pieces()
	backend := serveFrames(t, func(s *frames) {
		if s.number > 1 {
			id, _ := s.request()
			s.answer(id, "again")
			s.drain()
			return
		}
		var ids []uint32
		for len(ids) < 3 {
			f, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
			if !ok {
				return
			}
			ids = append(ids, f.StreamID)
			came <- struct{}{}
		}
		close(closed)
		s.answer(ids[0], "too long")
		s.answer(ids[1], "answered")
		_ = s.WriteGoAway(ids[1], http2.ErrCodeNo, nil)
		next("more") // cannot be sent
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil || over(closed) {
			return c, err
		}
		return &lastWords{Conn: c, closed: closed, noted: make(chan struct{})}, nil
	}}, backend)
	p := startProxy(t, routeTo(u))
	var clients sync.WaitGroup
	for _, r := range []struct {
		body io.Reader
		want string
	}{{body, "too long"}, {nil, "answered"}, {nil, "again"}} {
		clients.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, r.body)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Errorf("instead of %q: %v", r.want, err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != r.want {
				t.Errorf("%d %q, %v; want %q", resp.StatusCode, got, err, r.want)
			}
		})
		<-came
	}
	clients.Wait()
	next("")
}

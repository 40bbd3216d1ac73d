package httppool_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/headpond/headpond/pool/httppool"
)

// pause is longer than a read waits before it watches its context and sets its own deadline.
const pause = 25 * time.Millisecond

// TestSlowAnswers in every part, on one connection: the deadlines that reads set for themselves are no time-outs.
func TestSlowAnswers(t *testing.T) {
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if req.URL.Path == "/fast" {
				_, _ = io.WriteString(c, ok)
				continue
			}
			for _, part := range []string{"", "HTTP/1.1 200 OK\r\n", "Content-Length: 2\r\n\r\n", "h", "i"} {
				<-time.After(pause)
				_, _ = io.WriteString(c, part)
			}
		}
	})
	tr := newTransport(t, httppool.Config{})
	for range 2 {
		wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
		wantBody(t, tr, newRequest(t, "GET", s.url+"/fast", nil), "hi")
		wantBody(t, tr, newRequest(t, "POST", s.url, &slowly{left: 3}), "hi")
		<-time.After(pause) // the deadline passes on an idle connection
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections were opened", n)
	}
}

// slowly is a body that arrives in pieces.
type slowly struct{ left int }

func (s *slowly) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	s.left--
	<-time.After(pause)
	return copy(p, "x"), nil
}

// TestTimeoutOfAConnectionThatWasIdle is the request's own, whatever deadline the connection has.
func TestTimeoutOfAConnectionThatWasIdle(t *testing.T) {
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		if _, err := http.ReadRequest(br); err == nil {
			_, _ = io.WriteString(c, ok)
			_, _ = io.Copy(io.Discard, br) // until the client closes
		}
	})
	p := poolTo(t, s.url)
	within := func(limit time.Duration) *httppool.Transport {
		return newTransport(t, httppool.Config{
			Options: httppool.Options{ResponseHeaderTimeout: limit},
			Source: func(ctx context.Context, _ *http.Request) (httppool.Lease, error) {
				l, err := p.Acquire(ctx)
				return leased{l}, err
			},
		})
	}
	wantBody(t, within(patience), newRequest(t, "GET", s.url, nil), "hi")
	_, _, err := exchange(within(3*pause), newRequest(t, "GET", s.url, nil)) // on the same connection: the server would answer on another
	wantError(t, err, httppool.ErrResponseTimeout)
}

// TestCancelledWhileReading the head, and the body: early and late.
func TestCancelledWhileReading(t *testing.T) {
	for _, late := range []time.Duration{0, pause} {
		for _, sent := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh"} {
			asked := make(chan struct{})
			s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
				if _, err := http.ReadRequest(br); err != nil {
					return
				}
				_, _ = io.WriteString(c, sent)
				close(asked)
				_, _ = br.Peek(1) // until the client closes
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("not wanted any more")
			go func() {
				<-asked
				<-time.After(late)
				cancel(why)
			}()
			_, _, err := exchange(newTransport(t, httppool.Config{}), newRequest(t, "GET", s.url, nil).WithContext(ctx))
			wantError(t, err, context.Canceled)
			wantError(t, err, why)
		}
	}
}

// endless is a body that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestServerThatDoesNotReadTheBody: the idle limit ends the exchange, however long the server may take for its answer.
func TestServerThatDoesNotReadTheBody(t *testing.T) {
	done := make(chan struct{})
	s := serveRaw(t, func(int64, net.Conn, *bufio.Reader) { <-done })
	t.Cleanup(func() { close(done) })
	tr := newTransport(t, httppool.Config{Options: httppool.Options{IdleTimeout: pause, ResponseHeaderTimeout: -1}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := tr.RoundTrip(newRequest(t, "POST", s.url, endless{}).WithContext(ctx))
	wantError(t, err, httppool.ErrIdleTimeout)
}

package httppool_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

// judging is a Lease that records the measurements that it gets.
type judging struct {
	leased
	told []string
}

func (*judging) Measures() bool { return true }

func (j *judging) Answered(took time.Duration, bad bool) bool {
	switch {
	case bad:
		j.told = append(j.told, "bad")
	case took < 0:
		j.told = append(j.told, "unmeasured")
	default:
		j.told = append(j.told, "good")
	}
	return bad
}

func (j *judging) Unanswered(_ time.Duration, late bool) bool {
	j.told = append(j.told, map[bool]string{false: "left", true: "late"}[late])
	return late
}

func (j *judging) Blame(error) { j.told = append(j.told, "blamed") }

// TestMeasuredLeases: a lease that measures answers gets one measurement, of the final answer or of its absence.
func TestMeasuredLeases(t *testing.T) {
	asked := make(chan struct{}, 9)
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if r.URL.Path != "/early" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		asked <- struct{}{}
		switch r.URL.Path {
		case "/500":
			_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
		case "/401", "/early":
			_, _ = io.WriteString(c, "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
		case "/gone":
			return
		}
		_, _ = br.Peek(1)
	})
	endless, stop := io.Pipe()
	t.Cleanup(func() { stop.Close() })
	for path, tc := range map[string]struct {
		body  io.Reader
		limit time.Duration // of the wait for the head
		leave bool          // the caller does, when the server has the request
		want  []string
	}{
		"/401":    {want: []string{"good"}}, // a body's end may be noted after the answer has come
		"/500":    {want: []string{"bad", "blamed"}},
		"/early":  {body: endless, want: []string{"unmeasured"}},
		"/gone":   {},
		"/silent": {limit: 20 * time.Millisecond, want: []string{"late", "blamed"}},
		"/left":   {leave: true, want: []string{"left"}},
	} {
		t.Run(path[1:], func(t *testing.T) {
			p := poolTo(t, s.url)
			j := &judging{}
			tr := newTransport(t, httppool.Config{
				Options: httppool.Options{ResponseHeaderTimeout: tc.limit},
				Source: func(ctx context.Context, _ *http.Request) (httppool.Lease, error) {
					l, err := p.Acquire(ctx)
					j.leased = leased{l}
					return j, err
				},
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			go func() {
				select {
				case <-asked:
				case <-ctx.Done():
				}
				if tc.leave {
					cancel(errors.New("the caller leaves"))
				}
			}()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, tc.body)
			if resp, err := tr.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
			}
			if !slices.Equal(j.told, tc.want) {
				t.Errorf("the lease was told %q, want %q", j.told, tc.want)
			}
		})
	}
}

// poolTo makes a pool of connections to a server.
func poolTo(t *testing.T, url string) *pool.Pool[*httppool.Conn] {
	t.Helper()
	p, err := pool.New(pool.Config[*httppool.Conn]{
		Open: func(ctx context.Context) (*httppool.Conn, error) {
			return new(httppool.Dialer).Open(ctx, strings.TrimPrefix(url, "http://"))
		},
		Close: func(c *httppool.Conn) { _ = c.Close() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

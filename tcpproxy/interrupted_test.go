package tcpproxy_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// headed is a connection whose endpoint is removed once the PROXY header has been sent on it.
type headed struct {
	net.Conn
	remove  func()
	removed chan struct{} // closed by Close

	removing, closing sync.Once
}

func (c *headed) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.removing.Do(func() {
		fiber.Block(func() {
			c.remove()
			<-c.removed
		})
	})
	return n, err
}

func (c *headed) Close() error {
	err := c.Conn.Close()
	c.closing.Do(func() { close(c.removed) })
	return err
}

// TestInterruptedBeforeTheFirstByte: an endpoint is removed after a session has prepared its connection and before it copies. The session
// moves or, without retries, ends because of that, and not as one whose server broke off.
func TestInterruptedBeforeTheFirstByte(t *testing.T) {
	for _, retry := range []bool{true, false} {
		t.Run(map[bool]string{true: "retry", false: "no retry"}[retry], func(t *testing.T) {
			removed := conntest.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
			other := conntest.Serve(t, tellClient)
			var up *upstream.Upstream[net.Conn]
			o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, OnRemoved: upstream.CloseRemoved}}
			o.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "tcp", endpoint)
				if err != nil || endpoint == other {
					return c, err
				}
				return &headed{Conn: c, removed: make(chan struct{}), remove: func() {
					if err := up.ChangeEndpoint(upstream.Change{Action: upstream.RemoveEndpoint, Endpoint: upstream.Endpoint{Address: removed}}); err != nil {
						t.Error(err)
					}
				}}, nil
			}
			p, addr := start(t, []string{removed, other}, o, func(c *tcpproxy.Config) {
				up, c.NoRetry, c.SendProxy = c.Upstream, !retry, 1
			})
			switch c, ok := connect(t, addr); {
			case !ok && !retry: // it was reset at once
			case !retry:
				if err := conntest.WantGone(t, c); !wasReset(err) {
					t.Errorf("the client sees %v, want a reset", err)
				}
			case ok:
				_ = c.CloseWrite()
				if b, err := io.ReadAll(c); err != nil || len(b) == 0 {
					t.Errorf("got %q, %v, want the other server's answer", b, err)
				}
			default:
				t.Error("the connection is reset")
			}
			conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
			st := p.Stats()
			if e := st.Errors; !retry && (len(e) != 1 || e[listener.ReasonEndpointOut] != 1) || retry && (len(e) != 0 || st.Moved != 1) {
				t.Errorf("errors: %v, moved: %d", e, st.Moved)
			}
		})
	}
}

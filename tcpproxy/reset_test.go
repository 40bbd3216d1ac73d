package tcpproxy_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tcpproxy"
)

// TestResetIsNoEnd: a client resets its connection while the server sends. The system tells that once: if a write to the client finds
// it, a read sees only the end of the stream, which must not look to the server like the end of all that the client wanted to send.
func TestResetIsNoEnd(t *testing.T) {
	server, client := certs.New().Configs()
	for _, overTLS := range []bool{true, false} {
		t.Run(map[bool]string{true: "tls", false: "clear"}[overTLS], func(t *testing.T) {
			ended := make(chan error)
			backend := conntest.Serve(t, func(c *net.TCPConn) {
				var wrote error // of a failed write this server's own socket has told of the reset
				for range 50 {
					if _, err := io.WriteString(c, "220 ready"); err != nil {
						wrote = err
					}
				}
				_, err := io.Copy(io.Discard, c)
				ended <- cmp.Or(wrote, err)
			})
			_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
				if overTLS {
					c.TLS = server
				}
			})
			for range 50 {
				raw := conntest.Dial(t, addr)
				var c net.Conn = raw
				if overTLS {
					c = tls.Client(raw, client)
				}
				conntest.Want(t, c, "220 ready") // the session has begun
				if _, err := io.WriteString(c, "the first half"); err != nil {
					t.Fatal(err)
				}
				_ = raw.SetLinger(0)
				_ = raw.Close()
				if err := <-ended; !wasReset(err) {
					t.Fatalf("the server sees %v instead of a reset", err)
				}
			}
		})
	}
}

// TestResetBehindTheEnd: a client ends its stream, by close_notify or a FIN, and then resets the connection because it does not read what the
// server goes on sending. The server sees the end of the stream, and no reset before it: without loops, which may have told it of the failed
// session before the last bytes were on their way.
func TestResetBehindTheEnd(t *testing.T) {
	server, client := certs.New().Configs()
	for _, overTLS := range []bool{true, false} {
		t.Run(map[bool]string{true: "tls", false: "clear"}[overTLS], func(t *testing.T) {
			type stream struct {
				b   []byte
				err error
			}
			ended := make(chan stream)
			backend := conntest.Serve(t, func(c *net.TCPConn) {
				wrote := make(chan struct{})
				go func() {
					defer close(wrote)
					for piece := make([]byte, 8<<10); ; {
						if _, err := c.Write(piece); err != nil {
							return
						}
					}
				}()
				b, err := io.ReadAll(c)
				ended <- stream{b, err}
				_ = c.Close()
				<-wrote
			})
			dial := func(ctx context.Context, address string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			}
			p, _ := start(t, []string{backend}, tcpproxy.UpstreamOptions{Dial: dial}, func(c *tcpproxy.Config) {
				if overTLS {
					c.TLS = server
				}
			})
			addr := conntest.Run(t, conntest.Listen(t), p.Serve, p.Close)
			for range 50 {
				raw := conntest.Dial(t, addr)
				c := interface {
					net.Conn
					CloseWrite() error
				}(raw)
				if overTLS {
					c = tls.Client(raw, client)
				}
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(c, "the whole")
				_ = c.CloseWrite()
				_ = raw.SetLinger(0)
				_ = raw.Close()
				if s := <-ended; s.err != nil || string(s.b) != "the whole" {
					t.Fatalf("the server gets %q, %v", s.b, s.err)
				}
			}
		})
	}
}

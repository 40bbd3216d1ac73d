//go:build unix

package tcppool_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool/tcppool"
)

// TestConnectionsOfAnEngine: the engine may have taken received bytes out of the socket.
func TestConnectionsOfAnEngine(t *testing.T) {
	ends := map[string]func(remote net.Conn){
		"more than was asked for": func(remote net.Conn) { _, _ = io.WriteString(remote, "more") },
		"the end":                 func(remote net.Conn) { remote.Close() },
		"the end after more":      func(remote net.Conn) { _, _ = io.WriteString(remote, "more"); remote.Close() },
	}
	for i := range 4 {
		secure, used := i&1 != 0, i&2 != 0
		for name, end := range ends {
			t.Run(fmt.Sprintf("tls=%v/used=%v/%s", secure, used, name), func(t *testing.T) {
				dialled := make(chan net.Conn, 10)
				cfg := tcppool.Config{Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
					c, err := enginetest.Dial(ctx, address)
					dialled <- c
					return c, err
				}}
				var s *server
				accept := func() net.Conn { return s.accept(t) }
				if secure {
					ss := listenTLS(t, tls.VersionTLS13)
					s, cfg.TLS = ss.server, ss.client
					accept = func() net.Conn { return ss.accept(t) }
				} else {
					s = listen(t)
				}
				d := dialer(t, cfg)
				c := get(t, d, s)
				conn, remote := <-dialled, accept()
				exchange(t, c, remote)
				exchange(t, remote, c)
				if !c.Release() {
					t.Fatal("not kept")
				}
				c = get(t, d, s)
				if !c.Reused() {
					t.Fatal("not lent again")
				}
				if used {
					exchange(t, c, remote)
				}
				end(remote)
				for stream := fiber.StreamOf(conn); stream.State() == fiber.Silent; {
				}
				if c.Release() && used {
					t.Error("kept")
				}
				if get(t, d, s).Reused() {
					t.Error("lent")
				}
			})
		}
	}
}

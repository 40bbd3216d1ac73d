package httpproxy_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// headStart writes with each record of TLS the beginning of the next.
type headStart struct {
	net.Conn
	held []byte // the record that was begun
	on   bool
}

func (c *headStart) Write(p []byte) (int, error) {
	if !c.on {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(append(c.held, p[0])); err != nil {
		return 0, err
	}
	c.held = append([]byte(nil), p[1:]...)
	return len(p), nil
}

// TestServerHTTP2DribblesSettings: a server that sends its SETTINGS byte by byte, and always has begun to send the next, gets no
// more time for them than one that sends nothing.
func TestServerHTTP2DribblesSettings(t *testing.T) { paced(t, dribblesSettings) }

func dribblesSettings(t testing.TB, unit time.Duration) {
	server, client := certificates(t)
	server.NextProtos = []string{"h2"}
	var begun atomic.Bool
	closed := make(chan bool, 8) // by the gateway
	addr := serveRaw(t, func(c net.Conn) {
		below := &headStart{Conn: c}
		s := tls.Server(below, server)
		if _, err := io.ReadFull(s, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		below.on = true
		begun.Store(true)
		_ = c.SetDeadline(time.Now().Add(patience / 2))
		settings := append([]byte{0, 16380 >> 8, 16380 & 0xff, 4, 0, 0, 0, 0, 0}, make([]byte, 16380)...)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := range settings {
			<-tick.C
			if _, err := s.Write(settings[i : i+1]); err != nil {
				closed <- !errors.Is(err, os.ErrDeadlineExceeded)
				return
			}
		}
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2, TLS: client, ConnectTimeout: 3 * unit}, addr)
	p := startProxy(t, routeTo(u))
	if resp, body := get(t, p.url); resp.StatusCode/100 != 5 {
		t.Errorf("status %d %q, want an error", resp.StatusCode, body)
	}
	if !begun.Load() {
		t.Error("no connection was there in time")
	} else if !<-closed {
		t.Error("the server was read as long as it sent")
	}
}

package tcpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// tellClient is a server that reads a PROXY header and answers with the
// addresses in it and the bytes after it.
func tellClient(c *net.TCPConn) {
	br := bufio.NewReader(c)
	h, err := proxyproto.Read(br)
	if err != nil {
		fmt.Fprintf(c, "bad header: %v", err)
		return
	}
	rest, _ := io.ReadAll(br)
	fmt.Fprintf(c, "v%d %v -> %v: %s", h.Version, h.SourceAddr, h.DestinationAddr, rest)
}

func TestProxyHeaderToUpstream(t *testing.T) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			backend := conntest.Serve(t, tellClient)
			_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MinIdle: 2}}},
				func(c *tcpproxy.Config) { c.SendProxy = version })
			c := conntest.Dial(t, addr)
			io.WriteString(c, "payload")
			c.CloseWrite()
			b, _ := io.ReadAll(c)
			expect := fmt.Sprintf("v%d %v -> %v: payload", version, c.LocalAddr(), addr)
			if string(b) != expect {
				t.Errorf("got %q, want %q", b, expect)
			}
		})
	}
}

// TestProxyHeaderBothWays accepts a header of one version and passes its
// addresses on in the other; the payload comes in the same packet.
func TestProxyHeaderBothWays(t *testing.T) {
	backend := conntest.Serve(t, tellClient)
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.Listener.AcceptProxy = true
		c.SendProxy = 2
	})
	c := conntest.Dial(t, addr)
	io.WriteString(c, "PROXY TCP4 192.0.2.7 198.51.100.1 5555 443\r\nhello")
	c.CloseWrite()
	b, _ := io.ReadAll(c)
	if expect := "v2 192.0.2.7:5555 -> 198.51.100.1:443: hello"; string(b) != expect {
		t.Errorf("got %q, want %q", b, expect)
	}
}

func TestProxyHeaderGarbage(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.Listener.AcceptProxy = true
	})
	c := conntest.Dial(t, addr)
	io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	conntest.WantGone(t, c)
	p.Close()
	if n := p.Stats().Errors[listener.ReasonProxyHeader]; n != 1 {
		t.Errorf("errors: %v, want one proxy_header", p.Stats().Errors)
	}
}

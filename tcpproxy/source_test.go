package tcpproxy_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// networks are prefixes.
func networks(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// counted starts a proxy before an echo server, and counts the sessions that reach that.
func counted(t *testing.T, change func(*listener.Config)) (p *tcpproxy.Proxy, addr string, reached *atomic.Int64) {
	t.Helper()
	reached = &atomic.Int64{}
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		reached.Add(1)
		conntest.Echo(c)
	})
	p, addr = start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { change(&c.Listener) })
	return p, addr, reached
}

// as connects as the client at an address, by a PROXY header.
func as(t *testing.T, proxy, client string) *net.TCPConn {
	t.Helper()
	c := conntest.Dial(t, proxy)
	family, to := "TCP4", "192.0.2.1"
	if netip.MustParseAddr(client).Is6() {
		family, to = "TCP6", "2001:db8::1"
	}
	fmt.Fprintf(c, "PROXY %s %s %s 1234 443\r\n", family, client, to)
	return c
}

// dialFrom connects from another address of this machine.
func dialFrom(t *testing.T, addr, client string) (net.Conn, error) {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
	c, err := from.Dial("tcp", addr)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// wantReset connects from an address and wants a reset, which may arrive before the connect returns.
func wantReset(t *testing.T, addr, client string) {
	t.Helper()
	c, err := dialFrom(t, addr, client)
	if err == nil {
		err = conntest.WantGone(t, c)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: %v, want a reset", client, err)
	}
}

// TestAllowAndDeny by the address in the PROXY header.
func TestAllowAndDeny(t *testing.T) {
	p, addr, reached := counted(t, func(c *listener.Config) {
		c.AcceptProxy = true
		c.Allow, c.Deny = networks("10.0.0.0/8", "2001:db8::/32", "::ffff:192.168.0.0/112"), networks("10.9.0.0/16", "2001:db8:bad::/48")
	})
	allowed, denied := 0, 0
	for client, want := range map[string]bool{
		"10.1.2.3": true, "10.9.0.1": false, "11.0.0.1": false, "192.168.7.7": true, "192.169.0.1": false, "2001:db8::5": true,
		"2001:db8:bad::1": false, "2001:db9::1": false, "::ffff:10.1.2.3": true, "::ffff:10.9.0.1": false,
	} {
		c := as(t, addr, client)
		if want {
			allowed++
			conntest.Exchange(t, c, client)
			continue
		}
		denied++
		conntest.WantGone(t, c)
	}
	p.Close()
	st := p.Stats()
	delete(st.Errors, listener.ReasonDrained) // by Close
	if !maps.Equal(st.Errors, map[string]uint64{listener.ReasonDenied: uint64(denied)}) || st.Rejected != uint64(denied) || reached.Load() != int64(allowed) {
		t.Errorf("errors %v, rejected %d, %d reached the backend; want %d denied and %d there", st.Errors, st.Rejected, reached.Load(), denied, allowed)
	}
}

// TestAllowOfPeers goes by the peer's own address where its header is not believed, and takes IPv4 clients of a socket of both families as such.
func TestAllowOfPeers(t *testing.T) {
	raw, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := enginetest.Listener(raw)
	if err != nil {
		t.Fatal(err)
	}
	p, _, reached := counted(t, func(c *listener.Config) {
		c.AcceptProxy, c.TrustedProxies, c.Allow = true, networks("127.0.0.9/32"), networks("127.0.0.1/32")
	})
	addr := conntest.Run(t, l, p.Serve, p.Close)
	_, port, _ := net.SplitHostPort(addr)
	addr = net.JoinHostPort("127.0.0.1", port)
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n") // not believed: payload
	wantReset(t, addr, "127.0.0.2")
	p.Close()
	if e := p.Stats().Errors; e[listener.ReasonDenied] != 1 || reached.Load() != 1 {
		t.Errorf("errors %v, %d reached the backend", e, reached.Load())
	}
}

// TestLimitsOfSources counts connections and their rate by source, with a PROXY header or without, and anew after an
// Update.
func TestLimitsOfSources(t *testing.T) {
	for _, proxied := range []bool{false, true} {
		var settings listener.Config
		var cfg tcpproxy.Config
		backend := conntest.Serve(t, conntest.Echo)
		p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
			c.Listener.AcceptProxy, c.Listener.MaxConnsPerSource = proxied, 2
			c.Listener.ConnectionRate = listener.Rate{Connections: 6, Per: time.Hour}
			cfg, settings = *c, c.Listener
		})
		connect := func(client string) net.Conn {
			t.Helper()
			if proxied {
				return as(t, addr, client)
			}
			c, err := dialFrom(t, addr, client)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		refused := func() {
			t.Helper()
			if proxied {
				conntest.WantGone(t, connect("127.0.0.2"))
			} else {
				wantReset(t, addr, "127.0.0.2")
			}
		}
		first := connect("127.0.0.2") // the rate: 1
		conntest.Exchange(t, first, "one")
		conntest.Exchange(t, connect("127.0.0.2"), "two")  // 2
		refused()                                          // 3
		conntest.Exchange(t, connect("127.0.0.3"), "else") // another source
		first.Close()
		conntest.Eventually(t, "the end of the first", func() bool { return p.Stats().Active == 2 })
		conntest.Exchange(t, connect("127.0.0.2"), "three") // 4
		refused()                                           // 5: the two places are taken
		refused()                                           // 6
		refused()                                           // and the rate is used up as well
		e := p.Stats().Errors
		if full, rate := e[listener.ReasonSourceFull], e[listener.ReasonSourceRate]; full != 3 || rate != 1 {
			t.Errorf("proxied %v: errors %v, want 3 for too many and 1 for the rate", proxied, e)
		}
		settings.MaxConnsPerSource, settings.ConnectionRate = 0, listener.Rate{}
		if cfg.Listener = settings; p.Update(cfg) != nil {
			t.Error("the limits cannot be taken away")
		}
		conntest.Exchange(t, connect("127.0.0.2"), "without limits")
		p.Close()
	}
}

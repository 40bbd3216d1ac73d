package tcpproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// TestHandshakeFails has clients that never end their TLS handshake with the proxy.
func TestHandshakeFails(t *testing.T) {
	server, _ := certs.New().Configs()
	hello := helloOf(t, "a.test")
	send := func(c *net.TCPConn, b []byte) error {
		_, err := c.Write(b)
		return err
	}
	for name, c := range map[string]struct {
		begin              func(*net.TCPConn) error
		reset              bool
		reason, level, log string
	}{
		"silent": {func(*net.TCPConn) error { return nil }, true, listener.ReasonTimeout, "INFO", "no whole TLS handshake in time (50ms)"},
		"silent in between": {
			func(c *net.TCPConn) error { return send(c, hello[:100]) }, true, listener.ReasonTimeout, "INFO", "no whole TLS handshake in time (50ms)",
		},
		"plain text": {
			func(c *net.TCPConn) error { return send(c, []byte("EHLO a.test\r\n")) }, true, listener.ReasonTLS, "WARN", "first record does not look like a TLS handshake",
		},
		"gone at once":    {(*net.TCPConn).CloseWrite, true, listener.ReasonClientGone, "INFO", "read from client"},
		"gone in between": {func(c *net.TCPConn) error { return errors.Join(send(c, hello[:100]), c.CloseWrite()) }, true, listener.ReasonClientGone, "INFO", "read from client"},
		"a broken handshake": {
			func(c *net.TCPConn) error { return send(c, record([]byte("\x01\x00\x00\x04none"))) }, false, listener.ReasonTLS, "WARN", "TLS handshake with the client",
		},
	} {
		for _, routed := range []bool{false, true} {
			var log conntest.Log
			p, addr := startRoutes(t, func(cfg *tcpproxy.Config) {
				cfg.TLS, cfg.Listener.Logger, cfg.ConnectTimeout = server, log.Logger(), 10*time.Minute
				if c.reason == listener.ReasonTimeout {
					cfg.ConnectTimeout = 50 * time.Millisecond
				}
				if !routed {
					cfg.Routes = nil
				}
			})
			if conn, ok := connect(t, addr); ok {
				conntest.Eventually(t, "it is accepted", func() bool { return p.Stats().Accepted == 1 })
				begun := c.begin(conn)
				if _, err := io.Copy(io.Discard, conn); wasReset(errors.Join(begun, err)) != c.reset {
					t.Errorf("%s: the client gets %v, %v", name, begun, err)
				}
			}
			p.Close()
			if e := p.Stats().Errors; e[c.reason] != 1 || len(e) != 1 {
				t.Errorf("%s: errors: %v, want one %s", name, e, c.reason)
			}
			if line := log.Line("session failed"); !strings.Contains(line, c.log) || !strings.Contains(line, "level="+c.level) {
				t.Errorf("%s: the log lacks %q: %s", name, c.log, line)
			}
		}
	}
}

// TestReloadDuringHandshake: the settings in force at the end of the handshake count, so that no client is sent to an upstream that a
// reload has closed meanwhile.
func TestReloadDuringHandshake(t *testing.T) {
	server, client := certs.New().Configs()
	for name, c := range map[string]struct {
		before, after bool // there are routes
		want          string
	}{
		"routes": {true, true, "b:"}, "no routes": {false, false, "b:"}, "new routes": {false, true, "b:"}, "no routes any more": {true, false, "b:"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := to(t, "a", says("a")), to(t, "b", says("b"))
			var cfg tcpproxy.Config
			p, addr := start(t, []string{conntest.FreeAddress(t)}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
				c.ConnectTimeout, c.TLS = time.Hour, server
				cfg = *c
			})
			update := func(routes bool, to tcpproxy.Route) {
				cfg.Routes, cfg.Upstream = nil, to.Upstream
				if routes {
					cfg.Routes, cfg.Upstream = []tcpproxy.Route{to}, nil
				}
				if err := p.Update(cfg); err != nil {
					t.Fatal(err)
				}
			}
			update(c.before, tcpproxy.Route{SNI: []string{"localhost"}, Upstream: a})
			conn := &pausing{Conn: conntest.Dial(t, addr), pause: func() { update(c.after, tcpproxy.Route{SNI: []string{"localhost"}, Upstream: b}) }}
			conntest.Want(t, tls.Client(conn, client), c.want)
		})
	}
}

// pausing is a connection that calls pause before its second Write: within a handshake, the client has the answer to its ClientHello.
type pausing struct {
	net.Conn
	writes int
	pause  func()
}

func (c *pausing) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 2 {
		c.pause()
	}
	return c.Conn.Write(p)
}

// TestStricterDuringHandshake: a client whose handshake asked for no certificate does not get to an upstream that came with the demand for one.
func TestStricterDuringHandshake(t *testing.T) {
	for _, routed := range []bool{false, true} {
		server, client := certs.New().Configs()
		var cfg tcpproxy.Config
		p, addr := startRoutes(t, func(c *tcpproxy.Config) {
			c.TLS, c.ConnectTimeout = server, time.Hour
			if c.Routes[0].SNI = []string{"localhost"}; !routed {
				c.Upstream, c.Routes = c.Routes[0].Upstream, nil
			}
			cfg = *c
		})
		inner := to(t, "inner", says("inner"))
		conn := tls.Client(&pausing{Conn: conntest.Dial(t, addr), pause: func() {
			cfg.TLS = server.Clone()
			cfg.TLS.ClientAuth = tls.RequireAnyClientCert
			if cfg.Upstream = inner; routed {
				cfg.Routes = []tcpproxy.Route{{SNI: []string{"localhost"}, Upstream: inner}}
			}
			if err := p.Update(cfg); err != nil {
				t.Error(err)
			}
		}}, client)
		conntest.Want(t, conn, "a:")
	}
}

// TestRouteGoneDuringHandshake: a client whose route a reload has removed is reset.
func TestRouteGoneDuringHandshake(t *testing.T) {
	server, client := certs.New().Configs()
	var cfg tcpproxy.Config
	p, addr := startRoutes(t, func(c *tcpproxy.Config) {
		c.Upstream, c.TLS, c.ConnectTimeout = nil, server, time.Hour
		c.Routes[0].SNI = []string{"localhost"}
		cfg = *c
	})
	conn := tls.Client(&pausing{Conn: conntest.Dial(t, addr), pause: func() {
		cfg.Routes = cfg.Routes[1:]
		if err := p.Update(cfg); err != nil {
			t.Error(err)
		}
	}}, client)
	if err := conntest.WantGone(t, conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client gets %v, want a reset", err)
	}
	conntest.Eventually(t, "it is counted", func() bool { return p.Stats().Errors[listener.ReasonUnknownRoute] == 1 })
}

// TestResumedSessionNeedsARoute: a session ticket makes no certificate necessary, but a route.
func TestResumedSessionNeedsARoute(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server, client := certs.New().Configs()
		p, addr := startRoutes(t, func(c *tcpproxy.Config) { c.Upstream, c.TLS = nil, server })
		client.InsecureSkipVerify, client.MaxVersion = true, version
		client.ClientSessionCache = oneSessionCache{new(*tls.ClientSessionState)}
		client.ServerName = "a.test"
		conn := tls.Client(conntest.Dial(t, addr), client)
		conntest.Want(t, conn, "a:") // the tickets come first
		client = client.Clone()
		client.ServerName = "unknown.test"
		if err := tls.Client(conntest.Dial(t, addr), client).Handshake(); err == nil || err.Error() != "remote error: tls: unrecognized name" {
			t.Errorf("TLS %x: the client sees %v", version, err)
		}
		conntest.Eventually(t, "it is counted", func() bool { return p.Stats().Errors[listener.ReasonUnknownRoute] == 1 })
	}
}

// TestStaggeredDrainBeforeHello: sessions that wait for the rest of a ClientHello are cut off before the end of the drain, too.
func TestStaggeredDrainBeforeHello(t *testing.T) {
	for limit := 2 * time.Second; ; limit *= 4 {
		p, addr := startRoutes(t, func(c *tcpproxy.Config) { c.ConnectTimeout, c.DrainStagger = time.Hour, 90*time.Minute })
		c := conntest.Dial(t, addr)
		c.Write(helloOf(t, "a.test")[:50])
		conntest.Eventually(t, "the first half is read", func() bool { return oneSession(t, p).BytesIn == 50 })
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := p.Drain(ctx)
		early := ctx.Err() == nil
		cancel()
		if conntest.WantGone(t, c); early {
			if err == nil || !strings.Contains(err.Error(), "sessions cut off shortly before the end of the drain: 1") {
				t.Errorf("drain: %v", err)
			}
			return
		}
		if limit > time.Minute { // a machine that was busy for all of the time
			t.Fatal("the session was there until the end of the drain")
		}
	}
}

package tcpproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// grease are extensions as browsers send them: GREASE (RFC 8701), and an encrypted_client_hello without meaning.
func grease() []byte {
	ech := []byte{0, 0, 1, 0, 1, 7, 0, 32}
	ech = append(ech, bytes.Repeat([]byte{9}, 32)...)
	ech = append(ech, 0, 144)
	ech = append(ech, bytes.Repeat([]byte{8}, 144)...)
	return append(extension(0x2a2a), append(extension(0xfe0d, ech...), extension(0xbaba, 0)...)...)
}

// TestRouteByHello sends ClientHellos of every shape; the server gets what the client has sent, byte for byte.
func TestRouteByHello(t *testing.T) {
	_, addr := startRoutes(t, nil)
	a := helloOf(t, "a.test")
	for _, c := range []struct {
		name, want string
		sent       []byte
	}{
		{"a name", "a", a},
		{"a name in capitals", "a", helloOf(t, "A.Test")},
		{"a name below", "b", helloOf(t, "x.b.test")},
		{"a name far below", "b", helloOf(t, "z.y.x.B.test")},
		{"the name itself", "others", helloOf(t, "b.test")},
		{"a name that ends alike", "others", helloOf(t, "xb.test")},
		{"another name", "others", helloOf(t, "c.test")},
		{"another name and a protocol", "h2", helloOf(t, "c.test", "http/1.1", "h2")},
		{"a name goes before a protocol", "a", helloOf(t, "a.test", "h2")},
		{"no name", "others", helloOf(t, "")},
		{"no name but a protocol", "h2", helloOf(t, "", "h2")},
		{"another protocol", "others", helloOf(t, "c.test", "h3", "H2")},
		{"records of one byte", "a", records(a, 1)},
		{"records of 100 bytes", "b", records(helloOf(t, "x.b.test"), 100)},
		{"GREASE and ECH", "a", withExtensions(a, grease())},
		{"8 KiB", "a", withExtensions(a, extension(21, make([]byte, 8<<10)...))},
		{"more behind it", "a", append(bytes.Clone(a), "early data of any kind"...)},
		{"HTTP", "others", []byte("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")},
		{"one byte", "others", []byte("x")},
		{"an alert", "others", []byte{21, 3, 3, 0, 2, 1, 0}},
		{"SSL 2", "others", []byte{0x80, 46, 1, 3, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := conntest.Dial(t, addr)
			conn.Write(c.sent)
			conntest.Want(t, conn, c.want+":"+string(c.sent))
			conntest.Exchange(t, conn, "and on it goes")
			conn.CloseWrite()
			if b, err := io.ReadAll(conn); err != nil || len(b) > 0 {
				t.Errorf("after the half-close: %q, %v", b, err)
			}
		})
	}
}

// oneSession returns the only session.
func oneSession(t *testing.T, p *tcpproxy.Proxy) listener.Info {
	t.Helper()
	var all []listener.Info
	conntest.Eventually(t, "one session is listed", func() bool {
		all = p.Sessions()
		return len(all) == 1
	})
	return all[0]
}

// TestHelloInSegments sends each of the first bytes alone, once the proxy has that before it, and the others in pieces.
func TestHelloInSegments(t *testing.T) {
	p, addr := startRoutes(t, func(c *tcpproxy.Config) { c.ConnectTimeout = time.Hour })
	hello := records(helloOf(t, "x.b.test"), 64)
	c := conntest.Dial(t, addr)
	for sent := 0; sent < len(hello); {
		conntest.Eventually(t, "what was sent is read", func() bool { return oneSession(t, p).BytesIn == uint64(sent) })
		n := 1
		if sent >= 80 {
			n = min(97, len(hello)-sent)
		}
		c.Write(hello[sent : sent+n])
		sent += n
	}
	conntest.Want(t, c, "b:"+string(hello))
	conntest.Exchange(t, c, "more")
	if s := oneSession(t, p); s.Upstream != "b" || s.State != listener.StateActive || s.BytesIn < uint64(len(hello)) {
		t.Errorf("%+v", s)
	}
	conntest.Eventually(t, "all is counted once", func() bool { return oneSession(t, p).BytesIn == uint64(len(hello)+4) })
}

// TestHelloThenHalfClosed: a client that closes its sending side behind the ClientHello gets its answer.
func TestHelloThenHalfClosed(t *testing.T) {
	_, addr := startRoutes(t, nil)
	hello := helloOf(t, "a.test")
	c := conntest.Dial(t, addr)
	c.Write(hello)
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "a:"+string(hello) {
		t.Errorf("got %q, %v", b, err)
	}
}

// Alerts, as records.
const (
	decodeError      = "\x15\x03\x03\x00\x02\x02\x32"
	unrecognizedName = "\x15\x03\x03\x00\x02\x02\x70"
)

// TestHelloRefused: what no route takes, and what is no ClientHello, is answered and counted.
func TestHelloRefused(t *testing.T) {
	other := helloOf(t, "c.test", "h3")
	broken := bytes.Clone(other)
	broken[len(broken)-1]++ // the length of the last extension, or what is in it
	for _, c := range []struct {
		name, want, reason, log string
		sent                    []byte
	}{
		{"no route", unrecognizedName, listener.ReasonUnknownRoute, `SNI \"c.test\", ALPN [\"h3\"]`, other},
		{"not a handshake message", decodeError, listener.ReasonTLS, "ClientHello: ", record([]byte("\x02\x00\x00\x01x"))},
		{"a body that is none", decodeError, listener.ReasonTLS, "ClientHello: ", record([]byte("\x01\x00\x00\x04none"))},
		{"a body that ends early", decodeError, listener.ReasonTLS, "ClientHello: ", record(append([]byte{1, 0, 0, 40}, other[9:49]...))},
		{"a record that is too long", decodeError, listener.ReasonTLS, "ClientHello: ", []byte("\x16\x03\x01\xff\xff")},
		{"a name with a dot at its end", decodeError, listener.ReasonTLS, "ClientHello: ", withName(t, "a.test.")},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log conntest.Log
			p, addr := startRoutes(t, func(cfg *tcpproxy.Config) {
				cfg.Upstream, cfg.Listener.Logger = nil, log.Logger()
			})
			conn := conntest.Dial(t, addr)
			conn.Write(c.sent)
			if got, err := io.ReadAll(conn); err != nil || string(got) != c.want {
				t.Errorf("the client gets %q, %v, want %q", got, err, c.want)
			}
			p.Close()
			if e := p.Stats().Errors; e[c.reason] != 1 || len(e) != 1 {
				t.Errorf("errors: %v, want one %s", e, c.reason)
			}
			if line := log.Line("session failed"); !strings.Contains(line, c.log) {
				t.Errorf("the log lacks %q: %s", c.log, line)
			}
		})
	}
}

// withName returns a ClientHello for a name that crypto/tls would not send.
func withName(t *testing.T, name string) []byte {
	entry := append([]byte{0, byte(len(name) + 3), 0, 0, byte(len(name))}, name...)
	return withExtensions(helloOf(t, ""), extension(0, entry...))
}

// TestHelloReset has clients that are reset: there is nothing to tell them in a language of theirs, or they have sent
// more than is read.
func TestHelloReset(t *testing.T) {
	a := helloOf(t, "a.test")
	large := withExtensions(a, extension(21, make([]byte, 20<<10)...))
	for _, c := range []struct {
		name, reason, log string
		sent              []byte
	}{
		{"plain text without an upstream for it", listener.ReasonTLS, "does not begin with a TLS ClientHello", []byte("EHLO a.test\r\n")},
		{"silent", listener.ReasonTimeout, "no whole ClientHello in time (50ms)", nil},
		{"silent in the middle", listener.ReasonTimeout, "no whole ClientHello in time (50ms)", a[:len(a)-1]},
		{"silent behind the first byte", listener.ReasonTimeout, "no whole ClientHello in time (50ms)", a[:1]},
		{"too large", listener.ReasonTLS, "larger than 16 KiB", large},
		{"too large in small records", listener.ReasonTLS, "larger than 16 KiB", records(append(make([]byte, 5), bytes.Repeat([]byte{1, 0, 0xff, 0xff}, 1<<12)...), 2)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log conntest.Log
			p, addr := startRoutes(t, func(cfg *tcpproxy.Config) {
				cfg.Upstream, cfg.Listener.Logger, cfg.ConnectTimeout = nil, log.Logger(), 10*time.Minute
				if c.reason == listener.ReasonTimeout {
					cfg.ConnectTimeout = 50 * time.Millisecond
				}
			})
			conn, ok := connect(t, addr)
			var got []byte
			var sendErr, err error = nil, syscall.ECONNRESET
			if ok {
				_, sendErr = conn.Write(c.sent)
				got, err = io.ReadAll(conn)
			}
			alerted := c.sent != nil && len(c.sent) > 1<<14 && strings.HasPrefix(decodeError, string(got)) // it may be lost to the reset
			if !wasReset(errors.Join(sendErr, err)) && !alerted || len(got) > 0 && !alerted {
				t.Errorf("the client gets %q, %v, want a reset", got, err)
			}
			p.Close()
			if e := p.Stats().Errors; e[c.reason] != 1 || len(e) != 1 {
				t.Errorf("errors: %v, want one %s", e, c.reason)
			}
			if line := log.Line("session failed"); !strings.Contains(line, c.log) {
				t.Errorf("the log lacks %q: %s", c.log, line)
			}
		})
	}
}

// TestClientLeavesBeforeHello: it is counted, and no server hears of it.
func TestClientLeavesBeforeHello(t *testing.T) {
	a := helloOf(t, "a.test")
	for name, leave := range map[string]func(*net.TCPConn){
		"at once":              func(c *net.TCPConn) { c.Close() },
		"at once, by a reset":  func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"in the middle":        func(c *net.TCPConn) { c.Write(a[:100]); c.Close() },
		"after a half-close":   func(c *net.TCPConn) { c.Write(a[:100]); c.CloseWrite() },
		"in a record's header": func(c *net.TCPConn) { c.Write(a[:3]); c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			var log conntest.Log
			p, addr := startRoutes(t, func(c *tcpproxy.Config) { c.Listener.Logger = log.Logger() })
			c := conntest.Dial(t, addr)
			conntest.Eventually(t, "it is accepted", func() bool { return p.Stats().Accepted == 1 })
			leave(c)
			conntest.Eventually(t, "it is counted", func() bool { return p.Stats().Errors[listener.ReasonClientGone] == 1 })
			p.Close()
			if line := log.Line("session failed"); !strings.Contains(line, "read from client") || !strings.Contains(line, "level=INFO") || !strings.Contains(line, `upstream=""`) {
				t.Error(line)
			}
			if e := p.Stats().Errors; len(e) != 1 {
				t.Errorf("errors: %v", e)
			}
		})
	}
}

// TestKillAndDrainBeforeHello end sessions that wait for the rest of a ClientHello.
func TestKillAndDrainBeforeHello(t *testing.T) {
	for reason, end := range map[string]func(*testing.T, *tcpproxy.Proxy, listener.ID){
		listener.ReasonKilled: func(t *testing.T, p *tcpproxy.Proxy, id listener.ID) {
			if p.Kill(id, 1) || !p.Kill(id, 0) || p.Kill(id, 0) {
				t.Error("want one session without streams, to be ended once")
			}
		},
		listener.ReasonDrained: func(t *testing.T, p *tcpproxy.Proxy, _ listener.ID) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := p.Drain(ctx); err == nil {
				t.Error("the drain has not cut it off")
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			p, addr := startRoutes(t, func(c *tcpproxy.Config) { c.ConnectTimeout = time.Hour })
			c := conntest.Dial(t, addr)
			c.Write(helloOf(t, "a.test")[:50])
			conntest.Eventually(t, "the first half is read", func() bool { return oneSession(t, p).BytesIn == 50 })
			s := oneSession(t, p)
			if s.State != listener.StateStarting || s.Upstream != "" {
				t.Errorf("%+v", s)
			}
			id, _, _ := listener.ParseID(s.ID)
			end(t, p, id)
			conntest.WantGone(t, c)
			conntest.Eventually(t, "the session is over", func() bool { return len(p.Sessions()) == 0 })
			conntest.Eventually(t, "it is counted", func() bool { return p.Stats().Errors[reason] == 1 })
			if e := p.Stats().Errors; len(e) != 1 {
				t.Errorf("errors: %v, want one %s", e, reason)
			}
		})
	}
}

// TestDrainLetsHelloEnd: a session that has begun may come to its end while the proxy drains.
func TestDrainLetsHelloEnd(t *testing.T) {
	p, addr := startRoutes(t, func(c *tcpproxy.Config) { c.ConnectTimeout = time.Hour })
	hello := helloOf(t, "a.test")
	c := conntest.Dial(t, addr)
	c.Write(hello[:50])
	conntest.Eventually(t, "the first half is read", func() bool { return oneSession(t, p).BytesIn == 50 })
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(context.Background()) }()
	conntest.Eventually(t, "it drains", func() bool { return oneSession(t, p).Draining })
	c.Write(hello[50:])
	conntest.Want(t, c, "a:"+string(hello))
	c.CloseWrite()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// TestReloadOfRoutes: clients whose ClientHello ends later see new routes; sessions keep their servers.
func TestReloadOfRoutes(t *testing.T) {
	var cfg tcpproxy.Config
	p, addr := startRoutes(t, func(c *tcpproxy.Config) {
		c.ConnectTimeout = time.Hour
		cfg = *c
	})
	hello := helloOf(t, "a.test")
	running, early := conntest.Dial(t, addr), conntest.Dial(t, addr)
	running.Write(hello)
	conntest.Want(t, running, "a:"+string(hello))
	early.Write(hello[:50])
	conntest.Eventually(t, "both have begun", func() bool {
		in := uint64(0)
		for _, s := range p.Sessions() {
			in += s.BytesIn
		}
		return in == uint64(len(hello)+50)
	})
	was := cfg.Routes
	cfg.Routes = []tcpproxy.Route{{SNI: []string{"a.test"}, Upstream: was[1].Upstream}}
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	c := conntest.Dial(t, addr)
	c.Write(hello)
	conntest.Want(t, c, "b:"+string(hello))
	early.Write(hello[50:])
	conntest.Want(t, early, "b:"+string(hello))
	conntest.Exchange(t, running, "still here")

	cfg.Routes = nil
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	c = conntest.Dial(t, addr)
	conntest.Want(t, c, "others:") // which speaks first, as it can now
	cfg.Routes, cfg.Upstream = was, nil
	cfg.Routes[1].SNI = []string{"bad name"}
	if err := p.Update(cfg); !errors.Is(err, tcpproxy.ErrConfig) || !strings.Contains(err.Error(), `route 2: SNI "bad name"`) {
		t.Errorf("update: %v", err)
	}
}

// TestRouteWithProxyHeaders: the header comes with the ClientHello, and goes before it.
func TestRouteWithProxyHeaders(t *testing.T) {
	for _, version := range []int{1, 2} {
		_, addr := startRoutes(t, func(c *tcpproxy.Config) {
			c.Listener.AcceptProxy, c.SendProxy = true, version
			c.Routes = []tcpproxy.Route{{SNI: []string{"a.test"}, Upstream: to(t, "told", tellClient)}}
		})
		hello := helloOf(t, "a.test")
		c := conntest.Dial(t, addr)
		c.Write(append([]byte("PROXY TCP4 192.0.2.7 198.51.100.1 5555 443\r\n"), hello...))
		c.CloseWrite()
		b, _ := io.ReadAll(c)
		if want := fmt.Sprintf("v%d 192.0.2.7:5555 -> 198.51.100.1:443: %s", version, hello); string(b) != want {
			t.Errorf("got %q, want %q", b, want)
		}
	}
}

// TestRouteWithoutServer: the upstream of the route is the one that failed, and is named.
func TestRouteWithoutServer(t *testing.T) {
	var log conntest.Log
	dead, err := tcpproxy.NewUpstream("dead", deadOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	p, addr := startRoutes(t, func(c *tcpproxy.Config) {
		c.Listener.Logger = log.Logger()
		c.Routes = []tcpproxy.Route{{SNI: []string{"a.test"}, Upstream: dead}}
	})
	c := conntest.Dial(t, addr)
	c.Write(helloOf(t, "a.test"))
	if err := conntest.WantGone(t, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v, want a reset", err)
	}
	p.Close()
	if e := p.Stats().Errors; e[listener.ReasonUpstreamUnavailable] != 1 || len(e) != 1 {
		t.Errorf("errors: %v", e)
	}
	if line := log.Line("session failed"); !strings.Contains(line, "upstream=dead") {
		t.Error(line)
	}
}

// TestRoutesAccessLog names the upstream of the route.
func TestRoutesAccessLog(t *testing.T) {
	lines := make(chan string, 8)
	_, addr := startRoutes(t, func(c *tcpproxy.Config) {
		c.Listener.AccessLog = true
		c.Listener.Logger = slog.New(slog.NewTextHandler(lineWriter(lines), nil))
	})
	hello := helloOf(t, "x.b.test")
	c := conntest.Dial(t, addr)
	c.Write(hello)
	c.CloseWrite()
	io.Copy(io.Discard, c)
	if line := <-lines; !strings.Contains(line, "upstream=b ") || !strings.Contains(line, fmt.Sprintf("bytes_in=%d bytes_out=%d", len(hello), len(hello)+2)) {
		t.Error(line)
	}
}

package tcpproxy_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

func TestCheckSNI(t *testing.T) {
	long := strings.Repeat("abcdefghi.", 26)
	for name, want := range map[string]string{
		"a.test": "", "A": "", "*.a.test": "", "xn--mller-kva.test": "", "_srv.a-b.test": "",
		"": "want a DNS name", "*": "want a DNS name", "*.": "want a DNS name", "a.*.test": "want a DNS name", "*a.test": "want a DNS name",
		"a.test.": "want a DNS name", "a b": "want a DNS name", "müller.test": "want a DNS name", strings.Repeat("a", 64): "want a DNS name", long + "x": "want a DNS name",
		"192.0.2.1": "names no addresses", "::1": "names no addresses",
	} {
		err := tcpproxy.CheckSNI(name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// TestOverlongServerName: what is longer than a DNS name fits no route with names, whatever it ends in. Routes without names do not look at it.
func TestOverlongServerName(t *testing.T) {
	routes := []tcpproxy.Route{{SNI: []string{"*.a.test"}}, {ALPN: []string{"h2"}}}
	longest := strings.Repeat("x", 253-len(".a.test")) + ".a.test"
	for name, want := range map[string]int{longest: 0, "x" + longest: -1, strings.Repeat(".", 1<<14) + "a.test": -1} {
		if got := tcpproxy.Choose(routes, name, nil); got != want {
			t.Errorf("a name of %d bytes goes to route %d, want %d", len(name), got, want)
		}
		if got := tcpproxy.Choose(routes[1:], name, []string{"h2"}); got != 0 {
			t.Errorf("a name of %d bytes goes to route %d by its protocol", len(name), got)
		}
	}
}

func TestRoutesAreVerified(t *testing.T) {
	up := to(t, "up", conntest.Echo)
	for want, route := range map[string]tcpproxy.Route{
		"Upstream is missing":              {SNI: []string{"a.test"}},
		"SNI and ALPN are empty":           {Upstream: up},
		"ConnectTimeout -1ns is negative":  {SNI: []string{"a.test"}, Upstream: up, ConnectTimeout: -1},
		`SNI "a..test": want a DNS name`:   {SNI: []string{"b.test", "a..test"}, Upstream: up},
		`ALPN "": a protocol has 1 to 255`: {ALPN: []string{""}, Upstream: up},
		"ALPN \"xxxxxxxxxxxxxxxxxxxx\"":    {ALPN: []string{strings.Repeat("x", 256)}, Upstream: up},
	} {
		_, err := tcpproxy.New(tcpproxy.Config{Listener: listener.Config{Name: "web"}, Routes: []tcpproxy.Route{{ALPN: []string{"h2"}, Upstream: up}, route}})
		if !errors.Is(err, tcpproxy.ErrConfig) || !strings.Contains(err.Error(), `listener "web": route 2: `+want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestTLSPassesThrough: each client has its handshake with the server of its route, which asks for another key share first.
func TestTLSPassesThrough(t *testing.T) {
	serve := func(name string) (func(*net.TCPConn), *certs.Authority) {
		authority := certs.New()
		config := &tls.Config{
			Certificates: []tls.Certificate{authority.Issue(name, name+".test")}, NextProtos: []string{"x", name},
			CurvePreferences: []tls.CurveID{tls.CurveP384},
		}
		return func(c *net.TCPConn) {
			s := tls.Server(c, config)
			defer s.Close()
			io.Copy(s, s)
		}, authority
	}
	serveA, ofA := serve("a")
	serveB, ofB := serve("b")
	_, addr := startRoutes(t, func(c *tcpproxy.Config) {
		c.Routes = []tcpproxy.Route{{SNI: []string{"a.test"}, Upstream: to(t, "a", serveA)}, {ALPN: []string{"b"}, Upstream: to(t, "b", serveB)}}
	})
	sessions := tls.NewLRUClientSessionCache(4)
	for i := range 2 {
		for name, authority := range map[string]*certs.Authority{"a": ofA, "b": ofB} {
			c := tls.Client(conntest.Dial(t, addr), &tls.Config{
				RootCAs: authority.Pool, ServerName: name + ".test", NextProtos: []string{name}, ClientSessionCache: sessions,
			})
			conntest.Exchange(t, c, "for your eyes only")
			s := c.ConnectionState()
			if s.NegotiatedProtocol != name || s.DidResume != (i > 0) || s.CurveID != tls.CurveP384 {
				t.Errorf("%s, connection %d: protocol %q, resumed %v, curve %v", name, i+1, s.NegotiatedProtocol, s.DidResume, s.CurveID)
			}
		}
	}
}

// TestRoutesBehindTLS: where the proxy ends TLS, the same handshake chooses the route, and what is agreed to is the route's.
// Sessions are resumed, whatever route the client took before, and go where the new ClientHello says.
func TestRoutesBehindTLS(t *testing.T) {
	server, client := certs.New().Configs()
	server.CurvePreferences = []tls.CurveID{tls.CurveP384} // of which crypto/tls sends no key share: HelloRetryRequest
	_, addr := startRoutes(t, func(c *tcpproxy.Config) { c.TLS = server })
	client = client.Clone()
	client.InsecureSkipVerify = true // the certificate is for localhost
	client.ClientSessionCache = oneSessionCache{new(*tls.ClientSessionState)}
	for i, c := range []struct{ name, protocols, backend, agreed string }{
		{"a.test", "", "a", ""},
		{"a.test", "h2", "a", ""},
		{"x.b.test", "", "b", ""},
		{"c.test", "http/1.1 h2", "h2", "h2"},
		{"c.test", "http/1.1 h2", "h2", "h2"},
		{"c.test", "http/1.1", "others", ""},
		{"a.test", "", "a", ""},
	} {
		config := client.Clone()
		config.ServerName, config.NextProtos = c.name, strings.Fields(c.protocols)
		conn := tls.Client(conntest.Dial(t, addr), config)
		conntest.Want(t, conn, c.backend+":")
		conntest.Exchange(t, conn, "hello")
		s := conn.ConnectionState()
		if s.NegotiatedProtocol != c.agreed || s.CurveID != tls.CurveP384 {
			t.Errorf("connection %d: protocol %q, want %q; curve %v", i+1, s.NegotiatedProtocol, c.agreed, s.CurveID)
		}
		if s.DidResume != (i > 0) {
			t.Errorf("connection %d: resumed is %v", i+1, s.DidResume)
		}
		conn.Close()
	}
}

// oneSessionCache gives every connection the last session.
type oneSessionCache struct{ last **tls.ClientSessionState }

func (c oneSessionCache) Get(string) (*tls.ClientSessionState, bool) { return *c.last, *c.last != nil }
func (c oneSessionCache) Put(_ string, s *tls.ClientSessionState)    { *c.last = s }

// TestNoRouteBehindTLS tells the client the same as without TLS, in every version.
func TestNoRouteBehindTLS(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server, client := certs.New().Configs()
		var log conntest.Log
		p, addr := startRoutes(t, func(c *tcpproxy.Config) {
			c.Upstream, c.TLS, c.Listener.Logger = nil, server, log.Logger()
		})
		client.NextProtos, client.MaxVersion = []string{"h3"}, version
		err := tls.Client(conntest.Dial(t, addr), client).Handshake()
		if err == nil || err.Error() != "remote error: tls: unrecognized name" {
			t.Errorf("the client sees %v", err)
		}
		conntest.Eventually(t, "it is counted", func() bool { return p.Stats().Errors[listener.ReasonUnknownRoute] == 1 })
		p.Close()
		if e := p.Stats().Errors; e[listener.ReasonUnknownRoute] != 1 || len(e) != 1 {
			t.Errorf("errors: %v, want one unknown_route", e)
		}
		if line := log.Line("session failed"); !strings.Contains(line, `no route for the client's ClientHello (SNI \"localhost\", ALPN [\"h3\"])`) {
			t.Error(line)
		}
	}
}

// TestRoutesKeepGetConfigForClient of the proxy's TLS: it is asked after the route, whose protocols count.
func TestRoutesKeepGetConfigForClient(t *testing.T) {
	server, client := certs.New().Configs()
	for name, c := range map[string]struct {
		give *tls.Config
		err  error
		want string
	}{
		"another configuration": {give: server},
		"none":                  {},
		"an error":              {err: errors.New("not you"), want: "remote error: tls: internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			_, addr := startRoutes(t, func(cfg *tcpproxy.Config) {
				cfg.TLS = server.Clone()
				if c.give != nil {
					cfg.TLS.Certificates = nil
				}
				cfg.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.give, c.err }
			})
			config := client.Clone()
			config.NextProtos = []string{"h2"}
			conn := tls.Client(conntest.Dial(t, addr), config)
			err := conn.Handshake()
			if c.want != "" {
				if err == nil || err.Error() != c.want {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			conntest.Want(t, conn, "h2:")
			if p := conn.ConnectionState().NegotiatedProtocol; p != "h2" {
				t.Errorf("protocol %q", p)
			}
		})
	}
}

// TestRouteToTLSUpstream: each route has its own TLS with its servers, and its own time to connect.
func TestRouteToTLSUpstream(t *testing.T) {
	server, client := certs.New().Configs()
	backend := to(t, "a", func(c *net.TCPConn) {
		s := tls.Server(c, server)
		defer s.Close()
		io.Copy(s, s)
	})
	_, addr := startRoutes(t, func(c *tcpproxy.Config) {
		c.Routes = append(c.Routes[1:], tcpproxy.Route{SNI: []string{"a.test"}, Upstream: backend, UpstreamTLS: client, ConnectTimeout: time.Minute})
	})
	for sni, want := range map[string]string{"a.test": "", "x.b.test": "b:"} {
		hello := helloOf(t, sni)
		c := conntest.Dial(t, addr)
		c.Write(hello)
		conntest.Want(t, c, want+string(hello))
	}
}

// TestHalfClosedHelloWaits: a client that has closed its sending side behind its ClientHello keeps its place in the
// queue for a connection, and one that has reset does not.
func TestHalfClosedHelloWaits(t *testing.T) {
	t.Cleanup(tcpproxy.SetLookInterval(time.Millisecond))
	lines := make(chan string, 8)
	narrow, err := tcpproxy.NewUpstream("narrow", tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Endpoints: upstream.Endpoints(conntest.Serve(t, conntest.Echo)), Limits: pool.Limits{MaxSize: 1}}, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = narrow.Drain(context.Background()) }()
	_, addr := startRoutes(t, func(c *tcpproxy.Config) {
		c.ConnectTimeout = conntest.Patience
		c.Routes = []tcpproxy.Route{{SNI: []string{"a.test"}, Upstream: narrow}}
		c.Listener.Logger = slog.New(slog.NewTextHandler(lineWriter(lines), nil))
	})
	hello := helloOf(t, "a.test")
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, string(hello))
	half := conntest.Dial(t, addr)
	half.Write(hello)
	half.CloseWrite()
	gone := conntest.Dial(t, addr)
	gone.Write(hello)
	conntest.Eventually(t, "both wait", func() bool { return narrow.Status().Endpoints[0].Pool.Waiting == 2 })
	gone.SetLinger(0)
	gone.Close()
	if line := <-lines; !strings.Contains(line, "the client left while it waited") || !strings.Contains(line, "upstream=narrow") {
		t.Error(line)
	}
	first.Close()
	if b, err := io.ReadAll(half); err != nil || string(b) != string(hello) {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestIdleRoutedSessionHoldsNoHello: what read the ClientHello is gone once it has been passed on.
func TestIdleRoutedSessionHoldsNoHello(t *testing.T) {
	const sessions = 64
	hello := withExtensions(helloOf(t, "a.test"), extension(21, make([]byte, 12<<10)...))
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // pools give up what they hold at the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	each := map[string]int64{}
	for _, server := range []string{"a", "others"} {
		_, addr := startRoutes(t, func(c *tcpproxy.Config) {
			if server == "others" {
				c.Routes = nil
			}
		})
		open := func() {
			c := conntest.Dial(t, addr)
			c.Write(hello)
			conntest.Want(t, c, server+":"+string(hello))
		}
		open() // what the first one takes, others share
		before := heap()
		for range sessions {
			open()
		}
		each[server] = (heap() - before) / sessions
	}
	t.Logf("%d bytes each, %d without routes", each["a"], each["others"])
	if more := each["a"] - each["others"]; more > int64(len(hello)/2) {
		t.Errorf("an idle session takes %d bytes more of heap than one without routes; the ClientHello has %d", more, len(hello))
	}
}

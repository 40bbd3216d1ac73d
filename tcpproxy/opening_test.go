package tcpproxy_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// continues is in the log when a session continues with another endpoint.
const continues = "session continues with another endpoint"

// startBreaking runs a proxy before n endpoints. The first connections that they get, one for each of breaks, have that done to them;
// later ones are served.
func startBreaking(t *testing.T, n int, serve func(*net.TCPConn), change func(*tcpproxy.Config), breaks ...func(*net.TCPConn)) *breaking {
	t.Helper()
	b := &breaking{served: make(chan struct{}, 8)}
	var accepted atomic.Int32
	var endpoints []string
	for range n {
		endpoints = append(endpoints, conntest.Serve(t, func(c *net.TCPConn) {
			if i := int(accepted.Add(1)) - 1; i < len(breaks) {
				breaks[i](c)
				_ = c.Close()
				return
			}
			b.served <- struct{}{}
			serve(c)
		}))
	}
	b.proxy, b.address = start(t, endpoints, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
		c.ConnectTimeout, c.Listener.Logger = conntest.Patience, b.log.Logger()
		if change != nil {
			change(c)
		}
	})
	return b
}

// breaking is what startBreaking has started.
type breaking struct {
	proxy   *tcpproxy.Proxy
	address string
	log     conntest.Log
	served  chan struct{} // one for each connection that is served
}

// wantError waits until one session has ended with backend_gone, and no other error.
func (b *breaking) wantError(t *testing.T) {
	t.Helper()
	conntest.Eventually(t, "the session's end is counted", func() bool { return b.proxy.Stats().Errors[listener.ReasonBackendGone] > 0 })
	if e := b.proxy.Stats().Errors; e[listener.ReasonBackendGone] != 1 || len(e) != 1 {
		t.Errorf("errors: %v, want one backend_gone", e)
	}
}

// after reads n bytes and then does something.
func after(n int, do func(*net.TCPConn)) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, n))
		do(c)
	}
}

func resets(c *net.TCPConn) { _ = c.SetLinger(0) }
func ends(*net.TCPConn)     {}

// TestContinuesElsewhere: the endpoint breaks off, or ends its stream, before its first byte. The client, which has sent nothing, or
// some of a ClientHello, or all, is served by another one as if nothing had happened, and its bytes are counted once.
func TestContinuesElsewhere(t *testing.T) {
	hello := helloOf(t, "a.test")
	for name, c := range map[string]struct {
		before int // bytes that the client sends before the endpoint is lost
		breaks func(*net.TCPConn)
	}{
		"reset after the ClientHello":  {len(hello), after(len(hello), resets)},
		"end after the ClientHello":    {len(hello), after(len(hello), ends)},
		"reset within the ClientHello": {100, after(100, resets)},
		"end within the ClientHello":   {100, after(100, ends)},
		"reset within a header":        {3, after(3, resets)},
		"reset before it":              {0, resets},
	} {
		t.Run(name, func(t *testing.T) {
			for _, routed := range []bool{false, true} {
				if routed && c.before < len(hello) {
					continue // the endpoint gets nothing before the whole ClientHello is there
				}
				b := startBreaking(t, 2, conntest.Echo, func(cfg *tcpproxy.Config) {
					if routed {
						cfg.Routes = []tcpproxy.Route{{SNI: []string{"a.test"}, Upstream: cfg.Upstream}}
					}
				}, c.breaks)
				client := conntest.Dial(t, b.address)
				if _, err := client.Write(hello[:c.before]); err != nil {
					t.Fatal(err)
				}
				<-b.served
				if _, err := client.Write(hello[c.before:]); err != nil {
					t.Fatal(err)
				}
				conntest.Want(t, client, string(hello))
				conntest.Exchange(t, client, "and on")
				total := uint64(len(hello) + len("and on"))
				conntest.Eventually(t, "all bytes are counted", func() bool { s := b.proxy.Stats(); return s.BytesIn >= total && s.BytesOut >= total })
				if s := b.proxy.Stats(); len(s.Errors) > 0 || s.BytesIn != total || s.BytesOut != total {
					t.Errorf("routed %v: errors %v, %d bytes in, %d out; want none, %d, %d", routed, s.Errors, s.BytesIn, s.BytesOut, total, total)
				}
			}
		})
	}
}

// TestStaysWithItsEndpoint: what the client has sent must not be sent twice, or there is no other endpoint, or the server has said something. So the
// client sees what its endpoint does, and only one endpoint sees the client.
func TestStaysWithItsEndpoint(t *testing.T) {
	hello := helloOf(t, "a.test")
	early := withExtensions(hello, extension(42))
	for name, c := range map[string]struct {
		sends  []byte
		change func(*tcpproxy.Config)
		one    bool
		answer string
	}{
		"no TLS":                        {sends: []byte("question")},
		"early data":                    {sends: early},
		"more than a ClientHello":       {sends: slices.Concat(hello, hello[:1])},
		"a ClientHello in many records": {sends: records(hello, 100)},
		"another message":               {sends: record([]byte("\x02\x00\x00\x00"))},
		"no retry":                      {sends: hello, change: func(cfg *tcpproxy.Config) { cfg.NoRetry = true }},
		"one endpoint":                  {sends: hello, one: true},
		"answered":                      {sends: hello, answer: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			n := 2
			if c.one {
				n = 1
			}
			b := startBreaking(t, n, func(*net.TCPConn) { t.Error("another connection to an endpoint") }, c.change, after(len(c.sends), func(server *net.TCPConn) {
				if c.answer != "" {
					_, _ = io.WriteString(server, c.answer)
					_, _ = io.Copy(io.Discard, server) // until the client has it, and ends its stream
				}
				_ = server.SetLinger(0)
			}))
			client := conntest.Dial(t, b.address)
			if _, err := client.Write(c.sends); err != nil {
				t.Fatal(err)
			}
			if c.answer != "" {
				conntest.Want(t, client, c.answer)
				_ = client.CloseWrite()
			}
			if err := conntest.WantGone(t, client); !wasReset(err) {
				t.Errorf("the client sees %v, want a reset", err)
			}
			b.wantError(t)
			if line := b.log.Line(continues); line != "" {
				t.Error(line)
			}
		})
	}
}

// TestThreeEndpointsAtMost: a ClientHello that breaks servers gets no more of them.
func TestThreeEndpointsAtMost(t *testing.T) {
	hello := helloOf(t, "a.test")
	breaks := after(len(hello), resets)
	b := startBreaking(t, 5, func(*net.TCPConn) { t.Error("a fourth endpoint is tried") }, nil, breaks, breaks, breaks)
	client := conntest.Dial(t, b.address)
	if _, err := client.Write(hello); err != nil {
		t.Fatal(err)
	}
	if err := conntest.WantGone(t, client); !wasReset(err) {
		t.Errorf("the client sees %v, want a reset", err)
	}
	b.wantError(t)
}

// TestHandshakeElsewhere: a whole TLS session works after its first endpoint was lost.
func TestHandshakeElsewhere(t *testing.T) {
	server, client := certs.New().Configs()
	b := startBreaking(t, 2, func(c *net.TCPConn) {
		s := tls.Server(c, server)
		_, _ = io.Copy(s, s)
	}, nil, after(1, resets))
	c := tls.Client(conntest.Dial(t, b.address), client)
	conntest.Exchange(t, c, "hello over TLS")
	if b.log.Line(continues) == "" {
		t.Error("the first endpoint was not lost")
	}
}

// TestRemovedEndpointBeforeItsFirstByte: a client whose server hangs with the ClientHello is served by another endpoint once that one is removed; one
// that has heard something is cut off.
func TestRemovedEndpointBeforeItsFirstByte(t *testing.T) {
	hello := helloOf(t, "a.test")
	got := make(chan struct{}, 2)
	var accepted atomic.Int32
	hung := conntest.Serve(t, func(c *net.TCPConn) {
		if accepted.Add(1) == 1 {
			_, _ = io.WriteString(c, "banner")
		}
		_, _ = io.ReadFull(c, make([]byte, len(hello)))
		got <- struct{}{}
		_, _ = io.Copy(io.Discard, c)
	})
	good := conntest.Serve(t, conntest.Echo)
	o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, OnRemoved: upstream.CloseRemoved}}
	var up *upstream.Upstream[net.Conn]
	p, addr := start(t, []string{hung, good}, o, func(c *tcpproxy.Config) { up, c.ConnectTimeout = c.Upstream, conntest.Patience })
	heard := conntest.Dial(t, addr)
	conntest.Want(t, heard, "banner")
	waiting := conntest.Dial(t, addr)
	for _, c := range []*net.TCPConn{heard, waiting} {
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
		<-got
	}
	settings := o.Settings
	settings.Endpoints, settings.Limits = upstream.Endpoints(good), tcpproxy.WarmLimits(settings.Limits)
	if err := up.Update(settings); err != nil {
		t.Fatal(err)
	}
	conntest.Want(t, waiting, string(hello))
	if err := conntest.WantGone(t, heard); !wasReset(err) {
		t.Errorf("the client that has heard something sees %v, want a reset", err)
	}
	conntest.Eventually(t, "one session is counted as cut off", func() bool { return p.Stats().Errors[listener.ReasonEndpointOut] == 1 })
	if e := p.Stats().Errors; len(e) != 1 {
		t.Errorf("errors: %v, want one endpoint_out", e)
	}
}

// FuzzRepeatable compares with crypto/tls: a ClientHello in one record may be repeated unless it has early data, and so may each part of it.
func FuzzRepeatable(f *testing.F) {
	hello := helloOf(f, "a.test", "h2")
	f.Add(hello[9:])
	f.Add(withExtensions(hello, extension(42))[9:])
	f.Add(withExtensions(hello, extension(0x4242, 1, 2, 3))[9:])
	f.Add(withExtensions(hello, bytes.Repeat(extension(21, 0), 900))[9:])
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<14-4 {
			return
		}
		b := record(append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...))
		repeatable := tcpproxy.Repeatable(b)
		if found := tcpproxy.ReadHello(bytes.NewReader(b), len(b)); found.Found {
			if early := slices.Contains(found.Extensions, 42); repeatable == early {
				t.Errorf("repeatable %v, early data %v", repeatable, early)
			}
		}
		for n := range b[1:] {
			if part := b[:n+1]; !tcpproxy.Repeatable(part) {
				t.Fatalf("the first %d of %d bytes are not repeatable", n+1, len(b))
			}
		}
		if tcpproxy.Repeatable(append(b, 0)) {
			t.Error("repeatable with more behind it")
		}
	})
}

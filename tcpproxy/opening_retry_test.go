package tcpproxy_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// TestBrokenEndpointIsNotChosenAgain: the first endpoint breaks off, the second one refuses connections. The client gets the third one, not
// the first one again.
func TestBrokenEndpointIsNotChosenAgain(t *testing.T) {
	hello := helloOf(t, "a.test")
	var broken atomic.Int32
	resets := conntest.Serve(t, func(c *net.TCPConn) {
		broken.Add(1)
		after(len(hello), resets)(c)
	})
	good := conntest.Serve(t, conntest.Echo)
	o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First}}
	p, addr := start(t, []string{resets, conntest.FreeAddress(t), good}, o, func(c *tcpproxy.Config) { c.ConnectTimeout = conntest.Patience })
	client := conntest.Dial(t, addr)
	if _, err := client.Write(hello); err != nil {
		t.Fatal(err)
	}
	conntest.Want(t, client, string(hello))
	conntest.Exchange(t, client, "and on")
	if n, e := broken.Load(), p.Stats().Errors; n != 1 || len(e) > 0 {
		t.Errorf("%d connections to the endpoint that breaks off, errors %v; want 1, none", n, e)
	}
}

// TestUploadOnlyServers end their stream at once, and read. Their clients stay with them, also those that send a ClientHello, and also if
// the server breaks off in the end.
func TestUploadOnlyServers(t *testing.T) {
	hello := helloOf(t, "a.test")
	for name, breaks := range map[string]bool{"served": false, "broken off": true} {
		t.Run(name, func(t *testing.T) {
			var accepted atomic.Int32
			got := make(chan string, 8)
			serve := func(c *net.TCPConn) {
				accepted.Add(1)
				_ = c.CloseWrite()
				b := make([]byte, len(hello))
				n, _ := io.ReadFull(c, b)
				got <- string(b[:n])
				if breaks {
					_ = c.SetLinger(0)
					return
				}
				rest, _ := io.ReadAll(c)
				got <- string(rest)
			}
			p, addr := start(t, []string{conntest.Serve(t, serve), conntest.Serve(t, serve)}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
				c.ConnectTimeout = conntest.Patience
			})
			client := conntest.Dial(t, addr)
			if n, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Fatalf("%d bytes, %v; want the end of the server's stream", n, err)
			}
			if _, err := client.Write(hello); err != nil {
				t.Fatal(err)
			}
			if text := <-got; text != string(hello) {
				t.Fatalf("the server has got %q", text)
			}
			if !breaks {
				if _, err := io.WriteString(client, "and on"); err != nil {
					t.Fatal(err)
				}
				_ = client.CloseWrite()
				if text := <-got; text != "and on" {
					t.Errorf("the server has got %q in the end", text)
				}
			} else {
				_ = client.CloseWrite()
			}
			conntest.Eventually(t, "the session ends", func() bool { return p.Stats().Active == 0 })
			if n := accepted.Load(); n != 1 {
				t.Errorf("%d connections to servers, want 1", n)
			}
			if e := p.Stats().Errors; !breaks && len(e) > 0 {
				t.Errorf("errors: %v", e)
			}
		})
	}
}

// TestMovesAreBounded: servers that reset every client at its ClientHello get a second or third connection of as many sessions as the budget has moves, and each
// client counts as one failure at most.
func TestMovesAreBounded(t *testing.T) {
	hello := helloOf(t, "a.test")
	var accepted atomic.Int32
	serve := func(c *net.TCPConn) {
		accepted.Add(1)
		after(len(hello), resets)(c)
	}
	var up *upstream.Upstream[net.Conn]
	endpoints := []string{conntest.Serve(t, serve), conntest.Serve(t, serve), conntest.Serve(t, serve)}
	o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, Ejection: upstream.Ejection{Failures: 1000, Base: time.Hour, Max: time.Hour}}}
	p, addr := start(t, endpoints, o, func(c *tcpproxy.Config) { up, c.ConnectTimeout = c.Upstream, conntest.Patience })
	p.StopBudgetClock()
	const clients, extra = 15, 9
	for i := range clients {
		client := conntest.Dial(t, addr)
		if _, err := client.Write(hello); err != nil {
			t.Fatal(err)
		}
		if err := conntest.WantGone(t, client); !wasReset(err) {
			t.Fatalf("the client sees %v, want a reset", err)
		}
		conntest.Eventually(t, "the session's end is counted", func() bool { return p.Stats().Errors[listener.ReasonBackendGone] == uint64(i+1) })
	}
	// A session asks once for each endpoint that it could leave. The last of its three endpoints it cannot.
	if s := p.Stats(); s.Moved != extra || s.MovesRefused == 0 || s.MovesRefused > clients {
		t.Errorf("%d moves, %d refused; want %d, and up to %d", s.Moved, s.MovesRefused, extra, clients)
	}
	if n := accepted.Load(); n != clients+extra {
		t.Errorf("%d connections for %d clients, want %d", n, clients, clients+extra)
	}
	failures := 0
	for _, e := range up.Status().Endpoints {
		failures += e.Failures
	}
	if failures != clients {
		t.Errorf("%d failures are counted at the endpoints, want one for each of the %d clients", failures, clients)
	}
}

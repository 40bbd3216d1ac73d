package listener_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// TestGoneBeforeAccept: clients that leave before they are accepted get no session. Those that have only ended their stream do
// where the server may speak first, but not many of them.
func TestGoneBeforeAccept(t *testing.T) {
	t.Cleanup(listener.SetHalfClosedRate(2, time.Hour))
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	const silent = 5 // clients that end their stream without a byte
	for name, c := range map[string]struct {
		cfg      listener.Config
		sessions uint64 // of the silent ones
		reason   string // of the others' errors
	}{
		"the server may speak first": {listener.Config{}, 2, ""},
		"the client speaks first":    {listener.Config{ClientFirst: true}, 0, ""},
		"a PROXY header is due":      {listener.Config{AcceptProxy: true}, 0, ""},
		"a trusted peer's is due":    {listener.Config{AcceptProxy: true, TrustedProxies: loopback}, 0, ""},
		"no peer is trusted":         {listener.Config{AcceptProxy: true, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, 2, ""},
		"its address is denied":      {listener.Config{Deny: loopback}, 0, listener.ReasonDenied},
		"its address connects often": {listener.Config{ConnectionRate: listener.Rate{Connections: 1, Per: time.Hour}}, 1, listener.ReasonSourceRate},
	} {
		for _, kind := range []fiber.Kind{fiber.Auto, fiber.Epoll, fiber.Goroutine} {
			t.Run(name+"/"+string(kind), func(t *testing.T) {
				e, err := fiber.New(fiber.Config{Engine: kind, Loops: 1})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = e.Close() })
				l, err := e.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				addr := l.Addr().String()
				for i := range silent {
					if client := conntest.Dial(t, addr); i%2 == 0 {
						_ = client.CloseWrite()
					} else {
						_ = client.Close()
					}
				}
				resets := 0
				for _, sent := range []string{"", "bytes"} {
					client := conntest.Dial(t, addr)
					_, _ = io.WriteString(client, sent)
					_ = client.SetLinger(0)
					_ = client.Close()
					resets++
				}
				conntest.Eventually(t, "all ends have arrived", func() bool { return conntest.Established(t, addr) == 0 })
				c.cfg.Name, c.cfg.Protocol, c.cfg.Logger = "test", "tcp", quiet
				s, err := listener.New(c.cfg, echo)
				if err != nil {
					t.Fatal(err)
				}
				conntest.Run(t, l, s.Serve, s.Close)
				conntest.Eventually(t, "all are accepted", func() bool { st := s.Stats(); return st.Accepted == silent+2 && st.Active == 0 })
				st := s.Stats()
				gone := silent + uint64(resets) - c.sessions
				if c.reason != "" { // the limits of addresses come first
					if st.Rejected != gone || st.Errors[c.reason] != gone || st.Gone != 0 {
						t.Errorf("%d are gone, %d rejected, errors %v; want %d rejected", st.Gone, st.Rejected, st.Errors, gone)
					}
				} else if st.Gone != gone || st.Errors[listener.ReasonClientGone] != gone || st.Rejected != 0 {
					t.Errorf("%d are gone, %d rejected, errors %v; want %d gone", st.Gone, st.Rejected, st.Errors, gone)
				}
			})
		}
	}
}

// TestHalfClosedClientsGetTheBanner: it is sent to clients that have ended their stream before they were accepted.
func TestHalfClosedClientsGetTheBanner(t *testing.T) {
	l := conntest.Listen(t)
	client := conntest.Dial(t, l.Addr().String())
	_ = client.CloseWrite()
	conntest.Eventually(t, "its end has arrived", func() bool { return conntest.Established(t, l.Addr().String()) == 0 })
	s, err := listener.New(listener.Config{Name: "test", Protocol: "tcp", Logger: quiet}, listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
		_, _ = io.WriteString(c, "banner")
		_ = c.Close()
	}))
	if err != nil {
		t.Fatal(err)
	}
	conntest.Run(t, l, s.Serve, s.Close)
	conntest.Want(t, client, "banner")
}

// TestScreenedOnce: a connection counts once for the rate of its source, and the check of a screened connection is not repeated.
func TestScreenedOnce(t *testing.T) {
	const n = 20
	s, addr := start(t, listener.Config{ConnectionRate: listener.Rate{Connections: n, Per: time.Hour}, MaxConnsPerSource: n}, echo)
	var clients []net.Conn
	for range n {
		clients = append(clients, conntest.Dial(t, addr))
	}
	for _, c := range clients {
		conntest.Exchange(t, c, "within the rate")
	}
	conntest.WantRefused(t, addr)
	if st := s.Stats(); st.Rejected != 1 || st.Errors[listener.ReasonSourceRate] != 1 || st.Accepted != n+1 {
		t.Errorf("%+v, want %d accepted and the last one rejected", st, n+1)
	}
}

// datagrams is a listener with one connection, of a client that has an IP address but no TCP.
type datagrams struct {
	net.Listener
	conn  chan net.Conn
	close func() // of conn, once
}

func (l *datagrams) Accept() (net.Conn, error) {
	if c, ok := <-l.conn; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l *datagrams) Close() error {
	l.close()
	return l.Listener.Close()
}

type datagramConn struct{ net.Conn }

func (datagramConn) RemoteAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53} }

// TestOtherNetworksAreVetted: peers that could not send a PROXY header are checked by their own address.
func TestOtherNetworksAreVetted(t *testing.T) {
	s, err := listener.New(listener.Config{
		Name: "test", Protocol: "udp", Logger: quiet, AcceptProxy: true, Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}, echo)
	if err != nil {
		t.Fatal(err)
	}
	client, server := net.Pipe()
	conn := make(chan net.Conn, 1)
	conn <- datagramConn{server}
	l := &datagrams{conntest.Listen(t), conn, sync.OnceFunc(func() { close(conn) })}
	conntest.Run(t, l, s.Serve, func() { s.Close() })
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a denied client gets %v", err)
	}
	conntest.Eventually(t, "it is counted", func() bool { st := s.Stats(); return st.Rejected == 1 && st.Errors[listener.ReasonDenied] == 1 })
}

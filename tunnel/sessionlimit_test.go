package tunnel_test

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
	"github.com/headpond/headpond/tunnel"
)

// join makes a session with a server that is not a Client's.
func join(t testing.TB, conn net.Conn, cfg mux.Config) (*mux.Session, error) {
	t.Helper()
	s, err := mux.Client(soon(t), conn, cfg)
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// turnedAway checks that a peer got the reason why it has no session.
func turnedAway(t testing.TB, err error, why string) {
	t.Helper()
	bye, told := errors.AsType[*mux.GoAwayError](err)
	if !told || bye.Code != frame.CodeRefused || !strings.Contains(bye.Reason, why) || !errors.Is(err, mux.ErrRefused) {
		t.Errorf("%v; want it to say %q", err, why)
	}
}

func TestMaxSessions(t *testing.T) {
	e := start(t, options{server: func(c *tunnel.ServerConfig) { c.MaxSessions = 1 }})
	conntest.Eventually(t, "the session", func() bool { return e.server.Tunnel().Sessions == 1 })
	_, err := join(t, dialTCP(t, e.address), mux.Config{Name: "other", PSK: key})
	turnedAway(t, err, "sessions of all peers: 1, the most there may be")
	conntest.Eventually(t, "the log", func() bool {
		return e.serverLog.Line("no session with a peer", "reason=rejected", "sessions of all peers") != ""
	})
	if st := e.server.Tunnel(); st.Sessions != 1 || st.TurnedAway != 1 {
		t.Errorf("%+v", st)
	}
}

// TestMaxSessionsOfOneCertificate: a peer has its sessions, under any of its names, with or without
// a socket; other peers have theirs; and ended sessions make room.
func TestMaxSessionsOfOneCertificate(t *testing.T) {
	ca := certs.New()
	o := mutual(t, ca, ca, "branch", "branch")
	inner := o.server
	o.server = func(c *tunnel.ServerConfig) { inner(c); c.MaxSessions = 8 } // so that one peer has 2
	e := start(t, o)
	connect := func(certificate tls.Certificate, name string) (*mux.Session, error) {
		return join(t, tls.Client(dialTCP(t, e.address), &tls.Config{
			Certificates: []tls.Certificate{certificate}, RootCAs: ca.Pool, ServerName: "far.test",
		}), mux.Config{Name: name})
	}
	greedy, modest := ca.Issue("greedy", "greedy.test"), ca.Issue("greedy", "greedy.test") // one name, two keys
	var has []*mux.Session
	for _, name := range []string{"greedy", "greedy.test"} {
		s, err := connect(greedy, name)
		if err != nil {
			t.Fatal(err)
		}
		has = append(has, s)
	}
	for range 3 {
		_, err := connect(greedy, "")
		turnedAway(t, err, "sessions of this peer: 2, the most one may have")
	}
	if _, err := connect(modest, ""); err != nil {
		t.Errorf("another peer: %v", err)
	}
	_ = has[0].Close()
	conntest.Eventually(t, "there is room again", func() bool {
		_, err := connect(greedy, "")
		return err == nil
	})
	conntest.Eventually(t, "one session of the Client, two of greedy and one of another peer", func() bool { return e.server.Tunnel().Sessions == 4 })
	if st := e.server.Tunnel(); st.TurnedAway < 3 {
		t.Errorf("%+v", st)
	}
}

// TestResumedSessionHasItsPlace: a resumed session needs no further room.
func TestResumedSessionHasItsPlace(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: func(c *tunnel.ServerConfig) { allow(target)(c); c.MaxSessionsPerPeer = 1 }})
	conn := open(t, e, target)
	for range 3 {
		conntest.Exchange(t, conn, "hello")
		e.sockets.cut()
	}
	conntest.Exchange(t, conn, "and again")
	if st := e.server.Tunnel(); st.Sessions != 1 || st.TurnedAway != 0 || st.Resumed == 0 {
		t.Errorf("%+v", st)
	}
}

// elsewhere is a listener whose connections come from addresses of the test's choice.
type elsewhere struct {
	net.Listener
	from atomic.Pointer[net.TCPAddr]
}

type moved struct {
	net.Conn
	from net.Addr
}

func (m moved) RemoteAddr() net.Addr { return m.from }

func (l *elsewhere) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return moved{c, l.from.Load()}, nil
}

// TestMaxSessionsOfOneAddress: with a PSK, whose holders may use any name, the address counts.
func TestMaxSessionsOfOneAddress(t *testing.T) {
	server, err := tunnel.NewServer(tunnel.ServerConfig{
		Config: tunnel.Config{PSK: key, Logger: slog.New(slog.DiscardHandler)}, MaxSessionsPerPeer: 1,
		Listener: listener.Config{Name: "peers", Logger: slog.New(slog.DiscardHandler)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	inner := conntest.Listen(t)
	l := &elsewhere{Listener: inner}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	for i, c := range []struct {
		from string
		full bool
	}{
		{"192.0.2.1", false}, {"192.0.2.1", true}, {"::ffff:192.0.2.1", true}, {"192.0.2.2", false},
		{"2001:db8::1", false}, {"2001:db8::ffff:2", true}, {"2001:db8:0:1::1", false},
	} {
		l.from.Store(&net.TCPAddr{IP: net.ParseIP(c.from), Port: 1000 + i})
		_, err := join(t, dialTCP(t, inner.Addr().String()), mux.Config{Name: "any" + c.from, PSK: key})
		switch {
		case c.full:
			turnedAway(t, err, "sessions of this peer: 1")
		case err != nil:
			t.Errorf("%s: %v", c.from, err)
		}
	}
	server.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func dialTCP(t testing.TB, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

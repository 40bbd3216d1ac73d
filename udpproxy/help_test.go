package udpproxy_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	wire "github.com/miekg/dns"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/udpproxy"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// proxied is a proxy that runs, with its upstream.
type proxied struct {
	*udpproxy.Proxy
	upstream *upstream.Upstream[*udpproxy.Socket]
	listener *udpproxy.Listener
	address  string
}

// run runs a proxy at an address before endpoints; change may adapt its configuration. Its sessions end by themselves after an hour only.
func run(t *testing.T, address string, s upstream.Settings, change func(*udpproxy.Config)) *proxied {
	t.Helper()
	up, err := udpproxy.NewUpstream("backends", udpproxy.UpstreamOptions{Settings: s, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	cfg := udpproxy.Config{
		Listener: listener.Config{Name: "test", Protocol: "udp", Logger: quiet}, Upstream: up,
		IdleTimeout: time.Hour, UnansweredTimeout: time.Hour, DrainIdle: time.Hour, ConnectTimeout: conntest.Patience,
	}
	if change != nil {
		change(&cfg)
	}
	p, err := udpproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := udpproxy.Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, p, func() { up.Status() }, func() { p.Datagrams() })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
		defer cancel()
		if err := up.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
	return &proxied{p, up, l, conntest.Run(t, l, p.Serve, p.Close)}
}

// before returns settings with endpoints.
func before(endpoints ...string) upstream.Settings {
	return upstream.Settings{Endpoints: upstream.Endpoints(endpoints...)}
}

// server is a UDP server that sends back what it gets, with its name in front.
type server struct {
	name    string
	address string
	conn    net.PacketConn
	got     atomic.Int64 // datagrams
	ended   chan struct{}
}

// serve starts a server; silent ones answer nothing.
func serve(t *testing.T, name string, silent bool) *server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{name: name, address: conn.LocalAddr().String(), conn: conn, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		b := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			s.got.Add(1)
			if !silent {
				_, _ = conn.WriteTo(append([]byte(s.name), b[:n]...), from)
			}
		}
	}()
	t.Cleanup(s.kill)
	return s
}

func (s *server) kill() {
	_ = s.conn.Close()
	<-s.ended
}

// refusing returns an address at which datagrams are refused, and where nothing else can be: the socket that has it talks to another.
func refusing(t *testing.T) string {
	t.Helper()
	c, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().String()
}

// client returns a socket that gets the answers of an address, and of no other.
func client(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// send sends a datagram.
func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// want waits for a datagram.
func want(t *testing.T, c net.Conn, text string) {
	t.Helper()
	b := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
	n, err := c.Read(b)
	if err != nil || string(b[:n]) != text {
		t.Fatalf("got %.80q, %v; want %.80q", b[:n], err, text)
	}
}

// nothingCame fails if there is a datagram.
func nothingCame(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Unix(1, 0))
	if n, err := c.Read(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes came", n)
	}
}

// eventually waits until the proxy has so many sessions.
func (p *proxied) eventually(t *testing.T, sessions int) {
	t.Helper()
	conntest.Eventually(t, "another number of sessions", func() bool { return p.Stats().Active == sessions })
}

// nameserver answers each query with the address 10.9.8.7, over UDP.
func nameserver(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	s := &wire.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: wire.HandlerFunc(func(w wire.ResponseWriter, q *wire.Msg) {
		answer := new(wire.Msg).SetReply(q)
		rr, err := wire.NewRR(q.Question[0].Name + " 60 IN A 10.9.8.7")
		if err != nil {
			t.Error(err)
		}
		answer.Answer = append(answer.Answer, rr)
		_ = w.WriteMsg(answer)
	})}
	served := make(chan error, 1)
	go func() { served <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = s.Shutdown(); <-served })
	return conn.LocalAddr().String()
}

// resolve asks a name server for the address of a name.
func resolve(address, name string) (string, error) {
	c := wire.Client{Timeout: conntest.Patience}
	answer, _, err := c.Exchange(new(wire.Msg).SetQuestion(name, wire.TypeA), address)
	if err != nil {
		return "", err
	}
	if len(answer.Answer) != 1 {
		return "", errors.New("no answer")
	}
	return answer.Answer[0].(*wire.A).A.String(), nil
}

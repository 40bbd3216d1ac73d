package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
	"github.com/headpond/headpond/tunnel"
)

// listenAgain binds an address that another listener has just left.
func listenAgain(t testing.TB, address string) (l net.Listener) {
	t.Helper()
	conntest.Eventually(t, "the address is free", func() (free bool) {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	return l
}

// raw is a session with a server that is not a Client's.
func raw(t testing.TB, address string, cfg mux.Config) *mux.Session {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	cfg.PSK = key
	s, err := mux.Client(soon(t), conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A dial ends when its opener has gone.
func TestDialDoesNotOutliveItsClient(t *testing.T) {
	begun, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	e := start(t, options{server: func(c *tunnel.ServerConfig) {
		c.Policy = policy("0.0.0.0/0:*")
		c.Policy.Timeout = conntest.Patience * 10
		c.Policy.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		}
	}})
	c := open(t, e, "192.0.2.1:80")
	<-begun
	_ = c.SetLinger(0)
	_ = c.Close()
	<-ended
	conntest.Eventually(t, "no stream is left", func() bool { return e.server.Tunnel().Streams == 0 })

	c = open(t, e, "192.0.2.1:80") // and with the session
	<-begun
	e.client.Close()
	<-ended
	_ = c.Close()
}

// A peer that opens streams above its limit, and leaves each at once, leaves few that wait.
func TestLeavingTheQueue(t *testing.T) {
	for name, leave := range map[string]func(*mux.Stream){
		"reset": func(st *mux.Stream) { st.Reset(1, "leaves") },
		"close": func(st *mux.Stream) { _ = st.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			target := conntest.Serve(t, conntest.Echo)
			e := start(t, options{server: func(c *tunnel.ServerConfig) {
				allow(target)(c)
				c.MaxStreams, c.Policy.Timeout = 4, conntest.Patience*10
			}})
			for range 4 {
				conntest.Exchange(t, open(t, e, target), "hello")
			}
			s := raw(t, e.address, mux.Config{Name: "branch"})
			before := runtime.NumGoroutine()
			for n := range 500 {
				st, err := s.OpenStream(soon(t), target)
				if err != nil {
					t.Fatalf("stream %d: %v", n, err)
				}
				leave(st)
			}
			conntest.Eventually(t, "few wait", func() bool { return runtime.NumGoroutine() < before+50 })
		})
	}
}

// One peer has its streams, however many sessions it makes. Further ones wait until others end, for as long as connecting may take.
func TestMaxStreams(t *testing.T) {
	for _, sessions := range []int{1, 2} { // with one, this side knows the limit; with two, the far side has them wait
		t.Run(fmt.Sprint(sessions), func(t *testing.T) {
			target := conntest.Serve(t, conntest.Echo)
			e := start(t, options{
				server: func(c *tunnel.ServerConfig) {
					allow(target)(c)
					c.MaxStreams, c.Policy.Timeout = 4, time.Second
				},
				client: func(c *tunnel.ClientConfig) { c.Sessions = sessions },
			})
			conntest.Eventually(t, "the sessions", func() bool { return e.server.Tunnel().Sessions == sessions })
			var all []*tunnel.Conn
			for range 4 {
				all = append(all, open(t, e, target))
				conntest.Exchange(t, all[len(all)-1], "hello")
			}
			ctx, cancel := context.WithTimeout(soon(t), 2*time.Second)
			defer cancel()
			if _, err := e.client.Dial(ctx, target); !errors.Is(err, tunnel.ErrBusy) {
				t.Errorf("the fifth: %v", err)
			}
			if _, err := e.client.Dial(tunnel.NoWait(soon(t)), target); sessions == 1 && (!errors.Is(err, tunnel.ErrBusy) || errors.Is(err, context.DeadlineExceeded)) {
				t.Errorf("one that does not wait: %v", err)
			}
			for _, c := range all {
				more := make(chan error, 1)
				go func() {
					c, err := e.client.Dial(soon(t), target)
					if err == nil {
						conntest.Exchange(t, c, "hello")
						t.Cleanup(func() { _ = c.Close() })
					}
					more <- err
				}()
				_ = c.Close()
				if err := <-more; err != nil {
					t.Errorf("while another ends: %v", err)
				}
			}
		})
	}
}

// Names that are no targets, messages instead of streams, and a flood of streams are refused one by
// one, without effect on others.
func TestHostilePeer(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: func(c *tunnel.ServerConfig) { allow(target)(c); c.MaxStreams = 32 }})
	good := open(t, e, target)
	conntest.Exchange(t, good, "hello")
	bad := raw(t, e.address, mux.Config{Name: "bad"})
	for _, name := range []string{"", "x", "\x00\xff", "upstream:", "upstream:../../etc", ":1", "unix:", "unix:relative", "127.0.0.1:99999",
		"127.0.0.1:-1", "[::1%lo]:1", "0x7f.1:1", strings.Repeat("a", 500) + ":1", "\n\r\x1b[31m:1"} {
		st, err := bad.OpenStream(soon(t), name)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if _, err := io.ReadAll(st); !errors.Is(err, mux.ErrReset) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for range 100 { // more than it may have open: each is refused
		ch, err := bad.Open(soon(t), "a channel for messages")
		if err != nil {
			t.Fatal(err)
		}
		_ = ch.Send(soon(t), make([]byte, 1000))
		if _, err := ch.Receive(soon(t)); !errors.Is(err, mux.ErrReset) {
			t.Fatal(err)
		}
	}
	for range 2000 { // more than it may have open; none is ever read or closed
		st, err := bad.OpenStream(soon(t), target, mux.NoWait())
		if err != nil {
			if !errors.Is(err, mux.ErrTooManyChannels) {
				t.Errorf("%v", err)
			}
			break
		}
		_, _ = st.Write([]byte("x"))
	}
	if st := e.server.Tunnel(); st.Streams > 2*32+1 {
		t.Errorf("%+v", st)
	}
	conntest.Exchange(t, good, "still there")
	if line := e.serverLog.Line("\x1b"); line != "" {
		t.Errorf("the log holds control characters: %q", line)
	}
}

// A server that is no tunnel is recognized.
func TestNotATunnel(t *testing.T) {
	muxServer := conntest.Serve(t, func(c *net.TCPConn) {
		s, err := mux.Server(bg, c, mux.Config{PSK: key})
		if err != nil {
			return
		}
		defer s.Close()
		for {
			st, err := s.AcceptStream(bg)
			if err != nil {
				return
			}
			_, _ = st.Write([]byte("HTTP/1.1 400 Bad Request"))
		}
	})
	client, err := tunnel.NewClient(tunnel.ClientConfig{Address: muxServer, Config: tunnel.Config{PSK: key}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Dial(soon(t), "upstream:x"); !errors.Is(err, tunnel.ErrProtocol) {
		t.Errorf("%v", err)
	}
	c, err := client.Open(soon(t), "upstream:x")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, tunnel.ErrProtocol) {
		t.Errorf("%v", err)
	}
}

// TestOpenAndReset: streams that are reset as they are opened cause no dial.
func TestOpenAndReset(t *testing.T) {
	var dialled atomic.Int64
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{
		server: func(c *tunnel.ServerConfig) {
			c.Insecure, c.PSK = true, nil
			c.Policy = policy("192.0.2.0/24:*", target)
			c.Policy.Dial = func(ctx context.Context, address string) (net.Conn, error) {
				if address == target {
					var d net.Dialer
					return d.DialContext(ctx, "tcp", target)
				}
				dialled.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
		},
		client: func(c *tunnel.ClientConfig) { c.PSK = nil },
	})
	conn, err := net.Dial("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hello := frame.Hello{MinVersion: 1, MaxVersion: 1, MaxFrame: 32 << 10, MaxChannels: 10, ChannelWindow: 64 << 10, SessionWindow: 1 << 20}
	const many = 900 // less than may be opened before an accept
	wire := hello.Append([]byte(frame.Magic))
	for i := range uint32(many) {
		wire = (&frame.Open{Channel: 2*i + 1, Kind: frame.KindStream, Name: []byte("192.0.2.1:80")}).Append(wire)
		wire = (&frame.Reset{Channel: 2*i + 1, Code: frame.CodeCanceled}).Append(wire)
	}
	if _, err := conn.Write(wire); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "all are served", func() bool { return e.server.Tunnel().Accepted == many })
	conntest.Exchange(t, open(t, e, target), "hello")
	if n := dialled.Load(); n > many/10 { // those between whose open and reset a read ended
		t.Errorf("%d dialled", n)
	}
}

package listener_test

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// faulty is a listener of an engine whose first Accept panics, and so does RemoteAddr of its first connection.
type faulty struct {
	net.Listener
	calls atomic.Int32
}

func (f *faulty) Accept() (net.Conn, error) {
	switch f.calls.Add(1) {
	case 1:
		panic("out of luck")
	case 2:
		c, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		return nameless{fiber.StreamOf(c)}, nil
	}
	return f.Listener.Accept()
}

// Go has the accept loop run where the engine's listener has it run.
func (f *faulty) Go(fn func()) { fiber.Spawn(f.Listener, fn) }

type nameless struct{ fiber.Stream }

func (nameless) RemoteAddr() net.Addr { panic("no address") }

// A panic while a connection is accepted costs that connection at most: the listener keeps accepting, and the log has the stack.
func TestPanicOfAcceptingLosesNoListener(t *testing.T) {
	for _, kind := range []fiber.Kind{fiber.Auto, fiber.Epoll, fiber.Goroutine} {
		e, err := fiber.New(fiber.Config{Engine: kind, Loops: 1})
		if err != nil {
			t.Logf("without %s: %v", kind, err) // epoll is Linux's
			continue
		}
		for name, serve := range map[string]func(*listener.Server, net.Listener) error{
			"Serve": (*listener.Server).Serve,
			"Listener": func(s *listener.Server, l net.Listener) error {
				for sl := s.Listener(l); ; {
					c, err := sl.Accept()
					if err != nil {
						return nil //nolint:nilerr // the server was closed
					}
					fiber.Spawn(c, func() { echo(t.Context(), c.(*listener.Conn)) })
				}
			},
		} {
			t.Run(string(kind)+"/"+name, func(t *testing.T) {
				raw, err := e.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				var log conntest.Log
				deny := listener.Config{Name: "test", Protocol: "tcp", Logger: log.Logger(), Deny: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
				s, err := listener.New(deny, echo)
				if err != nil {
					t.Fatal(err)
				}
				addr := conntest.Run(t, &faulty{Listener: raw}, func(l net.Listener) error { return serve(s, l) }, s.Close)
				conntest.WantRefused(t, addr)
				conntest.Exchange(t, conntest.Dial(t, addr), "still here")
				if n := s.Stats().Errors[listener.ReasonInternal]; n != 2 {
					t.Errorf("counted %d internal errors, want 2", n)
				}
				conntest.Eventually(t, "the log says that accepting works", func() bool { return strings.Contains(log.String(), "accepting connections again") })
				for _, want := range []string{"out of luck", "no address", "(*faulty).Accept", "nameless.RemoteAddr"} {
					if text := log.String(); !strings.Contains(text, want) {
						t.Errorf("the log lacks %q: %s", want, text)
					}
				}
				if sessions := s.Sessions(); len(sessions) != 1 {
					t.Errorf("there are the sessions %v, want the one", sessions)
				}
			})
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

package mux_test

import (
	"context"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/headpond/headpond/mux"
)

// TestStreamIsANetConn runs the suite for net.Conn on streams of either side, over every transport.
func TestStreamIsANetConn(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c, s := sessions(t, name, mux.Config{}, mux.Config{})
				a, err := c.OpenStream(bg, "nettest")
				if err != nil {
					return nil, nil, nil, err
				}
				b, err := s.AcceptStream(bg)
				stop = func() {
					a.Close()
					b.Close()
					c.Close()
					s.Close()
				}
				return a, b, stop, err
			})
		})
	}
}

// parked is a stream whose callers wait by a Parker of their own.
type parked struct{ *mux.Stream }

func (p parked) Read(b []byte) (int, error)  { return p.ReadParked(b, make(parker, 1)) }
func (p parked) Write(b []byte) (int, error) { return p.WriteParked(b, make(parker, 1)) }

type parker chan struct{}

func (p parker) Park(ctx context.Context) error {
	select {
	case <-p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p parker) Unpark() {
	select {
	case p <- struct{}{}:
	default:
	}
}

// TestParkedStreamIsANetConn is the same for callers who wait by a Parker.
func TestParkedStreamIsANetConn(t *testing.T) {
	for _, name := range []string{"tcp", "pipe"} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c, s := sessions(t, name, mux.Config{ChannelWindow: 8 << 10}, mux.Config{ChannelWindow: 8 << 10})
				a, err := c.OpenStream(bg, "nettest")
				if err != nil {
					return nil, nil, nil, err
				}
				b, err := s.AcceptStream(bg)
				stop = func() {
					a.Close()
					b.Close()
					c.Close()
					s.Close()
				}
				return parked{a}, parked{b}, stop, err
			})
		})
	}
}

package mux_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/headpond/headpond/internal/conntest"
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

// TestStateOfAStream: what Quiet, Ended and PeerClosed tell while a stream lives and ends.
func TestStateOfAStream(t *testing.T) {
	for name, end := range map[string]func(*mux.Stream){
		"half closed": func(s *mux.Stream) { s.CloseWrite() },
		"closed":      func(s *mux.Stream) { s.Close() },
		"reset":       func(s *mux.Stream) { s.Reset(1, "over") },
		"lost":        func(s *mux.Stream) { s.Session().Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
			a, err := c.OpenStream(bg, "state")
			if err != nil {
				t.Fatal(err)
			}
			b, err := s.AcceptStream(bg)
			if err != nil {
				t.Fatal(err)
			}
			is := func(quiet, ended, closed bool) bool {
				return a.Quiet() == quiet && a.Ended() == ended && a.PeerClosed() == closed
			}
			if !is(true, false, false) {
				t.Error("a new stream is not quiet, or has ended")
			}
			b.Write([]byte("220 ready"))
			conntest.Eventually(t, "bytes", func() bool { return is(false, false, false) })
			end(b)
			conntest.Eventually(t, "the end behind them", func() bool { return is(false, false, true) || name == "reset" && a.Ended() })
			got, _ := io.ReadAll(a)
			if !is(false, true, true) || name != "reset" && string(got) != "220 ready" {
				t.Errorf("after %q the end is not all there is to read", got)
			}
		})
	}
}

// TestSetLinger: a stream that is closed after SetLinger(0) does not look whole to the other side.
func TestSetLinger(t *testing.T) {
	for _, seconds := range []int{0, -1} {
		c, s := sessions(t, "tcp", mux.Config{}, mux.Config{})
		here, err := c.OpenStream(bg, "half")
		if err != nil {
			t.Fatal(err)
		}
		there, err := s.AcceptStream(bg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(here, "half"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(there, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(here.SetLinger(0), here.SetLinger(seconds), here.Close(), here.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := there.Read(make([]byte, 1)); errors.Is(err, mux.ErrReset) != (seconds == 0) || (err == io.EOF) != (seconds != 0) {
			t.Errorf("with %d the other side reads %v", seconds, err)
		}
		there.Close()
	}
}

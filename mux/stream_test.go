package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/mux"
)

// TestStreamIsANetConn runs the suite for net.Conn on streams of either side, over every transport.
func TestStreamIsANetConn(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c, s := sessions(t, name, mux.Config{}, mux.Config{})
				return streamPair(c, s)
			})
		})
	}
}

// streamPair opens a stream from c to s. stop closes both of its ends, and the sessions.
func streamPair(c, s *mux.Session) (a, b *mux.Stream, stop func(), err error) {
	if a, err = c.OpenStream(bg, "nettest"); err != nil {
		return nil, nil, nil, err
	}
	b, err = s.AcceptStream(bg)
	return a, b, func() {
		a.Close()
		b.Close()
		c.Close()
		s.Close()
	}, err
}

// parked is a stream whose callers wait by their own Parker.
type parked struct{ *mux.Stream }

func (p parked) Read(b []byte) (int, error)  { return p.ReadBy(b, make(parker, 1)) }
func (p parked) Write(b []byte) (int, error) { return p.WriteBy(b, make(parker, 1)) }

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

// TestParkedStreamIsANetConn is the same for callers that wait by a Parker.
func TestParkedStreamIsANetConn(t *testing.T) {
	for _, name := range []string{"tcp", "pipe"} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c, s := sessions(t, name, mux.Config{ChannelWindow: 8 << 10}, mux.Config{ChannelWindow: 8 << 10})
				a, b, stop, err := streamPair(c, s)
				return parked{a}, parked{b}, stop, err
			})
		})
	}
}

// TestStreamOnFibers: both ends are used by fibers of one loop, which would wait for each other if one held the loop. The window is small, so
// that writers wait, too.
func TestStreamOnFibers(t *testing.T) {
	for _, kind := range []fiber.Kind{fiber.Auto, fiber.Epoll, fiber.Goroutine} {
		e, err := fiber.New(fiber.Config{Engine: kind, Loops: 1})
		if err != nil {
			t.Logf("without %s: %v", kind, err) // epoll is Linux's
			continue
		}
		c, s := sessions(t, "tcp", mux.Config{ChannelWindow: 8 << 10}, mux.Config{ChannelWindow: 8 << 10})
		here, err := c.OpenStream(bg, "fibers")
		if err != nil {
			t.Fatal(err)
		}
		there, err := s.AcceptStream(bg)
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
		var all fiber.Group
		all.Add(3)
		e.Go(func() {
			defer all.Done()
			if readErr, writeErr := there.CopyTo(there, func(int) {}, nil); readErr != io.EOF || writeErr != nil {
				t.Errorf("%s: the echo ended with %v, %v", kind, readErr, writeErr)
			}
			_ = there.CloseWrite()
		})
		e.Go(func() {
			defer all.Done()
			if _, err := here.Write(sent); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			_ = here.CloseWrite()
		})
		e.Go(func() {
			defer all.Done()
			if got, err := io.ReadAll(here); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%s: %d bytes came back, %v, not the %d that were sent", kind, len(got), err, len(sent))
			}
		})
		all.Wait()
		_, _ = here.Close(), there.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestStateOfAStream: the results of State, Ended and PeerClosed while a stream lives and ends.
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
			is := func(state fiber.State) bool {
				return a.State() == state && a.Ended() == (state == fiber.Dead) && a.PeerClosed() == !state.Fit()
			}
			if !is(fiber.Silent) {
				t.Error("a new stream is not quiet, or has ended")
			}
			b.Write([]byte("220 ready"))
			conntest.Eventually(t, "bytes", func() bool { return is(fiber.Pending) })
			end(b)
			conntest.Eventually(t, "the end behind them", func() bool { return is(fiber.Closing) || name == "reset" && a.Ended() })
			got, _ := io.ReadAll(a)
			if !is(fiber.Dead) || name != "reset" && string(got) != "220 ready" {
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

// TestStreamAcked: what the other side lets this one send grows as it reads.
func TestStreamAcked(t *testing.T) {
	cfg := mux.Config{MaxChannelWindow: 64 << 10}
	c, s := sessions(t, "tcp", cfg, cfg)
	a, err := c.OpenStream(bg, "slow")
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.AcceptStream(bg)
	if err != nil {
		t.Fatal(err)
	}
	const size = 8 << 20
	wrote := make(chan error, 1)
	go func() {
		_, err := a.Write(make([]byte, size))
		wrote <- err
	}()
	for range size / (1 << 20) {
		n, _ := a.Acked()
		if _, err := io.CopyN(io.Discard, b, 1<<20); err != nil {
			t.Fatal(err)
		}
		conntest.Eventually(t, "the reading is known here", func() bool {
			now, all := a.Acked()
			return now > n && !all
		})
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
}

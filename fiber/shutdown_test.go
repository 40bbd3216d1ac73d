package fiber_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// silent is a server of package net that accepts and says nothing.
func silent(t *testing.T) net.Addr {
	t.Helper()
	l := conntest.Listen(t)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr()
}

// Connections that a fiber opens after Close has begun are closed as well: Close does not wait for
// the peer.
func TestCloseEndsWhatIsOpenedDuringIt(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		to := silent(t)
		c, s := pair(t, e, "tcp")
		defer s.Close()
		errs := make(chan error, 2)
		fiber.Spawn(c, func() {
			_, _ = c.Read(make([]byte, 1)) // until Close
			d, err := e.DialContext(t.Context(), "tcp", to.String())
			if err == nil {
				_, err = d.Read(make([]byte, 1))
			}
			errs <- err
			l, err := e.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				_, err = l.Accept()
			}
			errs <- err
		})
		closed := make(chan struct{})
		go func() {
			_ = e.Close()
			close(closed)
		}()
		for range 2 {
			if err := <-errs; !errors.Is(err, net.ErrClosed) {
				t.Errorf("%v, want net.ErrClosed", err)
			}
		}
		<-closed
	})
}

// After Close work for a loop runs on a goroutine, and finds everything closed.
func TestGoAfterClose(t *testing.T) {
	loops(t, func(t *testing.T, e *fiber.Engine) {
		l, err := e.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c, s := pair(t, e, "tcp")
		_ = e.Close()
		if err := fiber.Serve(l, func(net.Conn) {}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v, want net.ErrClosed", err)
		}
		ran := make(chan struct{})
		fiber.Spawn(c, func() { close(ran) })
		<-ran
		ran = make(chan struct{})
		e.Go(func() { close(ran) })
		<-ran
		if n := e.Stats().Conns; n != 0 {
			t.Errorf("%d connections counted after Close, want 0", n)
		}
		nc, err := net.DialTimeout("tcp", silent(t).String(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := e.Conn(nc); err == nil {
			if _, err := d.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Read: %v, want net.ErrClosed", err)
			}
		}
		if n := e.Stats().Conns; n != 0 {
			t.Errorf("%d connections counted after Close, want 0", n)
		}
		_ = s
	})
}

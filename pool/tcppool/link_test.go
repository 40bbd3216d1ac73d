//go:build unix

package tcppool_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/tcppool"
)

// A server that speaks first hangs up on connections that wait for their first borrower: the greeting that can still be read from
// them makes none of them fit.
func TestBannerThenEnd(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, ofEngine := range []bool{false, true} {
			t.Run(fmt.Sprintf("tls=%v/engine=%v", secure, ofEngine), func(t *testing.T) {
				const warm = 2
				dialled := make(chan net.Conn, 100)
				cfg := tcppool.Config{Limits: &pool.Limits{MinIdle: warm}}
				cfg.Dial = func(ctx context.Context, network, address string) (c net.Conn, err error) {
					if ofEngine {
						c, err = enginetest.Dial(ctx, address)
					} else {
						c, err = new(net.Dialer).DialContext(ctx, network, address)
					}
					dialled <- c
					return c, err
				}
				s, accept := greeter(t, secure, &cfg)
				d := dialer(t, cfg)
				first := get(t, d, s)
				var waiting []net.Conn // both ends of waiting connections
				for range 1 + warm {
					near, far := <-dialled, accept()
					if near.LocalAddr().String() != first.LocalAddr().String() {
						waiting = append(waiting, near)
					}
					if far.RemoteAddr().String() != first.LocalAddr().String() {
						waiting = append(waiting, far)
					}
				}
				for d.Stats()[0].Idle < warm {
					runtime.Gosched()
				}
				for _, c := range waiting {
					if local := c.LocalAddr().String(); local == s.Addr().String() {
						c.Close()
					}
				}
				for _, c := range waiting {
					for c.LocalAddr().String() != s.Addr().String() && fiber.StreamOf(c).State().Fit() {
						runtime.Gosched()
					}
				}
				for range warm {
					c := get(t, d, s)
					greeted(t, c)
					exchange(t, c, c)
				}
			})
		}
	}
}

// greeter is a server that says hello and then echoes. accept returns the next of its connections.
func greeter(t *testing.T, secure bool, cfg *tcppool.Config) (s *server, accept func() net.Conn) {
	t.Helper()
	var next func() net.Conn
	if secure {
		ss := listenTLS(t, tls.VersionTLS13)
		s, cfg.TLS = ss.server, ss.client
		next = func() net.Conn {
			if c := <-ss.ready; c != nil {
				return c
			}
			return nil
		}
	} else {
		s = listen(t)
		next = func() net.Conn { return <-s.conns }
	}
	accepted := make(chan net.Conn, 100)
	var serving sync.WaitGroup
	serving.Go(func() {
		defer close(accepted)
		for c := next(); c != nil; c = next() {
			serving.Go(func() {
				defer c.Close()
				_, _ = io.WriteString(c, "hello")
				_, _ = io.Copy(c, c)
			})
			accepted <- c
		}
	})
	t.Cleanup(func() {
		s.Listener.Close()
		for c := range accepted {
			c.Close()
		}
		serving.Wait()
	})
	return s, func() net.Conn {
		c := <-accepted
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func greeted(t *testing.T, c net.Conn) {
	t.Helper()
	hello := make([]byte, 5)
	if _, err := io.ReadFull(c, hello); err != nil || string(hello) != "hello" {
		t.Fatalf("greeted by %q, %v", hello, err)
	}
}

// A Conn whose loan has ended does not affect later loans, however many.
func TestEndedLoans(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{})
	var old []*tcppool.Conn
	for range 100 {
		c := get(t, d, s)
		for _, o := range old {
			if _, err := o.Write([]byte("x")); !errors.Is(err, net.ErrClosed) || o.Release() || o.Close() == nil || o == c {
				t.Fatalf("an old loan still counts: %v", err)
			}
		}
		copied := *c
		if _, err := copied.Write([]byte("x")); !errors.Is(err, net.ErrClosed) || copied.Release() {
			t.Fatalf("a copy of a Conn counts: %v", err)
		}
		if c.Reused() != (len(old) > 0) || !c.Release() {
			t.Fatalf("loan %d: reused %v", len(old), c.Reused())
		}
		old = append(old, c)
	}
	if n := opened(d); n != 1 {
		t.Errorf("%d connections were opened", n)
	}
}

func TestLoansAllocateNothing(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{})
	remote := make([]byte, 5)
	var far net.Conn
	address := s.Addr().String()
	loan := func() {
		c, err := d.Get(ctx, "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if far == nil {
			far = s.accept(t)
		}
		_, _ = c.Write(remote)
		_, _ = io.ReadFull(far, remote)
		if !c.Release() {
			t.Fatal("not kept")
		}
	}
	loan()
	if n := testing.AllocsPerRun(320, loan); n != 0 {
		t.Errorf("a loan allocates %v times", n)
	}
}

//go:build unix

package tcppool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/tcppool"
)

func TestMain(m *testing.M) { leaktest.Main(enginetest.Runner(m)) }

var (
	ctx                                                         = context.Background()
	_   func(context.Context, string, string) (net.Conn, error) = (*tcppool.Dialer)(nil).DialContext
)

// server accepts on loopback and hands each connection to the test.
type server struct {
	net.Listener
	conns chan net.Conn
}

func listen(t testing.TB) *server {
	t.Helper()
	ln := conntest.Listen(t)
	s := &server{ln, make(chan net.Conn, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				close(s.conns)
				return
			}
			s.conns <- c
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
		for c := range s.conns {
			c.Close()
		}
	})
	return s
}

// accept returns the next connection, closed at the end of the test.
func (s *server) accept(t testing.TB) net.Conn {
	t.Helper()
	c := <-s.conns
	t.Cleanup(func() { c.Close() })
	return c
}

func dialer(t testing.TB, cfg tcppool.Config) *tcppool.Dialer {
	t.Helper()
	d, err := tcppool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func get(t testing.TB, d *tcppool.Dialer, s *server) *tcppool.Conn {
	t.Helper()
	c, err := d.Get(ctx, "tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// exchange sends a line from a to b and reads it there.
func exchange(t testing.TB, a io.Writer, b io.Reader) {
	t.Helper()
	line := make([]byte, 5)
	if _, err := io.WriteString(a, "ping\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(b, line); err != nil || string(line) != "ping\n" {
		t.Fatalf("got %q, %v", line, err)
	}
}

func opened(d *tcppool.Dialer) uint64 { return d.Stats()[0].Opened }

func TestReleaseKeepsCloseDoesNot(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{})
	c := get(t, d, s)
	remote := s.accept(t)
	exchange(t, c, remote)
	exchange(t, remote, c)
	local := c.LocalAddr().String()
	if !c.Release() {
		t.Error("not kept")
	}
	again := get(t, d, s)
	if !again.Reused() || again.LocalAddr().String() != local {
		t.Error("not the same connection")
	}
	exchange(t, again, remote)
	// The first loan is over and cannot touch the second.
	if c.Release() || !errors.Is(c.Close(), net.ErrClosed) {
		t.Error("the loan ended twice")
	}
	for _, err := range []error{
		c.SetDeadline(time.Now()), c.CloseWrite(),
		second(c.Read(make([]byte, 1))), second(c.Write([]byte("x"))),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("error %v", err)
		}
	}
	exchange(t, remote, again)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := remote.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after Close the server reads %v", err)
	}
	if get(t, d, s).Reused() {
		t.Error("a closed connection was lent")
	}
}

func second(_ int, err error) error { return err }

// Uses of a connection after which Release must not keep it.
func TestReleaseRefuses(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, c *tcppool.Conn, remote net.Conn){
		"unread byte": func(t *testing.T, c *tcppool.Conn, remote net.Conn) {
			exchange(t, c, remote)
			if _, err := io.WriteString(remote, "pong\nx"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
		},
		"end of stream": func(t *testing.T, c *tcppool.Conn, remote net.Conn) {
			remote.Close()
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("error %v", err)
			}
		},
		"timeout": func(t *testing.T, c *tcppool.Conn, _ net.Conn) {
			if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("no timeout")
			}
		},
		"half-closed": func(t *testing.T, c *tcppool.Conn, remote net.Conn) {
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
			if _, err := remote.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("error %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t)
			d := dialer(t, tcppool.Config{})
			c := get(t, d, s)
			spoil(t, c, s.accept(t))
			if c.Release() {
				t.Error("kept")
			}
			if get(t, d, s).Reused() {
				t.Error("lent again")
			}
		})
	}
}

// A connection that is released while a Read is under way is not lent again: the old reader would
// get the new borrower's bytes.
func TestReleaseUnderAReader(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{})
	c := get(t, d, s)
	remote := s.accept(t)
	got := make(chan error)
	go func() {
		buf := make([]byte, 1)
		_, err := c.Read(buf) // one byte, which shows that it runs
		got <- err
		_, err = c.Read(buf)
		got <- err
	}()
	if _, err := remote.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	kept := c.Release() // before or during the second Read
	if err := <-got; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the old reader got %v", err)
	}
	if next := get(t, d, s); next.Reused() != kept {
		t.Errorf("kept %v, lent again %v", kept, next.Reused())
	}
}

func TestCheckedBeforeUse(t *testing.T) {
	for name, spoil := range map[string]func(net.Conn){
		"closed": func(c net.Conn) { c.Close() },
		"byte":   func(c net.Conn) { _, _ = c.Write([]byte("?")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t)
			d := dialer(t, tcppool.Config{})
			c := get(t, d, s)
			await := readable(t, c.NetConn())
			if !c.Release() {
				t.Fatal("not kept")
			}
			spoil(s.accept(t))
			await()
			if get(t, d, s).Reused() {
				t.Error("lent")
			}
		})
	}
}

func TestDeadlinesAreUndone(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{})
	c := get(t, d, s)
	remote := s.accept(t)
	for _, set := range []func(time.Time) error{c.SetDeadline, c.SetReadDeadline, c.SetWriteDeadline} {
		if err := set(time.Unix(1, 0)); err != nil {
			t.Error(err)
		}
	}
	if !c.Release() {
		t.Error("not kept")
	}
	c = get(t, d, s)
	exchange(t, c, remote)
	exchange(t, remote, c)
}

func TestDirectWhenFull(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{})
	var cs []*tcppool.Conn
	for range tcppool.DefaultMaxSize + 1 {
		cs = append(cs, get(t, d, s))
	}
	for _, c := range cs {
		c.Release()
	}
	st := d.Stats()[0]
	if st.Idle != 10 || st.Overflowed != 1 || st.Direct != 0 {
		t.Errorf("%+v", st)
	}
}

func TestWarmConnections(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{Limits: &pool.Limits{MinIdle: 1, MaxSize: 2}})
	c := get(t, d, s)
	for { // c's, or the one opened ahead of demand
		greeting := s.accept(t)
		if _, err := io.WriteString(greeting, "220 hello\n"); err != nil {
			t.Fatal(err)
		}
		if greeting.RemoteAddr().String() == c.LocalAddr().String() {
			break
		}
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "220 hello\n" {
		t.Errorf("greeting %q, %v", line, err)
	}
}

func TestDialErrors(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, io.ErrUnexpectedEOF
	}})
	_, err := d.DialContext(ctx, "tcp", s.Addr().String())
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, pool.ErrOpen) {
		t.Errorf("error %v", err)
	}
	d.Close()
	d.Close()
	if _, err := d.DialContext(ctx, "tcp", s.Addr().String()); !errors.Is(err, net.ErrClosed) || !errors.Is(err, pool.ErrClosed) {
		t.Errorf("error %v", err)
	}
	for _, cfg := range []tcppool.Config{{ForgetAfter: -1}, {Limits: &pool.Limits{MaxSize: -1}}} {
		if _, err := tcppool.New(cfg); !errors.Is(err, pool.ErrConfig) {
			t.Errorf("error %v", err)
		}
	}
}

// A connection whose socket cannot be seen is not kept, and an address without
// connections is forgotten.
func TestForgetsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dialer(t, tcppool.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			c, _ := net.Pipe()
			return c, nil
		}})
		for i := range 50 {
			c, err := d.Get(ctx, "tcp", fmt.Sprintf("192.0.2.1:%d", i+1))
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				defer c.Close()
			} else if c.Release() {
				t.Error("kept")
			}
		}
		time.Sleep(3 * tcppool.DefaultForgetAfter)
		synctest.Wait()
		if n := len(d.Stats()); n != 1 || opened(d) != 1 {
			t.Errorf("%d addresses", n)
		}
	})
}

// A Get that has found an address's pool just before that is forgotten gets a connection from a new one.
func TestForgottenMeanwhile(t *testing.T) {
	s := listen(t)
	d := dialer(t, tcppool.Config{Limits: &pool.Limits{IdleTimeout: time.Millisecond}, ForgetAfter: time.Millisecond})
	get(t, d, s).Close()
	found := tcppool.Last(d)
	for len(d.Stats()) > 0 {
		runtime.Gosched()
	}
	found()
	c := get(t, d, s)
	s.accept(t)
	exchange(t, c, s.accept(t))
}

package tcpproxy_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// transferSize is the number of bytes in each direction of the integrity test.
const transferSize = 256 << 20

// sendRandom writes n random bytes and returns their hash.
func sendRandom(w io.Writer, n int64, seed byte) ([32]byte, error) {
	h := sha256.New()
	src := rand.NewChaCha8([32]byte{seed})
	_, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(src, n))
	return [32]byte(h.Sum(nil)), err
}

func TestLargeTransferBothWays(t *testing.T) {
	type result struct {
		got, sent [32]byte
		n         int64
		err       error
	}
	results := make(chan result, 1)
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		var r result
		var wg sync.WaitGroup
		wg.Go(func() {
			r.sent, _ = sendRandom(c, transferSize, 1)
			c.CloseWrite()
		})
		h := sha256.New()
		r.n, r.err = io.Copy(h, c)
		wg.Wait()
		r.got = [32]byte(h.Sum(nil))
		results <- r
	})
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	_ = c.SetDeadline(time.Time{}) // how long it takes is the machine's business
	var sent [32]byte
	var wg sync.WaitGroup
	wg.Go(func() {
		sent, _ = sendRandom(c, transferSize, 2)
		c.CloseWrite()
	})
	h := sha256.New()
	n, err := io.Copy(h, c)
	if err != nil {
		c.Close() // or both would write forever
	}
	wg.Wait()
	r := <-results
	if err != nil || n != transferSize || [32]byte(h.Sum(nil)) != r.sent {
		t.Errorf("from the server: %d bytes, %v, intact: %v", n, err, [32]byte(h.Sum(nil)) == r.sent)
	}
	if r.err != nil || r.n != transferSize || r.got != sent {
		t.Errorf("to the server: %d bytes, %v, intact: %v", r.n, r.err, r.got == sent)
	}
	if err := p.Drain(t.Context()); err != nil { // the session is over after this
		t.Error(err)
	}
	st := p.Stats()
	if st.BytesIn != transferSize || st.BytesOut != transferSize {
		t.Errorf("counted %d in, %d out, want %d each", st.BytesIn, st.BytesOut, transferSize)
	}
	if len(st.Errors) > 0 {
		t.Errorf("errors: %v", st.Errors)
	}
}

func TestHalfCloseByClient(t *testing.T) {
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c) // until the FIN
		fmt.Fprintf(c, "you said %q", b)
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	io.WriteString(c, "all I have")
	c.CloseWrite()
	b, err := io.ReadAll(c)
	if err != nil || string(b) != `you said "all I have"` {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestHalfCloseByServer(t *testing.T) {
	got := make(chan string, 1)
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		io.WriteString(c, "bye")
		c.CloseWrite()
		b, _ := io.ReadAll(c)
		got <- string(b)
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	if b, err := io.ReadAll(c); err != nil || string(b) != "bye" {
		t.Fatalf("got %q, %v", b, err)
	}
	io.WriteString(c, "still here")
	c.Close()
	if s := <-got; s != "still here" {
		t.Errorf("after its FIN the server got %q", s)
	}
}

func TestResetByServer(t *testing.T) {
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	})
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	io.WriteString(c, "x")
	if err := conntest.WantGone(t, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v, want a reset", err)
	}
	p.Close() // the session is over after this
	if st := p.Stats(); st.Errors["backend_gone"] != 1 {
		t.Errorf("errors: %v, want one backend_gone", st.Errors)
	}
}

func TestResetByClient(t *testing.T) {
	seen := make(chan error, 1)
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.Write([]byte("y"))
		_, err := c.Read(make([]byte, 1))
		seen <- err
	})
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	io.WriteString(c, "x")
	conntest.Want(t, c, "y")
	c.SetLinger(0)
	c.Close()
	if err := <-seen; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server sees %v, want a reset", err)
	}
	p.Close()
	if st := p.Stats(); st.Errors["client_gone"] != 1 {
		t.Errorf("errors: %v, want one client_gone", st.Errors)
	}
}

// TestNoForeignBytes: many clients at once, each with its own bytes, disconnect in every way; a
// server connection that ever serves two of them, or a byte that reaches the wrong one, is an
// error.
func TestNoForeignBytes(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	limits := pool.Limits{MinIdle: 8, OpenTimeout: conntest.Patience} // a starved machine takes longer than the defaults
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: limits}},
		func(c *tcpproxy.Config) { c.ConnectTimeout = conntest.Patience })
	var wg sync.WaitGroup
	for id := range 32 {
		wg.Go(func() {
			for round := range 20 {
				if err := hammer(addr, byte(id), round); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if st := p.Stats(); st.Accepted != 32*20 || t.Failed() {
		t.Errorf("accepted %d, want %d; errors: %v", st.Accepted, 32*20, st.Errors)
	}
}

// hammer talks to the echo server and leaves, in every third round with bytes
// on their way.
func hammer(addr string, id byte, round int) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	own := make([]byte, 1+(round*4099)%70000)
	for i := range own {
		own[i] = id
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.Write(own); c.CloseWrite() })
	buf := make([]byte, 4096)
	for got := 0; got < len(own); {
		n, err := c.Read(buf)
		for _, b := range buf[:n] {
			if b != id {
				return fmt.Errorf("client %d got a byte of client %d", id, b)
			}
		}
		got += n
		if round%3 == 2 && got > 0 {
			c.SetLinger(0)
			return c.Close()
		}
		if err != nil && got < len(own) {
			return fmt.Errorf("client %d: %d of %d bytes: %w", id, got, len(own), err)
		}
	}
	return nil
}

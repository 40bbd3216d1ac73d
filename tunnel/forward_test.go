package tunnel_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tunnel"
)

func TestForward(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: allow("127.0.0.0/8:*")})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			c, err := e.client.Open(soon(t), target)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			conntest.Exchange(t, c, "hello")
			if c.RemoteAddr().String() != "far/"+target {
				t.Errorf("remote address %v", c.RemoteAddr())
			}
		})
	}
	all.Wait()
	conntest.Eventually(t, "the streams are over", func() bool { return e.server.Tunnel().Streams == 0 && e.client.Stats().Streams == 0 })
	near, far := e.client.Stats(), e.server.Tunnel()
	if near.Sessions != 1 || near.Opened != 50 || far.Accepted != 50 || far.Refused+far.Failed != 0 {
		t.Errorf("near %+v\nfar %+v", near, far)
	}
	if len(far.Connected) != 1 || far.Connected[0] != "branch" || near.BytesOut != far.BytesIn || near.BytesOut != 250 {
		t.Errorf("near %+v\nfar %+v", near, far)
	}
}

// The first bytes are on their way before the far side has said a word.
func TestOpenCostsNoRoundTrip(t *testing.T) {
	dialled := make(chan struct{})
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: func(c *tunnel.ServerConfig) {
		c.Policy = policy("127.0.0.1:*")
		c.Policy.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			<-dialled
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}
	}})
	c, err := e.client.Open(soon(t), target)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("early")); err != nil {
		t.Fatal(err)
	}
	close(dialled)
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "early" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHalfClose(t *testing.T) {
	question := bytes.Repeat([]byte("question "), 30_000)
	t.Run("client first", func(t *testing.T) {
		target := conntest.Serve(t, func(c *net.TCPConn) {
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, question) {
				t.Errorf("the backend got %d bytes, %v", len(got), err)
			}
			_, _ = c.Write([]byte("answer"))
		})
		c := open(t, start(t, options{server: allow(target)}), target)
		if _, err := c.Write(question); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || string(got) != "answer" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("backend first", func(t *testing.T) {
		got := make(chan []byte, 1)
		target := conntest.Serve(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("banner"))
			_ = c.CloseWrite()
			b, _ := io.ReadAll(c)
			got <- b
		})
		c := open(t, start(t, options{server: allow(target)}), target)
		if b, err := io.ReadAll(c); err != nil || string(b) != "banner" {
			t.Errorf("%q, %v", b, err)
		}
		if _, err := c.Write(question); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b := <-got; !bytes.Equal(b, question) {
			t.Errorf("the backend got %d bytes", len(b))
		}
	})
}

// A connection that breaks is a reset at the other end, and never looks complete.
func TestReset(t *testing.T) {
	t.Run("by the backend", func(t *testing.T) {
		target := conntest.Serve(t, func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			_ = c.SetLinger(0)
		})
		c := open(t, start(t, options{server: allow(target)}), target)
		_, _ = c.Write([]byte("x"))
		if _, err := io.ReadAll(c); !errors.Is(err, tunnel.ErrBroken) || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v", err)
		}
	})
	t.Run("by the client", func(t *testing.T) {
		begun, ended := make(chan struct{}), make(chan error, 1)
		target := conntest.Serve(t, func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			close(begun)
			_, err := io.Copy(io.Discard, c)
			ended <- err
		})
		c := open(t, start(t, options{server: allow(target)}), target)
		_, _ = c.Write([]byte("x"))
		<-begun
		_ = c.SetLinger(0)
		_ = c.Close()
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the backend saw %v", err)
		}
	})
}

// The socket between the gateways is cut again and again while data flows both
// ways; every byte arrives once, in order.
func TestResume(t *testing.T) {
	const size = 8 << 20
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: allow(target)})
	c := open(t, e, target)
	want := sha256.New()
	var sent sync.WaitGroup
	sent.Go(func() {
		rnd := rand.NewChaCha8([32]byte{1})
		piece := make([]byte, 64<<10)
		for n := 0; n < size; n += len(piece) {
			_, _ = rnd.Read(piece)
			want.Write(piece)
			if _, err := c.Write(piece); err != nil {
				t.Errorf("write: %v", err)
				return
			}
		}
		_ = c.CloseWrite()
	})
	got := sha256.New()
	total, cuts := 0, 0
	for buf := make([]byte, 32<<10); ; {
		n, err := c.Read(buf)
		got.Write(buf[:n])
		total += n
		if total > (cuts+1)<<20 && cuts < 5 {
			cuts++
			e.sockets.cut()
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	sent.Wait()
	if total != size || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes of %d were echoed, or different ones", total, size)
	}
	if st := e.client.Stats(); st.Resumed < 1 || st.Broken < st.Resumed || st.Made != 1 || st.Lost != 0 {
		t.Errorf("%+v", st)
	}
}

// Nothing is opened in a session without a socket: Open waits, for a limited time.
func TestOpenWithoutSocket(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: allow(target)})
	running := open(t, e, target)
	conntest.Exchange(t, running, "before")
	e.sockets.block(true)
	e.sockets.cut()
	conntest.Eventually(t, "the loss is seen", func() bool { return e.client.Stats().Suspended == 1 })
	ctx, cancel := context.WithCancel(soon(t))
	failed := make(chan error, 1)
	go func() {
		_, err := e.client.Open(ctx, target)
		failed <- err
	}()
	cancel()
	if err := <-failed; !errors.Is(err, tunnel.ErrNotConnected) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	opened := make(chan error, 1)
	go func() {
		c, err := e.client.Dial(soon(t), target)
		if err == nil {
			_ = c.Close()
		}
		opened <- err
	}()
	e.sockets.block(false)
	if err := <-opened; err != nil {
		t.Error(err)
	}
	conntest.Exchange(t, running, "after")
}

// A tunnel whose server is away for good loses its streams and makes a session
// again when there is a server.
func TestReconnect(t *testing.T) {
	target := conntest.Serve(t, conntest.Echo)
	e := start(t, options{server: allow(target)})
	c := open(t, e, target)
	conntest.Exchange(t, c, "one")
	e.server.Close()
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a stream that was cut off looks complete")
	}
	conntest.Eventually(t, "a failure to connect", func() bool {
		_, err := e.client.Open(soon(t), target)
		return errors.Is(err, tunnel.ErrNotConnected)
	})
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	var cfg tunnel.ServerConfig
	allow(target)(&cfg)
	cfg.PSK = key
	again, err := tunnel.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	go again.Serve(l)
	conntest.Eventually(t, "a new session", func() bool {
		c, err := e.client.Dial(soon(t), target)
		if err != nil {
			return false
		}
		defer c.Close()
		conntest.Exchange(t, c, "two")
		return true
	})
}

// Bytes or an end that arrive on an unread connection are seen.
func TestState(t *testing.T) {
	speak, leave := make(chan struct{}), make(chan struct{})
	target := conntest.Serve(t, func(c *net.TCPConn) {
		<-speak
		_, _ = io.WriteString(c, "x")
		<-leave
	})
	e := start(t, options{server: allow(target)})
	c, err := e.client.Dial(soon(t), target)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.State() != fiber.Silent {
		t.Error("nothing was sent")
	}
	close(speak)
	conntest.Eventually(t, "a byte", func() bool { return c.State() != fiber.Silent })
	if _, err := c.Read(make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	if c.State() != fiber.Silent {
		t.Error("everything was read")
	}
	close(leave)
	conntest.Eventually(t, "the end", func() bool { return c.State() != fiber.Silent })
}

func open(t testing.TB, e *ends, target string) *tunnel.Conn {
	t.Helper()
	c, err := e.client.Open(soon(t), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A silent backend is closed when its answer is no longer awaited: its client has closed after a
// half-close, or its session is over.
func TestSilentBackend(t *testing.T) {
	for name, leave := range map[string]func(e *ends, c *tunnel.Conn){
		"the client closes": func(_ *ends, c *tunnel.Conn) { _ = c.Close() },
		"the client breaks": func(_ *ends, c *tunnel.Conn) {
			_ = c.SetLinger(0)
			_ = c.Close()
		},
		"its gateway closes":     func(e *ends, _ *tunnel.Conn) { e.client.Close() },
		"the far gateway closes": func(e *ends, _ *tunnel.Conn) { e.server.Close() },
		"the socket is lost for good": func(e *ends, _ *tunnel.Conn) {
			e.sockets.block(true)
			e.sockets.cut()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, over := make(chan struct{}), make(chan struct{})
			target := conntest.Serve(t, func(c *net.TCPConn) {
				_, _ = io.Copy(io.Discard, c) // up to the client's end
				close(asked)
				<-over
			})
			closed := &closing{over: make(chan struct{})}
			t.Cleanup(func() { close(over) })
			e := start(t, options{server: func(c *tunnel.ServerConfig) {
				allow(target)(c)
				c.ResumeWindow = 50 * time.Millisecond
				c.Policy.Dial = closed.dial
			}})
			c := open(t, e, target)
			_, _ = c.Write([]byte("question"))
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			<-asked
			go leave(e, c)
			select {
			case <-closed.over:
			case <-soon(t).Done():
				t.Error("the far side waits for a backend that says nothing")
			}
		})
	}
}

// closing is a connection whose Close is seen.
type closing struct {
	*net.TCPConn
	once sync.Once
	over chan struct{}
}

func (c *closing) dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c.TCPConn = conn.(*net.TCPConn)
	return c, nil
}

func (c *closing) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.TCPConn.Close()
}

// A stream that the far gateway cuts off when it closes never looks complete: neither
// one whose backend has not spoken yet, nor one whose backend is being dialled.
func TestClosingDoesNotLookComplete(t *testing.T) {
	asked, over := make(chan struct{}, 1), make(chan struct{})
	target := conntest.Serve(t, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		asked <- struct{}{}
		<-over
	})
	dialling := make(chan struct{}, 1)
	slow := func(ctx context.Context) (net.Conn, error) {
		dialling <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	defer close(over)
	for range 20 {
		e := start(t, options{server: func(c *tunnel.ServerConfig) {
			allow(target)(c)
			c.Policy.Upstreams = map[string]func(context.Context) (net.Conn, error){"slow": slow}
		}})
		silent, undialled := open(t, e, target), open(t, e, "upstream:slow")
		_, _ = silent.Write([]byte("question"))
		_ = silent.CloseWrite()
		<-asked
		<-dialling
		e.server.Close()
		for _, c := range []*tunnel.Conn{silent, undialled} {
			if _, err := io.ReadAll(c); err == nil {
				t.Errorf("%v looks complete", c.RemoteAddr())
			}
		}
		e.client.Close()
	}
}

// TestStateOfAConn: the end of an unread connection is seen, whether its target was reached or not, also behind a
// banner.
func TestStateOfAConn(t *testing.T) {
	for name, tc := range map[string]struct {
		banner string
		dial   bool
		want   fiber.State
	}{
		"silent":          {"", false, fiber.Closing}, // the byte that says that the target was reached is unread
		"banner":          {"220 ready", false, fiber.Closing},
		"reached, silent": {"", true, fiber.Dead},
		"reached, banner": {"220 ready", true, fiber.Closing},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			backend := conntest.Serve(t, func(c *net.TCPConn) {
				io.WriteString(c, tc.banner)
				<-over
			})
			e := start(t, options{server: allow(backend)})
			open := e.client.Open
			if tc.dial {
				open = e.client.Dial
			}
			c, err := open(soon(t), backend)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var look fiber.Stream = c
			if state := look.State(); state != fiber.Silent && state != fiber.Pending {
				t.Errorf("an open connection is %v", state)
			}
			close(over)
			conntest.Eventually(t, "the end", func() bool { return look.State() == tc.want })
			if got, err := io.ReadAll(c); err != nil || string(got) != tc.banner {
				t.Errorf("read %q, %v", got, err)
			}
			if state := look.State(); state != fiber.Dead {
				t.Errorf("a connection whose end was read is %v", state)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		e := start(t, options{server: allow()})
		c, err := e.client.Open(soon(t), "127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conntest.Eventually(t, "the end", func() bool { return c.State() == fiber.Dead })
	})
}

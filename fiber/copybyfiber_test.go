package fiber_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/tlstest"
)

var pastTime = time.Unix(1, 0)

// tlsChain is client → TLS → (in, out) → server, the last part in clear.
type tlsChain struct {
	*tls.Conn          // the client
	far       net.Conn // its connection
	in        *fiber.TLSConn
	out       fiber.Stream
	server    net.Conn
	keyLog    bytes.Buffer
}

func newTLSChain(t *testing.T, e *fiber.Engine, cfg *tls.Config) *tlsChain {
	t.Helper()
	far, in, out, server := chain(t, e, "tcp")
	c := &tlsChain{far: far, in: fiber.TLSServer(in, cfg), out: fiber.StreamOf(out), server: server}
	c.Conn = tls.Client(far, &tls.Config{InsecureSkipVerify: true, KeyLogWriter: &c.keyLog})
	shaken := make(chan error, 1)
	go func() { shaken <- c.Handshake() }()
	var err error
	on(in, func() { err = c.in.Handshake() })
	if err = errors.Join(err, <-shaken); err != nil {
		t.Fatal(err)
	}
	return c
}

// join copies both ways, and passes ends on. It returns the results of the direction to the server and of the other one.
func (c *tlsChain) join(t *testing.T) (up, down chan [2]error) {
	t.Helper()
	up, down = make(chan [2]error, 1), make(chan [2]error, 1)
	on(c.in.NetConn(), func() {
		one := func(src, dst fiber.Stream, over chan [2]error) {
			if !fiber.CopyThen(src, dst, func(int) {}, nil, func(readErr, writeErr error) {
				if readErr == io.EOF {
					_ = dst.CloseWrite()
				}
				over <- [2]error{readErr, writeErr}
			}) {
				t.Error("not taken")
				over <- [2]error{}
			}
		}
		one(c.in, c.out, up)
		one(c.out, c.in, down)
	})
	return up, down
}

// awaitNoFibers waits until no fiber of the engine is left.
func awaitNoFibers(t *testing.T, e *fiber.Engine) {
	t.Helper()
	conntest.Eventually(t, "no fiber is left", func() bool { return e.Stats().Fibers == 0 })
}

// TestCopyThenTLSHoldsNoStack: while nothing arrives there is no fiber. What comes later is copied, also bulk, and so are the ends of both
// directions.
func TestCopyThenTLSHoldsNoStack(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c := newTLSChain(t, e, cfg)
		up, down := c.join(t)
		for range 3 {
			awaitNoFibers(t, e)
			pass(t, c, c.server, "question")
			awaitNoFibers(t, e)
			pass(t, c.server, c, "answer")
		}
		want := random(t, 4<<20)
		for _, way := range [][2]net.Conn{{c, c.server}, {c.server, c}} {
			go func() { _, _ = way[0].Write(want) }()
			got := make([]byte, len(want))
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("bulk: %v", err)
			}
			awaitNoFibers(t, e)
		}
		_ = c.CloseWrite()
		if n, err := c.server.Read(make([]byte, 1)); n > 0 || err != io.EOF {
			t.Errorf("the server got %d bytes, %v; want the end", n, err)
		}
		if got := <-up; got != [2]error{io.EOF, nil} {
			t.Errorf("to the server: %v", got)
		}
		awaitNoFibers(t, e)
		pass(t, c.server, c, "more")
		awaitNoFibers(t, e)
		_ = c.server.Close()
		if n, err := c.Read(make([]byte, 1)); n > 0 || err != io.EOF {
			t.Errorf("the client got %d bytes, %v; want close_notify", n, err)
		}
		if got := <-down; got != [2]error{io.EOF, nil} {
			t.Errorf("to the client: %v", got)
		}
	})
}

// TestCopyThenTLSMessages: TLS's own messages and parts of records start a fiber, which does not wait for the data behind them.
func TestCopyThenTLSMessages(t *testing.T) {
	cfg := serverConfig()
	cfg.SessionTicketsDisabled = true // or they are on their way to the client
	loops(t, func(t *testing.T, e *fiber.Engine) {
		c := newTLSChain(t, e, cfg)
		if c.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
			t.Log("this machine has no instructions for AES, and tlstest makes no other records")
			return
		}
		up, down := c.join(t)
		seal := tlstest.NewSealer(t, c.keyLog.String(), "CLIENT")
		send := func(b []byte) {
			if _, err := c.far.Write(b); err != nil {
				t.Fatal(err)
			}
			conntest.Eventually(t, "the piece has been received", func() bool { return c.in.NetConn().(fiber.Stream).State() == fiber.Silent })
			awaitNoFibers(t, e)
		}
		for range 3 {
			update := seal.Record(tlstest.Handshake, tlstest.KeyUpdate)
			awaitNoFibers(t, e)
			send(update[:3])
			send(update[3:9])
			send(update[9:])
			seal.Renew(t)
			conntest.Eventually(t, "the update is answered", func() bool { return c.far.(fiber.Stream).State() != fiber.Silent })
			pass(t, c.server, c, "with new keys")
			awaitNoFibers(t, e)
			data := append(seal.Record(tlstest.Data, "new keys"), seal.Record(tlstest.Data, ", two records")...)
			send(data[:10])
			send(data[10:])
			got := make([]byte, len("new keys, two records"))
			if _, err := io.ReadFull(c.server, got); err != nil || string(got) != "new keys, two records" {
				t.Fatalf("the server got %q, %v", got, err)
			}
		}
		awaitNoFibers(t, e)
		send(seal.Record(tlstest.Data, "cut off")[:12])
		_ = c.far.Close()
		if got := <-up; !errors.Is(got[0], io.ErrUnexpectedEOF) || got[1] != nil {
			t.Errorf("within a record the client's copying ended with %v", got)
		}
		_ = c.out.Close()
		<-down
	})
}

// TestCopyThenTLSEnds: what ends one of the connections while no fiber copies ends the copying.
func TestCopyThenTLSEnds(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, tc := range map[string]struct {
			end      func(c *tlsChain)
			up, down error // of reading
		}{
			"close_notify":       {end: func(c *tlsChain) { _ = c.Conn.Close() }, up: io.EOF},
			"end of the socket":  {end: func(c *tlsChain) { _ = c.far.Close() }, up: io.EOF},
			"end of the server":  {end: func(c *tlsChain) { _ = c.server.Close() }, down: io.EOF},
			"closed":             {end: func(c *tlsChain) { _ = c.in.NetConn().Close() }, up: net.ErrClosed},
			"closed, the other":  {end: func(c *tlsChain) { _ = c.out.Close() }, down: net.ErrClosed},
			"deadline":           {end: func(c *tlsChain) { _ = c.in.SetDeadline(pastTime) }, up: os.ErrDeadlineExceeded},
			"deadline of server": {end: func(c *tlsChain) { _ = c.out.SetDeadline(pastTime) }, down: os.ErrDeadlineExceeded},
		} {
			c := newTLSChain(t, e, cfg)
			up, down := c.join(t)
			pass(t, c, c.server, "question")
			pass(t, c.server, c, "answer")
			awaitNoFibers(t, e)
			tc.end(c)
			if tc.up != nil {
				if got := <-up; !errors.Is(got[0], tc.up) || got[1] != nil {
					t.Errorf("%s: the client's copying ended with %v, want %v", name, got, tc.up)
				}
				_ = c.out.SetDeadline(pastTime)
				<-down
			} else {
				if got := <-down; !errors.Is(got[0], tc.down) || got[1] != nil {
					t.Errorf("%s: the server's copying ended with %v, want %v", name, got, tc.down)
				}
				_ = c.in.SetDeadline(pastTime)
				<-up
			}
			_ = c.in.NetConn().Close()
		}
	})
}

// TestCopyThenTLSPanics: a panic of moved ends the copying with an error, also behind a pause.
func TestCopyThenTLSPanics(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		for name, pieces := range map[string]int{"ahead": 1, "at once": 2, "behind a pause": 3} {
			c := newTLSChain(t, e, cfg)
			over, n, panics := make(chan error, 1), 0, e.Stats().Panics
			on(c.in.NetConn(), func() {
				taken := fiber.CopyThen(fiber.Ahead(c.in, []byte("ahead ")), c.out, func(int) {
					if n++; n == pieces {
						panic("enough")
					}
				}, nil, func(readErr, writeErr error) { over <- errors.Join(readErr, writeErr) })
				if !taken {
					t.Error("not taken")
				}
			})
			for i := 1; i < pieces; i++ {
				_, _ = c.Write([]byte("data"))
				want := "data"
				if i == 1 {
					want = "ahead data"
				}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(c.server, got); err != nil || string(got) != want {
					t.Fatalf("%s: got %q, %v; want %q", name, got, err, want)
				}
				if i < pieces-1 {
					awaitNoFibers(t, e)
				}
			}
			if err := <-over; !errors.Is(err, fiber.ErrPanicked) || !strings.Contains(err.Error(), "enough") {
				t.Errorf("%s: it ended with %v", name, err)
			}
			if n := e.Stats().Panics - panics; n != 1 {
				t.Errorf("%s: %d panics are counted", name, n)
			}
		}
	})
}

// TestCopyThenTLSNotTaken: it needs a fiber, and a loop of each connection.
func TestCopyThenTLSNotTaken(t *testing.T) {
	cfg := serverConfig()
	never := func(_, _ error) { t.Error("it has copied") }
	for _, kind := range kinds(t) {
		e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
		c := newTLSChain(t, e, cfg)
		plain, other := net.Pipe()
		if fiber.CopyThen(c.in, c.in, func(int) {}, nil, never) {
			t.Errorf("%s: a goroutine's call was taken", kind)
		}
		on(c.in.NetConn(), func() {
			if fiber.CopyThen(c.in, plain, func(int) {}, nil, never) || fiber.CopyThen(fiber.StreamOf(plain), c.in, func(int) {}, nil, never) {
				t.Errorf("%s: taken with a connection of no loop", kind)
			}
		})
		_, _ = plain.Close(), other.Close()
	}
}

// TestCopyThenTLSBetweenLoops: the two connections may live on two loops.
func TestCopyThenTLSBetweenLoops(t *testing.T) {
	cfg := serverConfig()
	for _, kind := range kinds(t) {
		for range 3 { // hardly all on one loop
			e := newEngine(t, fiber.Config{Engine: kind, Loops: 2})
			c := newTLSChain(t, e, cfg)
			if fiber.LoopOf(c.in) == 0 {
				break
			}
			over := make(chan error, 1)
			on(c.in.NetConn(), func() {
				if !fiber.CopyThen(c.in, c.out, func(int) {}, nil, func(readErr, _ error) { over <- readErr }) {
					t.Errorf("%s: not taken", kind)
				}
			})
			for range 2 {
				_, _ = c.Write([]byte("data"))
				got := make([]byte, 4)
				if _, err := io.ReadFull(c.server, got); err != nil || string(got) != "data" {
					t.Fatalf("%s: got %q, %v", kind, got, err)
				}
				awaitNoFibers(t, e)
			}
			_ = c.CloseWrite()
			if err := <-over; err != io.EOF { //nolint:errorlint // as it is documented
				t.Errorf("%s: it ended with %v", kind, err)
			}
		}
	}
}

package fiber_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/certs"
)

func serverConfig() *tls.Config {
	cfg, _ := certs.New().Configs()
	return cfg
}

// A TLS client stops reading and then sends something that is no record: the fiber that reads wants
// to send an alert, for which crypto/tls needs the lock that the writing fiber holds while it
// waits. The loop must not stop.
func TestTLSClientThatStopsReadingAndSendsRubbish(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		raw, s := plainPair(t, e)
		server := fiber.TLSServer(s, cfg)
		shaken := make(chan error, 1)
		fiber.Spawn(s, func() { shaken <- server.Handshake() })
		client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		if err := <-shaken; err != nil {
			t.Fatal(err)
		}
		var pieces atomic.Int64
		read := make(chan struct{})
		var over fiber.Group
		over.Add(2)
		fiber.Spawn(s, func() {
			defer over.Done()
			for err := error(nil); err == nil; pieces.Add(1) {
				_, err = server.Write(make([]byte, 1<<10))
			}
		})
		fiber.Spawn(s, func() {
			defer over.Done()
			for wrote := -1; wrote != int(pieces.Load()); { // until the writer has no room any more
				wrote = int(pieces.Load())
				fiber.Sleep(50 * time.Millisecond)
			}
			if _, err := server.Read(make([]byte, 100)); err == nil {
				t.Error("rubbish was read")
			}
			close(read)
		})
		_, _ = raw.Write(make([]byte, 100))
		<-read
		on(s, func() {}) // the loop still runs
		_ = raw.Close()
		over.Wait()
		_ = server.Close()
	})
}

// tlsPair returns two ends of a TLS connection, with the handshake done.
func tlsPair(t *testing.T, e *fiber.Engine, cfg *tls.Config) (client, server *fiber.TLSConn) {
	t.Helper()
	c, s := pair(t, e, "tcp")
	client = fiber.TLSClient(c, &tls.Config{InsecureSkipVerify: true})
	server = fiber.TLSServer(s, cfg)
	var both fiber.Group
	for _, end := range []*fiber.TLSConn{client, server} {
		both.Add(1)
		fiber.Spawn(end.NetConn(), func() {
			defer both.Done()
			if err := end.Handshake(); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	return client, server
}

func TestTLSBothWays(t *testing.T) {
	cfg := serverConfig()
	engines(t, func(t *testing.T, e *fiber.Engine) {
		client, server := tlsPair(t, e, cfg)
		want := random(t, 4<<20)
		fiber.Spawn(server.NetConn(), func() {
			if _, err := io.Copy(server, server); err != nil {
				t.Error(err)
			}
			if err := server.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		fiber.Spawn(client.NetConn(), func() {
			if n, err := client.Write(want); n != len(want) || err != nil {
				t.Errorf("Write = %d, %v", n, err)
			}
			if err := client.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		on(client.NetConn(), func() {
			got, err := io.ReadAll(client)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, %v; want the %d that were sent", len(got), err, len(want))
			}
			_ = client.Close()
		})
		on(server.NetConn(), func() { _ = server.Close() })
	})
}

// A Close without CloseWrite sends close_notify, and a deadline ends a Write that waits.
func TestTLSCloseAndDeadline(t *testing.T) {
	cfg := serverConfig()
	engines(t, func(t *testing.T, e *fiber.Engine) {
		client, server := tlsPair(t, e, cfg)
		on(server.NetConn(), func() {
			_, _ = server.Write([]byte("bye"))
			_ = server.Close()
		})
		on(client.NetConn(), func() {
			if b, err := io.ReadAll(client); string(b) != "bye" || err != nil {
				t.Errorf("got %q, %v", b, err)
			}
			_ = client.Close()
		})
		client, server = tlsPair(t, e, cfg)
		on(server.NetConn(), func() {
			_ = server.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			err := error(nil)
			for err == nil {
				_, err = server.Write(make([]byte, 1<<20))
			}
			if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() {
				t.Errorf("Write to a client that does not read: %v, want a time-out", err)
			}
			if _, err := server.Write([]byte("x")); err == nil {
				t.Error("a Write after one that failed succeeded")
			}
			_ = server.NetConn().(interface{ SetLinger(int) error }).SetLinger(0)
			_ = server.Close()
		})
		_ = client.Close()
	})
}

// TestTLSWriteAfterDeadline: a later deadline lets a Write go on after one that has run into its deadline, as on other
// connections. The peer gets all that was counted as written, once.
func TestTLSWriteAfterDeadline(t *testing.T) {
	cfg := serverConfig()
	engines(t, func(t *testing.T, e *fiber.Engine) {
		client, server := tlsPair(t, e, cfg)
		data := random(t, 1<<20)
		var want []byte
		on(server.NetConn(), func() {
			_ = server.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			err := error(nil)
			for n := 0; err == nil; {
				n, err = server.Write(data)
				want = append(want, data[:n]...)
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Write to a client that does not read: %v, want a time-out", err)
			}
			if n, err := server.Write(data); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Write again without a later deadline: %d, %v", n, err)
			}
		})
		fiber.Spawn(server.NetConn(), func() {
			_ = server.SetWriteDeadline(time.Now().Add(time.Hour))
			if n, err := server.Write([]byte("last")); n != 4 || err != nil {
				t.Errorf("Write with a later deadline: %d, %v", n, err)
			}
			_ = server.Close()
		})
		on(client.NetConn(), func() {
			got, err := io.ReadAll(client)
			if want = append(want, "last"...); err != nil || !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, %v; want the %d that were sent", len(got), err, len(want))
			}
			_ = client.Close()
		})
	})
}

// WaitReadable knows about data that crypto/tls has decrypted or received already, which the
// underlying connection does not show, and loses none of it: many records or none in a read, of all
// sizes.
func TestTLSWaitReadable(t *testing.T) {
	cfg := serverConfig()
	loops(t, func(t *testing.T, e *fiber.Engine) {
		client, server := tlsPair(t, e, cfg)
		want := random(t, 300<<10)
		fiber.Spawn(client.NetConn(), func() {
			for rest, n := want, 1; len(rest) > 0; n = n*3%5003 + 1 {
				n = min(n, len(rest))
				if _, err := client.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			_ = client.CloseWrite()
		})
		on(server.NetConn(), func() {
			if ready, err := server.WaitReadableFor(time.Hour); !ready || err != nil {
				t.Errorf("WaitReadableFor = %v, %v", ready, err)
			}
			var got []byte
			buf := make([]byte, 2000)
			for size := 1; ; size = size*7%1999 + 1 {
				if err := server.WaitReadable(); err != nil {
					t.Error(err)
					return
				}
				n, err := server.Read(buf[:size])
				got = append(got, buf[:n]...)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, want the %d that were sent", len(got), len(want))
			}
			if err := server.WaitReadable(); err != nil {
				t.Errorf("at the end: %v, want nil: a Read does not wait", err)
			}
		})
		on(client.NetConn(), func() {
			if ready, err := client.WaitReadableFor(time.Millisecond); ready || err != nil {
				t.Errorf("nothing was sent, and WaitReadableFor = %v, %v", ready, err)
			}
			_ = client.SetReadDeadline(time.Unix(1, 0))
			if err := client.WaitReadable(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("WaitReadable = %v, want the deadline", err)
			}
			_ = client.Close()
		})
		on(server.NetConn(), func() { _ = server.Close() })
	})
	if err := fiber.TLSServer(nil, cfg).WaitReadable(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("of no loop: %v", err)
	}
}

// trickle gives what it has received a byte at a time, and counts the Writes that a Read of a TLSConn makes.
type trickle struct {
	net.Conn
	received *bufio.Reader
	byReader atomic.Int64
}

func (c *trickle) Read(p []byte) (int, error) { return c.received.Read(p[:min(len(p), 1)]) }

func (c *trickle) Write(p []byte) (int, error) {
	pc := make([]uintptr, 32)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasSuffix(f.Function, ".(*TLSConn).Read") {
			c.byReader.Add(1)
		}
	}
	return c.Conn.Write(p)
}

// TestTLSReaderSendsNothing: a Read sends nothing of a Write under way. It would not read while the peer does not read, and a peer
// that has something to send before it reads would wait forever. Fibers of a loop do not run at the same time; goroutines do.
func TestTLSReaderSendsNothing(t *testing.T) {
	cfg := serverConfig()
	e := newEngine(t, fiber.Config{Engine: fiber.Goroutine})
	c, s := pair(t, e, "tcp")
	under := &trickle{Conn: s, received: bufio.NewReader(s)}
	client, server := fiber.TLSClient(c, &tls.Config{InsecureSkipVerify: true}), fiber.TLSServer(under, cfg)
	fiber.Spawn(c, func() {
		_, _ = client.Write(make([]byte, 1<<18))
		_ = client.CloseWrite()
	})
	fiber.Spawn(c, func() {
		_, _ = io.Copy(io.Discard, client)
		_ = client.Close()
	})
	on(s, func() {
		if err := server.Handshake(); err != nil {
			t.Error(err)
		}
	})
	under.byReader.Store(0) // the handshake's
	written := make(chan struct{})
	var over atomic.Bool
	fiber.Spawn(s, func() {
		defer close(written)
		for !over.Load() {
			if _, err := server.Write([]byte("x")); err != nil {
				t.Error(err)
				return
			}
		}
	})
	on(s, func() {
		if _, err := io.Copy(io.Discard, server); err != nil {
			t.Error(err)
		}
	})
	over.Store(true)
	<-written
	on(s, func() { _ = server.Close() })
	if n := under.byReader.Load(); n > 0 {
		t.Errorf("Read has sent %d times what Writes had to", n)
	}
}

// Package conntest has servers, clients and logs for tests of network code, which fail the test when something is
// wrong.
package conntest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/freeport"
)

// Patience ends a test that hangs. It bounds operations that take milliseconds on an idle machine, and measures
// nothing.
const Patience = 2 * time.Minute

// Log is the output of a logger or a program. It may be read while it is written.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String returns everything written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Logger returns a logger that writes to l as key=value, from level info on.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Line returns the first line that contains all words, ignoring case, "" if there is none.
func (l *Log) Line(words ...string) string {
next:
	for line := range strings.Lines(l.String()) {
		for _, w := range words {
			if !strings.Contains(strings.ToLower(line), strings.ToLower(w)) {
				continue next
			}
		}
		return strings.TrimSuffix(line, "\n")
	}
	return ""
}

// Listen listens on a port of 127.0.0.1 until the end of the test, also if nobody refers to the listener any more: the garbage collector would
// close it.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Run runs serve for l until the end of the test. Then it calls end, after which serve must return
// without an error.
func Run(t testing.TB, l net.Listener, serve func(net.Listener) error, end func()) (address string) {
	served := make(chan error, 1)
	go func() { served <- serve(l) }()
	t.Cleanup(func() {
		end()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// Serve runs handle for each connection to a port of 127.0.0.1, and closes the connection when handle returns. The
// server ends with the test.
func Serve(t testing.TB, handle func(*net.TCPConn)) (address string) {
	t.Helper()
	address, _ = ServeAt(t, "127.0.0.1:0", handle)
	return address
}

// ServeAt is Serve at a given address. kill ends the server earlier: it resets the connections, and returns when handle
// has returned for each.
func ServeAt(t testing.TB, address string, handle func(*net.TCPConn)) (bound string, kill func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var (
		work sync.WaitGroup
		mu   sync.Mutex
		open = map[*net.TCPConn]bool{}
	)
	work.Go(func() {
		for {
			conn, err := l.Accept()
			mu.Lock()
			if err != nil {
				for c := range open {
					_ = c.SetLinger(0)
					_ = c.Close()
				}
				mu.Unlock()
				return
			}
			c := conn.(*net.TCPConn)
			open[c] = true
			mu.Unlock()
			work.Go(func() {
				defer func() {
					_ = c.Close()
					mu.Lock()
					delete(open, c)
					mu.Unlock()
				}()
				handle(c)
			})
		}
	})
	kill = func() {
		_ = l.Close()
		work.Wait()
	}
	t.Cleanup(kill)
	return l.Addr().String(), kill
}

// Echo sends received bytes back, for Serve.
func Echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

// FreeAddress returns an address of 127.0.0.1 without a listener, which no other test gets.
func FreeAddress(t testing.TB) string {
	t.Helper()
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// Pair returns the two ends of a connection over the network, such as "tcp" or "unix", through a listener at the
// address.
func Pair(t testing.TB, network, address string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// Dial connects, with a deadline after Patience. The connection is closed at the end of the test.
func Dial(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(Patience))
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// RoundTrip sends the text on a new connection, half-closes it, and expects the text and a half-close back.
func RoundTrip(address, text string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(Patience))
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && string(got) != text {
		err = fmt.Errorf("%d bytes came back of %d, or others", len(got), len(text))
	}
	return err
}

// Exchange sends the text and expects it back.
func Exchange(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("write: %v", err)
	}
	Want(t, c, text)
}

// Want reads and compares the text.
func Want(t testing.TB, c net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("got %q, %v, want %q", got[:n], err, text)
	}
}

// WantGone expects the connection to be closed or reset without further data, and returns the error, which tells the
// two apart.
func WantGone(t testing.TB, c net.Conn) error {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if n > 0 || err == nil {
		t.Fatalf("read %d bytes, %v, want the connection to be gone", n, err)
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Fatal("the connection stays open")
	}
	return err
}

// WantRefused connects, expects the connection to be closed or reset without data, and returns the client's address.
// The system may report a reset without the address, so the address is chosen here. A free port may still belong to a
// connection that has just ended; then the next one is tried.
func WantRefused(t testing.TB, address string) (from string) {
	t.Helper()
	var (
		c   net.Conn
		err error = syscall.EADDRINUSE
	)
	for range 100 {
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		from = FreeAddress(t)
		var local *net.TCPAddr
		if local, err = net.ResolveTCPAddr("tcp", from); err != nil {
			t.Fatal(err)
		}
		c, err = (&net.Dialer{LocalAddr: local}).Dial("tcp", address)
	}
	if errors.Is(err, syscall.ECONNRESET) {
		return from
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(Patience))
	_ = WantGone(t, c)
	return from
}

// Eventually polls until the condition holds: each millisecond at first, and less often the longer it takes, because a
// condition may be a request. It fails the test after Patience.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); {
		waited := time.Since(began)
		if waited > Patience {
			t.Fatalf("not within %v: %s", Patience, what)
		}
		<-time.After(min(max(waited/10, time.Millisecond), 20*time.Millisecond))
	}
}

// SoakLength returns short, or the value of HEADPOND_SOAK (`make soak`) with long set.
func SoakLength(t testing.TB, short time.Duration) (length time.Duration, long bool) {
	t.Helper()
	text := os.Getenv("HEADPOND_SOAK")
	if text == "" {
		return short, false
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("HEADPOND_SOAK: %v", err)
	}
	return length, true
}

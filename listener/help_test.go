package listener_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/listener"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience ends a test that hangs; nothing is measured with it.
const patience = 30 * time.Second

// log is a Logger's output that may be read while it is written.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

var quiet = slog.New(slog.DiscardHandler)

// start serves h on loopback.
func start(t *testing.T, cfg listener.Config, h listener.Handler) (s *listener.Server, addr string) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	cfg.Name, cfg.Protocol = "test", "tcp"
	s, err := listener.New(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, l.Addr().String()
}

var echo = listener.HandlerFunc(func(_ context.Context, c net.Conn) {
	defer c.Close()
	io.Copy(c, c)
})

// sayClient tells the client which address it has, and then echoes.
var sayClient = listener.HandlerFunc(func(_ context.Context, c net.Conn) {
	defer c.Close()
	io.WriteString(c, c.RemoteAddr().String()+" "+c.LocalAddr().String()+"\n")
	io.Copy(c, c)
})

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func ask(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	want(t, c, text)
}

func want(t *testing.T, c net.Conn, text string) {
	t.Helper()
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != text {
		t.Fatalf("got %q, %v, want %q", buf, err, text)
	}
}

// wantGone wants the connection closed or reset, with nothing before.
func wantGone(t *testing.T, c net.Conn) {
	t.Helper()
	b, err := io.ReadAll(c)
	if ne, ok := errors.AsType[net.Error](err); len(b) > 0 || ok && ne.Timeout() {
		t.Fatalf("got %q, %v, want the connection to be gone", b, err)
	}
}

package listener_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

func TestServeCounts(t *testing.T) {
	s, addr := start(t, listener.Config{}, echo)
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "hello")
	st := s.Stats()
	if st.Active != 1 || st.Accepted != 1 || st.Address != addr {
		t.Errorf("while it runs: %+v", st)
	}
	c.Close()
	s.Close()
	if st := s.Stats(); st.Active != 0 || st.BytesIn != 5 || st.BytesOut != 5 || !st.Draining {
		t.Errorf("afterwards: %+v", st)
	}
}

// uncomparable is a listener that cannot be a key of a map.
type uncomparable struct {
	net.Listener
	_ []byte
}

func TestListenersOfAnyTypeAreServed(t *testing.T) {
	s, err := listener.New(listener.Config{Name: "test", Protocol: "tcp", Logger: quiet}, echo)
	if err != nil {
		t.Fatal(err)
	}
	addr := conntest.Run(t, uncomparable{Listener: conntest.Listen(t)}, s.Serve, s.Close)
	conntest.Exchange(t, conntest.Dial(t, addr), "hello")
	l := s.Listener(uncomparable{Listener: conntest.Listen(t)})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestPanicEndsOneSession(t *testing.T) {
	var l conntest.Log
	s, addr := start(t, listener.Config{Logger: l.Logger()}, listener.HandlerFunc(func(ctx context.Context, c *listener.Conn) {
		b := make([]byte, 1)
		if io.ReadFull(c, b); b[0] == '!' {
			panic("ouch")
		}
		c.Write(b)
		echo(ctx, c)
	}))
	other := conntest.Dial(t, addr)
	conntest.Exchange(t, other, "a")
	bad := conntest.Dial(t, addr)
	io.WriteString(bad, "!")
	conntest.WantGone(t, bad)
	conntest.Exchange(t, other, "b")
	s.Close()
	if n := s.Stats().Errors[listener.ReasonInternal]; n != 1 {
		t.Errorf("counted %d internal errors, want 1", n)
	}
	if text := l.String(); !strings.Contains(text, "ouch") || !strings.Contains(text, "server_test.go") {
		t.Errorf("the log lacks the panic or its stack: %s", text)
	}
}

// polite is a Rejecter.
type polite struct{ listener.HandlerFunc }

func (polite) RejectConn(c *listener.Conn, reason error) { io.WriteString(c, reason.Error()) }

func TestRejectedClientsAreTold(t *testing.T) {
	s, addr := start(t, listener.Config{MaxConns: 1, MaxQueue: -1}, polite{echo})
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "x")
	second := conntest.Dial(t, addr)
	io.WriteString(second, "unread bytes do not take the message away")
	second.CloseWrite()
	b, err := io.ReadAll(second)
	if err != nil || string(b) != listener.ErrQueueFull.Error() {
		t.Errorf("the rejected client got %q, %v", b, err)
	}
	first.CloseWrite()
	conntest.WantGone(t, first)
	if st := s.Stats(); st.Rejected != 1 || st.Errors[listener.ReasonRejected] != 1 {
		t.Errorf("rejected %d, errors %v, want 1", st.Rejected, st.Errors)
	} else if st.LastRejected.IsZero() {
		t.Error("the stats do not say when")
	}
}

// TestLastRejectedIsTheConnectionLimits, whatever else a handler counts under that reason.
func TestLastRejectedIsTheConnectionLimits(t *testing.T) {
	s, _ := start(t, listener.Config{}, echo)
	s.CountError(listener.ReasonRejected)
	if st := s.Stats(); st.Errors[listener.ReasonRejected] != 1 || st.LastErrors[listener.ReasonRejected].IsZero() || !st.LastRejected.IsZero() {
		t.Errorf("errors %v, last rejected %v", st.Errors, st.LastRejected)
	}
}

func TestUpdateRaisesLimit(t *testing.T) {
	s, addr := start(t, listener.Config{MaxConns: 1, QueueTimeout: conntest.Patience}, echo)
	conntest.Exchange(t, conntest.Dial(t, addr), "first")
	second := conntest.Dial(t, addr)
	io.WriteString(second, "second")
	if err := s.Update(listener.Config{Name: "test", MaxConns: 2, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	conntest.Want(t, second, "second")
	for _, cfg := range []listener.Config{{Name: "other"}, {Name: "test", MaxConns: -1}} {
		if err := s.Update(cfg); !errors.Is(err, listener.ErrConfig) {
			t.Errorf("Update(%+v): %v, want ErrConfig", cfg, err)
		}
	}
}

// failingListener fails with errs, nil being a connection that is gone, and then blocks until it is closed.
type failingListener struct {
	errs   chan error
	closed chan struct{}
}

func (l *failingListener) Accept() (net.Conn, error) {
	select {
	case err := <-l.errs:
		if err == nil {
			c, _ := net.Pipe()
			return c, c.Close()
		}
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *failingListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}
func (l *failingListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestOutOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out conntest.Log
		s, err := listener.New(listener.Config{Logger: out.Logger()}, echo)
		if err != nil {
			t.Fatal(err)
		}
		const failures = 12
		l := &failingListener{make(chan error, failures), make(chan struct{})}
		for range failures {
			l.errs <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
		}
		served := make(chan error)
		start := time.Now()
		go func() { served <- s.Serve(l) }()
		for s.Stats().Errors[listener.ReasonAccept] < failures {
			time.Sleep(time.Second) // fake time: lets the back-off pass
		}
		// 5+10+20+…+640 ms and then a second each.
		if d := time.Since(start); d < 4*time.Second || d > 10*time.Second {
			t.Errorf("%d failures took %v of back-off", failures, d)
		}
		if lines := strings.Count(out.String(), "too many open files"); lines != 9 {
			t.Errorf("logged %d lines, want one for each new delay, 9", lines)
		}
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// TestAtTheLimitOfFiles: every connection that ends lets one in, and the next
// accept fails again. That must not be two lines in the log for each of them.
func TestAtTheLimitOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out conntest.Log
		s, err := listener.New(listener.Config{Logger: out.Logger()}, echo)
		if err != nil {
			t.Fatal(err)
		}
		const rounds = 100
		l := &failingListener{make(chan error, 2*rounds), make(chan struct{})}
		for range rounds {
			l.errs <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
			l.errs <- nil
		}
		served := make(chan error)
		go func() { served <- s.Serve(l) }()
		for s.Stats().Accepted < rounds {
			time.Sleep(time.Second) // fake time: lets the back-off pass
		}
		if n := strings.Count(out.String(), "\n"); n > 10 {
			t.Errorf("%d lines within %d rounds of 5 ms", n, rounds)
		}
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// TestAcceptedConnectionIsBroken: accept(2) passes on the network errors of
// the new connection; they say nothing about the listener.
func TestAcceptedConnectionIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := listener.New(listener.Config{Logger: quiet}, echo)
		if err != nil {
			t.Fatal(err)
		}
		errs := []error{syscall.EPROTO, syscall.ENETDOWN, syscall.EHOSTUNREACH, syscall.EPERM}
		l := &failingListener{make(chan error, len(errs)), make(chan struct{})}
		for _, err := range errs {
			l.errs <- err
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		time.Sleep(time.Minute) // fake time
		if n := s.Stats().Errors[listener.ReasonAccept]; n != uint64(len(errs)) {
			t.Errorf("%d errors survived, want %d", n, len(errs))
		}
		s.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func TestBrokenListener(t *testing.T) {
	s, err := listener.New(listener.Config{Name: "web", Logger: quiet}, echo)
	if err != nil {
		t.Fatal(err)
	}
	l := &failingListener{make(chan error, 1), make(chan struct{})}
	l.errs <- syscall.EINVAL
	if err := s.Serve(l); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), `"web"`) {
		t.Errorf("Serve: %v, want the listener's name and EINVAL", err)
	}
	s.Close()
	if err := s.Serve(l); err != nil {
		t.Errorf("Serve after Close: %v", err)
	}
}

func TestAccessLog(t *testing.T) {
	var out conntest.Log
	s, err := listener.New(listener.Config{Name: "db", Protocol: "postgres", Logger: out.Logger()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Access(t.Context())
	if out.String() != "" || s.AccessLog() {
		t.Errorf("the access log is off, but wrote %q", out.String())
	}
	if err := s.Update(listener.Config{Name: "db", Protocol: "postgres", Logger: out.Logger(), AccessLog: true}); err != nil {
		t.Fatal(err)
	}
	s.Access(t.Context())
	if line := out.String(); !strings.Contains(line, "msg=access listener=db protocol=postgres") {
		t.Errorf("got %q", line)
	}
}

func TestConfigErrors(t *testing.T) {
	_, err := listener.New(listener.Config{MaxConns: -1, QueueTimeout: -1, ProxyTimeout: -1}, echo)
	if !errors.Is(err, listener.ErrConfig) || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v, want three problems", err)
	}
}

// The allocator's sizes: one byte more would cost each idle client sixteen.
func TestConnSize(t *testing.T) {
	if listener.ConnSize > 80 {
		t.Errorf("a Conn takes %d bytes, want no more than 80", listener.ConnSize)
	}
}

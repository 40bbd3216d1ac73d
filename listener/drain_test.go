package listener_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

func TestDrainWaitsForSessions(t *testing.T) {
	var s *listener.Server
	ready := make(chan struct{})
	s, addr := start(t, listener.Config{}, listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
		defer c.Close()
		<-ready
		io.WriteString(c, "hi")
		<-s.Draining()
		io.WriteString(c, "bye")
	}))
	close(ready) // s is set
	c := conntest.Dial(t, addr)
	conntest.Want(t, c, "hi")
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(context.Background()) }()
	conntest.Want(t, c, "bye")
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := s.Drain(context.Background()); err != nil {
		t.Errorf("second Drain: %v", err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the listener is still open")
	}
}

func TestDrainCutsOff(t *testing.T) {
	ended := make(chan error, 1)
	s, addr := start(t, listener.Config{MaxConns: 1, QueueTimeout: conntest.Patience}, listener.HandlerFunc(func(ctx context.Context, c *listener.Conn) {
		defer c.Close()
		io.WriteString(c, "hi")
		<-ctx.Done()
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}))
	c := conntest.Dial(t, addr)
	conntest.Want(t, c, "hi")
	queued := conntest.Dial(t, addr)
	conntest.Eventually(t, "it is queued", func() bool { return s.Stats().Queued == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain: %v, want context.Canceled", err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the session's read: %v, want net.ErrClosed", err)
	}
	conntest.WantGone(t, queued)
	if st := s.Stats(); st.Rejected != 1 || st.Errors[listener.ReasonRejected] != 0 || st.Errors[listener.ReasonDrained] != 1 {
		t.Errorf("rejected %d, errors %v, want one drained", st.Rejected, st.Errors)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client of the session sees %v, want a reset: the session did not end in order", err)
	}
}

// TestHTTPServer puts a net/http server on the wrapped listener.
func TestHTTPServer(t *testing.T) {
	s, err := listener.New(listener.Config{Name: "web", Logger: quiet}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tcp := conntest.Listen(t)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello "+r.RemoteAddr)
	})}
	served := make(chan error, 1)
	go func() { served <- web.Serve(s.Listener(tcp)) }()
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Get("http://" + tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if st := s.Stats(); st.Active != 1 || st.BytesIn == 0 {
		t.Errorf("with one idle connection: %+v", st)
	}
	client.CloseIdleConnections()
	if err := s.Drain(t.Context()); err != nil { // the server closes the connection when the client has
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("http.Server.Serve: %v, want net.ErrClosed", err)
	}
	if err := web.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Active != 0 || st.BytesIn == 0 || st.BytesOut < uint64(len(b)) {
		t.Errorf("in the end: %+v", st)
	}
}

// TestListenerClosed closes the wrapped listener before and while it accepts.
func TestListenerClosed(t *testing.T) {
	s, err := listener.New(listener.Config{Logger: quiet}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, early := range []bool{true, false} {
		tcp := conntest.Listen(t)
		l := s.Listener(tcp)
		if early {
			l.Close()
		} else {
			go l.Close()
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v, want net.ErrClosed", err)
		}
	}
}

// TestDrainOfListener: Accept returns the connections that were accepted before a drain, then net.ErrClosed, and the drain
// waits for them. Those that nobody takes are closed when its time is over.
func TestDrainOfListener(t *testing.T) {
	for _, taken := range []bool{true, false} {
		s, err := listener.New(listener.Config{Name: "late", Logger: quiet}, nil)
		if err != nil {
			t.Fatal(err)
		}
		tcp := conntest.Listen(t)
		l := s.Listener(tcp)
		var clients []*net.TCPConn
		for range 3 {
			clients = append(clients, conntest.Dial(t, tcp.Addr().String()))
		}
		first, err := l.Accept() // begins to accept
		if err != nil {
			t.Fatal(err)
		}
		_ = first.Close()
		conntest.Eventually(t, "the others are accepted", func() bool { st := s.Stats(); return st.Accepted == 3 && st.Active == 2 })
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		drained := make(chan error, 1)
		go func() { drained <- s.Drain(ctx) }()
		<-s.Draining()
		if !taken {
			cancel()
			if err := <-drained; !errors.Is(err, context.Canceled) {
				t.Errorf("Drain: %v", err)
			}
			for _, c := range clients {
				_ = conntest.WantGone(t, c)
			}
		} else {
			for range 2 {
				c, err := l.Accept()
				if err != nil {
					t.Fatalf("during a drain: %v", err)
				}
				if _, err := io.WriteString(c, "served"); err != nil {
					t.Error(err)
				}
				_ = c.Close()
			}
			if err := <-drained; err != nil {
				t.Error(err)
			}
			got := ""
			for _, c := range clients {
				text, err := io.ReadAll(c)
				if err != nil {
					t.Error(err)
				}
				got += string(text)
			}
			if got != "servedserved" {
				t.Errorf("the clients got %q", got)
			}
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after the drain: %v", err)
		}
	}
}

// lateListener returns one more connection after Close, as a listener does that had accepted one.
type lateListener struct {
	net.Listener
	closed chan struct{}
	late   chan net.Conn
}

func (l *lateListener) Accept() (net.Conn, error) {
	<-l.closed
	select {
	case c := <-l.late:
		return c, nil
	default:
		return nil, net.ErrClosed
	}
}

func (l *lateListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return l.Listener.Close()
}

// TestDrainServesAccepted: a client that was accepted when the drain began gets its session, because no other Server that has
// the socket can serve it.
func TestDrainServesAccepted(t *testing.T) {
	s, err := listener.New(listener.Config{Name: "late"}, listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
		defer c.Close()
		io.WriteString(c, "served")
	}))
	if err != nil {
		t.Fatal(err)
	}
	client, server := conntest.Pair(t, "tcp", "127.0.0.1:0")
	l := &lateListener{conntest.Listen(t), make(chan struct{}), make(chan net.Conn, 1)}
	l.late <- server
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conntest.Eventually(t, "it accepts", func() bool { return s.Stats().Address != "" })
	if err := s.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	conntest.Want(t, client, "served")
	if err := <-served; err != nil {
		t.Error(err)
	}
}

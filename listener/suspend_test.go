package listener_test

import (
	"context"
	"io"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// napper echoes byte by byte, and is suspended in between.
func napper(t *testing.T) listener.Handler {
	return listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
		n := &nap{t: t, conn: c}
		if n.conn.Suspend() {
			t.Error("suspended although nothing can resume")
		}
		n.conn.Attach(n)
		n.suspend()
	})
}

// nap is a session of napper.
type nap struct {
	t    *testing.T
	conn *listener.Conn
}

func (n *nap) suspend() {
	if !n.conn.Suspend() {
		n.t.Error("not suspended")
	}
}

func (n *nap) Resume(ctx context.Context, _ *listener.Conn) {
	if ctx.Err() != nil {
		return
	}
	b := make([]byte, 1)
	if _, err := n.conn.Read(b); err != nil {
		return
	}
	if b[0] == '!' {
		n.conn.Suspend() // a panic is the end all the same
		panic("ouch")
	}
	_, _ = n.conn.Write(b)
	n.suspend()
}

func (n *nap) Describe(all []listener.Info, base listener.Info) []listener.Info {
	base.State = listener.StateIdle
	return append(all, base)
}

func (n *nap) Kill(stream uint64) bool { return stream == 0 && n.conn.Close() == nil }

// startOn is start on an engine; ok is false where that runs sessions on goroutines.
func startOn(t *testing.T, h listener.Handler) (s *listener.Server, addr string, ok bool) {
	t.Helper()
	e, err := fiber.New(fiber.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s, err = listener.New(listener.Config{Name: "test", Protocol: "tcp", Logger: quiet}, h)
	if err != nil {
		t.Fatal(err)
	}
	l, err := e.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return s, conntest.Run(t, l, s.Serve, s.Close), e.Kind() != fiber.Goroutine
}

func TestSuspendedSessionsGoOn(t *testing.T) {
	s, addr, ok := startOn(t, napper(t))
	if !ok {
		return
	}
	one, two := conntest.Dial(t, addr), conntest.Dial(t, addr)
	for range 3 {
		conntest.Exchange(t, one, "a")
		conntest.Exchange(t, two, "b")
	}
	if st := s.Stats(); st.Active != 2 {
		t.Errorf("%d sessions, want 2", st.Active)
	}
	_, _ = io.WriteString(one, "!")
	conntest.WantGone(t, one)
	conntest.Exchange(t, two, "c")
	two.CloseWrite()
	conntest.WantGone(t, two)
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(t.Context()) }()
	if err := <-drained; err != nil {
		t.Errorf("a session is left: %v", err)
	}
	if n := s.Stats().Errors[listener.ReasonInternal]; n != 1 {
		t.Errorf("counted %d panics, want 1", n)
	}
}

// delegate is a session that another fiber reads for, and resumes.
type delegate struct {
	nap
	parts  int
	resume func()
}

func (d *delegate) Resume(context.Context, *listener.Conn) {
	if d.parts++; d.parts > 4 {
		return // which ends the session
	}
	if d.resume = d.conn.SuspendUntil(); d.resume == nil {
		d.t.Error("not suspended")
		return
	}
	echo := func() {
		b := make([]byte, 1)
		if _, err := d.conn.Read(b); err != nil {
			d.t.Error(err)
		}
		_, _ = d.conn.Write(b)
		if d.parts < 4 {
			d.resume()
		}
	}
	if d.parts%2 == 0 { // before the part is over
		echo()
	} else {
		d.conn.Go(echo)
	}
}

// TestSessionsResumedByOthers: a session that waits for its own call continues with that, however early it comes, and not with data of its client.
func TestSessionsResumedByOthers(t *testing.T) {
	sessions := make(chan *delegate, 1)
	s, addr, ok := startOn(t, listener.HandlerFunc(func(ctx context.Context, c *listener.Conn) {
		d := &delegate{nap: nap{t: t, conn: c}}
		if c.SuspendUntil() != nil {
			t.Error("suspended although nothing can resume")
		}
		c.Attach(d)
		sessions <- d
		d.Resume(ctx, c)
	}))
	if !ok {
		return
	}
	c := conntest.Dial(t, addr)
	d := <-sessions
	for range 4 {
		conntest.Exchange(t, c, "a")
	}
	_, _ = io.WriteString(c, "b") // nobody reads it
	if n := s.Stats().Active; n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
	d.conn.Go(func() { d.resume() })
	conntest.WantGone(t, c)
	conntest.Eventually(t, "the session is over", func() bool { return s.Stats().Active == 0 })
	if d.parts != 5 {
		t.Errorf("it had %d parts, want 5", d.parts)
	}
}

func TestCloseEndsSuspendedSessions(t *testing.T) {
	s, addr, ok := startOn(t, napper(t))
	if !ok {
		return
	}
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "a")
	s.Close()
	conntest.WantGone(t, c)
	if st := s.Stats(); st.Active != 0 {
		t.Errorf("%d sessions are left", st.Active)
	}
}

// A connection that a Listener hands out belongs to its user: nothing would resume it.
func TestNoSuspendWithoutHandler(t *testing.T) {
	s, err := listener.New(listener.Config{Name: "test", Protocol: "tcp", Logger: quiet}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := fiber.New(fiber.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	l, err := e.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	handed := s.Listener(l)
	client := conntest.Dial(t, l.Addr().String())
	c, err := handed.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if c.(*listener.Conn).Suspend() {
		t.Error("suspended")
	}
	_ = c.Close()
	conntest.WantGone(t, client)
	_ = handed.Close()
	s.Close()
	_ = e.Close()
}

package listener_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/watchtest"
	"github.com/headpond/headpond/listener"
)

func TestIDs(t *testing.T) {
	last := listener.ID(0)
	for range 1000 {
		id := listener.NewID()
		if id <= last {
			t.Fatalf("%v after %v", id, last)
		}
		last = id
	}
	for text, want := range map[string]struct {
		stream uint64
		ok     bool
	}{
		last.String(): {0, true}, listener.StreamID(last.String(), 7): {7, true},
		"": {}, "0": {}, "-1": {}, "?": {}, last.String() + ".": {}, last.String() + ".0": {}, last.String() + ".-1": {}, "zzzzzzzzzzzzzzzzz": {},
	} {
		id, stream, ok := listener.ParseID(text)
		if ok != want.ok || ok && (id != last || stream != want.stream) {
			t.Errorf("%q is %v, %d, %v", text, id, stream, ok)
		}
	}
}

// TestRegister: a session is in the list from the moment it is accepted until it is over, and can be ended at any time.
func TestRegister(t *testing.T) {
	attach, attached := make(chan struct{}), make(chan struct{}, 3)
	s, err := listener.New(listener.Config{Name: "test", Protocol: "tcp", MaxConns: 1, Logger: quiet}, listener.HandlerFunc(func(ctx context.Context, c *listener.Conn) {
		n := &nap{t: t, conn: c}
		<-attach
		n.conn.Attach(n)
		attached <- struct{}{}
		_, _ = c.Read(make([]byte, 1))
	}))
	if err != nil {
		t.Fatal(err)
	}
	addr := conntest.Run(t, conntest.Listen(t), s.Serve, s.Close)
	in := func(state listener.State, client net.Conn) (found listener.Info) {
		conntest.Eventually(t, "the session is "+string(state), func() bool {
			for _, i := range s.Sessions() {
				if i.Client == client.LocalAddr().String() && i.State == state {
					found = i
				}
			}
			return found.ID != ""
		})
		return found
	}
	first := conntest.Dial(t, addr)
	starting := in(listener.StateStarting, first)
	second := conntest.Dial(t, addr)
	queued := in(listener.StateQueued, second)
	if starting.Listener != "test" || starting.Protocol != "tcp" || !queued.Accepted.After(starting.Accepted) {
		t.Errorf("%+v and then %+v", starting, queued)
	}
	close(attach)
	<-attached
	if idle := in(listener.StateIdle, first); idle.ID != starting.ID || idle.Accepted != starting.Accepted {
		t.Errorf("%+v was %+v", idle, starting)
	}
	id, _, _ := listener.ParseID(starting.ID)
	if !s.Kill(id, 0) {
		t.Error("the session is not there")
	}
	conntest.WantGone(t, first)
	<-attached // the second's
	conntest.Eventually(t, "the session has left the list", func() bool { return len(s.Sessions()) == 1 && !s.Kill(id, 0) })
	third := conntest.Dial(t, addr)
	id, _, _ = listener.ParseID(in(listener.StateQueued, third).ID)
	if !s.Kill(id, 0) || s.Kill(id, 1) || s.Kill(id, 0) || s.Stats().Errors[listener.ReasonKilled] != 1 {
		t.Error("a connection in the queue cannot be ended, has streams, or can be ended twice")
	}
	conntest.WantGone(t, third)
}

// TestKilledInTheQueue kills a connection that waits for admission: it gets no session, and no place of the limit.
func TestKilledInTheQueue(t *testing.T) {
	s, err := listener.New(listener.Config{Name: "test", MaxConns: 1, Logger: quiet}, nil)
	if err != nil {
		t.Fatal(err)
	}
	watchtest.Watch(t, s)
	tcp := conntest.Listen(t)
	l := s.Listener(tcp)
	t.Cleanup(s.Close)
	accept := func(client net.Conn) net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if c.RemoteAddr().String() != client.LocalAddr().String() {
			t.Errorf("accepted %v, want %v", c.RemoteAddr(), client.LocalAddr())
		}
		return c
	}
	first := conntest.Dial(t, tcp.Addr().String())
	holder := accept(first)
	second := conntest.Dial(t, tcp.Addr().String())
	var queued listener.Info
	conntest.Eventually(t, "the second waits", func() bool {
		for _, i := range s.Sessions() {
			if i.State == listener.StateQueued {
				queued = i
			}
		}
		return queued.ID != ""
	})
	if id, _, ok := listener.ParseID(queued.ID); !ok || !s.Kill(id, 0) {
		t.Errorf("cannot end %+v", queued)
	}
	conntest.WantGone(t, second)
	_ = holder.Close()
	third := conntest.Dial(t, tcp.Addr().String())
	_ = accept(third).Close()
	st := s.Stats()
	if st.Active != 0 || st.Queued != 0 || st.Rejected != 0 || st.Gone != 0 || st.Errors[listener.ReasonKilled] != 1 {
		t.Errorf("%+v", st)
	}
}

// TestKilledBeforeTheHeader kills a connection whose PROXY header has not come: it is reset, and counted as killed and as nothing else.
func TestKilledBeforeTheHeader(t *testing.T) {
	s, addr := start(t, listener.Config{Name: "test", AcceptProxy: true, Logger: quiet}, listener.HandlerFunc(func(context.Context, *listener.Conn) {
		t.Error("the killed connection has a session")
	}))
	client := conntest.Dial(t, addr)
	conntest.Eventually(t, "the connection is killed", func() bool {
		for _, i := range s.Sessions() {
			id, _, _ := listener.ParseID(i.ID)
			return s.Stats().Active == 1 && s.Kill(id, 0)
		}
		return false
	})
	if err := conntest.WantGone(t, client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v, want a reset", err)
	}
	conntest.Eventually(t, "the connection is over", func() bool { return s.Stats().Active == 0 && len(s.Sessions()) == 0 })
	if st := s.Stats(); len(st.Errors) != 1 || st.Errors[listener.ReasonKilled] != 1 || st.Rejected != 0 || st.Gone != 0 {
		t.Errorf("%+v, want one killed and nothing else", st)
	}
}

// TestKilledBeforeAttach kills a connection whose session has begun, and is about to attach itself: Attach says so, as it is counted already.
func TestKilledBeforeAttach(t *testing.T) {
	begun, killed, attached := make(chan listener.ID), make(chan struct{}), make(chan bool)
	s, addr := start(t, listener.Config{Name: "test", Logger: quiet}, listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
		defer c.Close()
		begun <- c.ID()
		<-killed
		attached <- c.Attach(unkillable{})
	}))
	for _, kill := range []bool{true, false} {
		client := conntest.Dial(t, addr)
		id := <-begun
		if kill && !s.Kill(id, 0) {
			t.Error("there was nothing to kill")
		}
		killed <- struct{}{}
		if open := <-attached; open == kill {
			t.Errorf("killed: %v, Attach: %v", kill, open)
		}
		if err := conntest.WantGone(t, client); errors.Is(err, syscall.ECONNRESET) != kill {
			t.Errorf("killed: %v, the client sees %v", kill, err)
		}
	}
	if st := s.Stats(); len(st.Errors) != 1 || st.Errors[listener.ReasonKilled] != 1 {
		t.Errorf("%+v, want one killed and nothing else", st)
	}
}

// TestKilledAfterItsEnd kills a connection whose session has closed it, but not returned: that is no kill.
func TestKilledAfterItsEnd(t *testing.T) {
	closed, asked, end := make(chan listener.ID), make(chan bool), make(chan struct{})
	s, addr := start(t, listener.Config{Name: "test", Logger: quiet}, listener.HandlerFunc(func(_ context.Context, c *listener.Conn) {
		_ = c.Close()
		closed <- c.ID()
		<-end
		asked <- c.Killed()
	}))
	conntest.Dial(t, addr)
	if s.Kill(<-closed, 0) {
		t.Error("a closed connection was killed")
	}
	close(end)
	if <-asked || len(s.Stats().Errors) > 0 {
		t.Errorf("%+v, want no kill", s.Stats())
	}
}

// unkillable is a session that must not be asked to end.
type unkillable struct{}

func (unkillable) Describe(all []listener.Info, base listener.Info) []listener.Info {
	return append(all, base)
}

func (unkillable) Kill(uint64) bool { panic("killed twice") }

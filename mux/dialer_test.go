package mux_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/mux"
)

// network is an address that hands out pipes to server sessions.
type network struct {
	mu    sync.Mutex
	made  []*mux.Session // in the order in which they were dialled; nil = none came about
	fail  error
	ready sync.WaitGroup
}

func (n *network) dial(context.Context, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return nil, n.fail
	}
	here, there := net.Pipe()
	place := len(n.made)
	n.made = append(n.made, nil)
	n.ready.Go(func() {
		s, err := mux.Server(bg, there, mux.Config{})
		if err == nil {
			n.mu.Lock()
			n.made[place] = s
			n.mu.Unlock()
		}
	})
	return here, nil
}

func (n *network) sessions() []*mux.Session {
	n.ready.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.made), func(s *mux.Session) bool { return s == nil })
}

func (n *network) close() {
	for _, s := range n.sessions() {
		s.Close()
	}
}

func TestDialerSharesSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		d := &mux.Dialer{Dial: n.dial, IdleTimeout: time.Minute}
		var chans []*mux.Channel
		for range 20 {
			ch, err := d.Open(bg, "somewhere", "x")
			if err != nil {
				t.Fatal(err)
			}
			chans = append(chans, ch)
		}
		if got := len(n.sessions()); got != 1 {
			t.Errorf("%d sessions for one address, want 1", got)
		}
		time.Sleep(time.Hour)
		if err := chans[0].Session().Err(); err != nil {
			t.Errorf("closed while channels are open: %v", err)
		}
		for i, ch := range chans {
			ch.Close()
			if i > 0 && ch.Session() != chans[0].Session() {
				t.Error("another session")
			}
		}
		time.Sleep(3 * time.Minute)
		if chans[0].Session().Err() == nil {
			t.Error("still open after it was idle")
		}
		d.Close()
		n.close()
	})
}

func TestDialerSpreadsOverSeveralSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		d := &mux.Dialer{Dial: n.dial, Sessions: 4}
		for range 200 {
			if _, err := d.OpenStream(bg, "somewhere", "x"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		made := n.sessions()
		if len(made) != 4 {
			t.Fatalf("%d sessions, want 4", len(made))
		}
		for _, s := range made {
			if c := s.Stats().Channels; c < 20 || c > 90 {
				t.Errorf("%d of 200 channels on one of four sessions", c)
			}
		}
		d.Close()
		n.close()
	})
}

func TestDialerReplacesASessionThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		d := &mux.Dialer{Dial: n.dial}
		first, err := d.Open(bg, "somewhere", "x")
		if err != nil {
			t.Fatal(err)
		}
		n.sessions()[0].Close()
		synctest.Wait() // it is known at this end, too
		second, err := d.Open(bg, "somewhere", "x")
		if err != nil || second.Session() == first.Session() {
			t.Errorf("not replaced: %v", err)
		}
		d.Close()
		n.close()
		if _, err := d.Open(bg, "somewhere", "x"); !errors.Is(err, mux.ErrDialerClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestDialerKeepsNothingOfWhatIsOver: a server that ends every session as soon as it is
// made does not leave them all here until the idle timer finds them.
func TestDialerKeepsNothingOfWhatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		d := &mux.Dialer{Dial: n.dial, IdleTimeout: time.Hour}
		for i := range 20 {
			if _, err := d.Open(bg, "somewhere", "x"); err != nil {
				t.Fatal(err)
			}
			n.sessions()[i].Close()
			synctest.Wait()
		}
		if held := d.Held(); held > 2 { // the last one, which was not asked for since
			t.Errorf("%d sessions are kept", held)
		}
		d.Close()
		n.close()
	})
}

func TestDialerTellsWhyItCannot(t *testing.T) {
	why := errors.New("no route")
	d := &mux.Dialer{Dial: (&network{fail: why}).dial}
	defer d.Close()
	if _, err := d.Open(bg, "somewhere", "x"); !errors.Is(err, why) || !mux.SafeToRetry(err) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	slow := &mux.Dialer{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	if _, err := slow.Open(ctx, "somewhere", "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	slow.Close()
}

// TestDialerResumes: channels of a Dialer with Resume outlive the connection, and
// new ones go where there is a connection.
func TestDialerResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		d := &mux.Dialer{
			Dial:     func(ctx context.Context, _ string) (net.Conn, error) { return n.dial(ctx) },
			Config:   mux.Config{Resume: &mux.Resume{}},
			Sessions: 2,
		}
		first, err := d.Open(bg, "somewhere", "x")
		if err != nil {
			t.Fatal(err)
		}
		s := <-n.sessions
		there, err := s.Accept(bg)
		if err != nil {
			t.Fatal(err)
		}
		n.cut(0)
		first.Send(bg, []byte("over the next"))
		expect(t, there, []byte("over the next"))

		second, err := d.Open(bg, "somewhere", "x") // makes the second session beside it
		if err != nil {
			t.Fatal(err)
		}
		other := <-n.sessions
		synctest.Wait()
		n.set(errDown)
		n.cut(0) // the newest: the second session's
		synctest.Wait()
		for range 20 {
			ch, err := d.Open(bg, "somewhere", "x")
			if err != nil || ch.Session() != first.Session() {
				t.Fatalf("opened in the session without a connection, %v", err)
			}
		}
		second.Close()
		d.Close()
		s.Close()
		other.Close()
		n.work.Wait()
	})
}

// TestSeveralConnectionsAreOne: a Dialer with several connections to an address is one thing:
// channels are spread, either side opens them, each connection is resumed separately, one Status
// covers all and one Close ends it.
func TestSeveralConnectionsAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newLine(t, true, mux.Config{Resume: &mux.Resume{}})
		back := make(chan *mux.Channel)
		d := &mux.Dialer{
			Dial:     func(ctx context.Context, _ string) (net.Conn, error) { return n.dial(ctx) },
			Config:   mux.Config{Resume: &mux.Resume{}},
			Sessions: 3,
			OnSession: func(_ string, s *mux.Session) {
				for {
					ch, err := s.Accept(bg)
					if err != nil {
						return
					}
					back <- ch
				}
			},
		}
		if st := d.Status("there"); st != (mux.Status{}) {
			t.Errorf("before the first channel: %+v", st)
		}
		here, there, servers := spread(t, n, d)
		if st := d.Status("there"); st.Sessions != 3 || st.Channels != 60 || st.Opened != 60 || len(there) != 60 {
			t.Fatalf("60 channels: %+v", st)
		}
		for i, ch := range here { // numbers repeat from session to session: match by content
			if err := ch.Send(bg, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		n.cut(0) // one of the three
		synctest.Wait()
		seen := map[byte]bool{}
		for _, ch := range there {
			m, err := ch.Receive(bg)
			if err != nil {
				t.Fatal(err)
			}
			seen[m.Bytes()[0]] = true
			m.Release()
		}
		if st := d.Status("there"); len(seen) != 60 || st.Sessions != 3 || st.Resumed != 1 || st.Suspended != 0 {
			t.Errorf("after one connection was lost: %d messages, %+v", len(seen), st)
		}
		for _, s := range servers {
			ch, err := s.Open(bg, "back")
			if err != nil {
				t.Fatal(err)
			}
			ch.Send(bg, []byte("hello"))
			expect(t, <-back, []byte("hello"))
		}
		n.set(errDown)
		n.cut(1)
		synctest.Wait()
		if st := d.Status("there"); st.Sessions != 3 || st.Suspended != 1 || st.Stats.Suspended {
			t.Errorf("without the newest connection: %+v", st)
		}
		d.Close()
		if st := d.Status("there"); st != (mux.Status{}) {
			t.Errorf("after Close: %+v", st)
		}
		for _, s := range servers {
			s.Close()
		}
		n.work.Wait()
	})
}

// spread opens 60 channels over a Dialer's three sessions and accepts them.
func spread(t *testing.T, n *line, d *mux.Dialer) (here, there []*mux.Channel, servers []*mux.Session) {
	for range 60 {
		ch, err := d.Open(bg, "there", "x")
		if err != nil {
			t.Fatal(err)
		}
		here = append(here, ch)
		synctest.Wait()
	}
	for range 3 {
		s := <-n.sessions
		servers = append(servers, s)
		for range s.Stats().Channels {
			ch, err := s.Accept(bg)
			if err != nil {
				t.Fatal(err)
			}
			there = append(there, ch)
		}
	}
	return here, there, servers
}

// TestDialerClosesWhatLeaves: a session that the other side drains is no more
// used, and Close ends it all the same.
func TestDialerClosesWhatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		d := &mux.Dialer{Dial: n.dial, OnSession: func(_ string, s *mux.Session) { s.Accept(bg) }}
		first, err := d.Open(bg, "somewhere", "x")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		old := n.sessions()[0]
		drained := make(chan error)
		go func() { drained <- old.Drain(bg) }()
		synctest.Wait()
		second, err := d.Open(bg, "somewhere", "x")
		if err != nil || second.Session() == first.Session() {
			t.Fatalf("in the session that leaves: %v", err)
		}
		d.Close()
		if first.Session().Err() == nil {
			t.Error("the session that leaves is open")
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		n.close()
	})
}

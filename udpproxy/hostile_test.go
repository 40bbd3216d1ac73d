package udpproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/udpproxy"
)

// serveSome is a server that answers datagrams for which answers returns true.
func serveSome(t *testing.T, answers func(string) bool) (address string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if answers(string(b[:n])) {
				_, _ = conn.WriteTo(b[:n], from)
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	return conn.LocalAddr().String()
}

// TestHeldOfOthers: clients whose large datagrams nobody answers do not take the room that other clients' first datagrams need.
func TestHeldOfOthers(t *testing.T) {
	small := func(text string) bool { return len(text) < 100 }
	servers := []string{serveSome(t, small), serveSome(t, small)}
	p := run(t, "127.0.0.1:0", before(servers...), nil)
	large := strings.Repeat("x", 60_000)
	for i := range 300 {
		c := client(t, p.address)
		conntest.Eventually(t, "a large datagram comes to the proxy", func() bool {
			send(t, c, large)
			return p.Datagrams().Received > uint64(i)
		})
	}
	conntest.Eventually(t, "all have their endpoints", func() bool {
		for _, s := range p.Sessions() {
			if s.State != listener.StateActive {
				return false
			}
		}
		return true
	})
	conntest.Eventually(t, "half of the bytes that may be held are free", func() bool { return p.listener.Held() <= udpproxy.MaxHeldInAll/2 })
	if p.listener.Held() == 0 {
		t.Error("nothing is held for another endpoint")
	}
	for _, s := range servers { // which have read all large ones once they answer
		c := client(t, s)
		conntest.Eventually(t, "the server answers", func() bool {
			send(t, c, "ready?")
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := c.Read(make([]byte, 100))
			return err == nil
		})
	}
	for i := range 20 {
		c := client(t, p.address)
		send(t, c, fmt.Sprint(i))
		want(t, c, fmt.Sprint(i))
	}
}

// TestHeldExpires: copies for another endpoint are held for a while only, also if the client sends nothing more.
func TestHeldExpires(t *testing.T) {
	t.Cleanup(udpproxy.SetHoldTime(50 * time.Millisecond))
	a, b := serve(t, "a", true), serve(t, "b", true)
	p := run(t, "127.0.0.1:0", before(a.address, b.address), nil)
	c := client(t, p.address)
	send(t, c, "nobody answers this")
	conntest.Eventually(t, "it is forwarded", func() bool { return a.got.Load()+b.got.Load() == 1 })
	conntest.Eventually(t, "no copy is held", func() bool { return p.listener.Held() == 0 })
	if n := p.Stats().Active; n != 1 {
		t.Errorf("%d sessions, want one that goes on", n)
	}
}

// TestSentIsNotHeld: what the only endpoint has received is not kept.
func TestSentIsNotHeld(t *testing.T) {
	s := serve(t, "", true)
	p := run(t, "127.0.0.1:0", before(s.address), nil)
	send(t, client(t, p.address), "hello?")
	conntest.Eventually(t, "it was sent, and is not held", func() bool { return p.Datagrams().Forwarded == 1 && p.listener.Held() == 0 })
}

// TestSilenceOfOneClient: an endpoint that has answered others meanwhile is not to blame for a client's silence, which may have asked nonsense.
func TestSilenceOfOneClient(t *testing.T) {
	for limit := 250 * time.Millisecond; ; limit *= 4 { // on a busy machine the first session ends before the second is answered
		server := serveSome(t, func(text string) bool { return text == "sense" })
		p := run(t, "127.0.0.1:0", before(server), func(c *udpproxy.Config) { c.Answers, c.UnansweredTimeout = 1, limit })
		send(t, client(t, p.address), "nonsense")
		conntest.Eventually(t, "it has an endpoint", func() bool { return p.Datagrams().Forwarded == 1 })
		c := client(t, p.address)
		send(t, c, "sense")
		want(t, c, "sense")
		inTime := p.Stats().Errors[listener.ReasonTimeout] == 0
		conntest.Eventually(t, "its silence is counted", func() bool { return p.Stats().Errors[listener.ReasonTimeout] == 1 })
		p.eventually(t, 0)
		switch e := p.upstream.Status().Endpoints[0]; {
		case (e.Failures != 0 || !inTime) && limit < time.Minute:
		case e.Failures != 0 || !inTime:
			t.Fatalf("%d failures of the endpoint, the answer was in time: %v", e.Failures, inTime)
		default:
			return
		}
	}
}

// TestDrainWaitsForAnswers: a query that is under way when a drain begins gets its answer, and its endpoint is not blamed for the drain.
func TestDrainWaitsForAnswers(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	server := serveSome(t, func(string) bool {
		close(asked)
		<-release
		return true
	})
	p := run(t, "127.0.0.1:0", before(server), func(c *udpproxy.Config) { c.Answers, c.DrainIdle = 1, time.Millisecond })
	c := client(t, p.address)
	send(t, c, "slow")
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), conntest.Patience)
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(ctx) }()
	conntest.Eventually(t, "it drains", func() bool {
		_, err := p.listener.Accept()
		return errors.Is(err, net.ErrClosed)
	})
	close(release)
	want(t, c, "slow")
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if e := p.upstream.Status().Endpoints[0]; e.Failures != 0 {
		t.Errorf("%d failures of the endpoint", e.Failures)
	}
}

// TestKillDuringFlood: a session whose endpoint sends without a pause can be ended.
func TestKillDuringFlood(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, from, err := conn.ReadFrom(make([]byte, 100))
		for err == nil || errors.Is(err, context.Canceled) {
			if _, err = conn.WriteTo([]byte("on and on"), from); err != nil && !errors.Is(err, net.ErrClosed) {
				err = nil // its receiver is gone
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	p := run(t, "127.0.0.1:0", before(conn.LocalAddr().String()), nil)
	c := client(t, p.address)
	send(t, c, "begin")
	want(t, c, "on and on")
	id, _, _ := listener.ParseID(p.Sessions()[0].ID)
	if !p.Kill(id, 0) {
		t.Error("there was nothing to kill")
	}
	p.eventually(t, 0)
}

// TestReaderFails: an error of the socket is counted and logged, and the proxy goes on.
func TestReaderFails(t *testing.T) {
	s := serve(t, "", false)
	var log conntest.Log
	p := run(t, "127.0.0.1:0", before(s.address), func(c *udpproxy.Config) { c.Listener.Logger = log.Logger() })
	p.listener.Fail(errors.New("broken by the test"))
	conntest.Eventually(t, "it is counted and logged", func() bool {
		return p.Stats().Errors[listener.ReasonAccept] == 1 && log.Line("broken by the test") != ""
	})
	c := client(t, p.address)
	send(t, c, "a")
	want(t, c, "a")
}

// TestReaderKeepsFailing: while the socket of a proxy that drains fails, nobody accepts; the errors are counted and logged,
// and the session goes on afterwards.
func TestReaderKeepsFailing(t *testing.T) {
	s := serve(t, "", false)
	var log conntest.Log
	p := run(t, "127.0.0.1:0", before(s.address), func(c *udpproxy.Config) { c.Listener.Logger = log.Logger() })
	c := client(t, p.address)
	send(t, c, "a")
	want(t, c, "a")
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(ctx) }()
	conntest.Eventually(t, "the proxy drains", func() bool { return p.Stats().Draining })
	p.listener.Break()
	conntest.Eventually(t, "it is counted and logged", func() bool {
		return p.Datagrams().Failed >= 3 && log.Line("cannot receive datagrams") != ""
	})
	p.listener.Mend()
	send(t, c, "b")
	want(t, c, "b")
	cancel()
	<-drained
}

// TestReaderPauses: the pause between attempts grows to a second.
func TestReaderPauses(t *testing.T) {
	pause, sum := time.Duration(0), time.Duration(0)
	for range 10 {
		next := udpproxy.PauseAfter(pause)
		if next <= 0 || next < pause || next > time.Second {
			t.Errorf("%v after %v", next, pause)
		}
		pause = next
		sum += next
	}
	if pause != time.Second || sum < 3*time.Second {
		t.Errorf("the tenth pause is %v, all are %v", pause, sum)
	}
}

// TestSessionPauses: the pause between attempts of a session grows, and stays so short that the session ends soon if it is to.
func TestSessionPauses(t *testing.T) {
	pause := time.Duration(0)
	for range 10 {
		next := udpproxy.SessionPauseAfter(pause)
		if next <= 0 || next < pause || next > udpproxy.MaxSessionPause {
			t.Errorf("%v after %v", next, pause)
		}
		pause = next
	}
	if pause != udpproxy.MaxSessionPause {
		t.Errorf("the tenth pause is %v", pause)
	}
}

// TestSenderWithoutPort: a datagram that cannot be answered begins no session.
func TestSenderWithoutPort(t *testing.T) {
	s := serve(t, "", false)
	p := run(t, "127.0.0.1:0", before(s.address), nil)
	c := client(t, p.address)
	send(t, c, "a")
	want(t, c, "a")
	p.listener.Replay("127.0.0.1:0", "x")()
	if n, sessions := p.Datagrams().Unserved, p.Stats().Accepted; n != 1 || sessions != 1 {
		t.Errorf("%d datagrams dropped, %d sessions, want 1 and 1", n, sessions)
	}
}

// TestSocketTakesItsEndpointOnly compares senders with endpoints.
func TestSocketTakesItsEndpointOnly(t *testing.T) {
	for _, c := range []struct {
		endpoint, sender string
		want             bool
	}{
		{"127.0.0.1:53", "127.0.0.1:53", true},
		{"127.0.0.1:53", "127.0.0.1:54", false},
		{"127.0.0.1:53", "127.0.0.2:53", false},
		{"[fe80::1]:53", "[fe80::1%2]:53", true}, // the way in decides the zone
		{"[fe80::1]:53", "[fe80::2%2]:53", false},
		{"127.0.0.1:53", "", true}, // the system does not tell
	} {
		if got := udpproxy.From(c.endpoint, c.sender); got != c.want {
			t.Errorf("endpoint %s, sender %s: %v", c.endpoint, c.sender, got)
		}
	}
}

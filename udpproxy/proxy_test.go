package udpproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/udpproxy"
	"github.com/headpond/headpond/upstream"
)

// TestDNS: queries of many clients are answered, and each session ends with its answer.
func TestDNS(t *testing.T) {
	p := run(t, "127.0.0.1:0", before(nameserver(t), nameserver(t)), func(c *udpproxy.Config) { c.Answers = 1 })
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for k := range 20 {
				if got, err := resolve(p.address, fmt.Sprintf("host-%d-%d.test.", i, k)); got != "10.9.8.7" {
					t.Errorf("%q, %v", got, err)
					return
				}
			}
		})
	}
	clients.Wait()
	p.eventually(t, 0)
	if st := p.Stats(); st.Accepted != 160 || st.Rejected != 0 || len(st.Errors) != 0 {
		t.Errorf("%d sessions, %d rejected, errors %v", st.Accepted, st.Rejected, st.Errors)
	}
	if d := p.Datagrams(); d != (udpproxy.Datagrams{Received: 160, Forwarded: 160, Sent: 160}) {
		t.Errorf("%+v", d)
	}
	for _, e := range p.upstream.Status().Endpoints {
		if e.Pool.Acquired == 0 {
			t.Errorf("%s got nothing", e.Address)
		}
	}
}

// TestSession: the datagrams of a client are one session, also empty and long ones, and its bytes are counted.
func TestSession(t *testing.T) {
	s := serve(t, "", false)
	p := run(t, "127.0.0.1:0", before(s.address), nil)
	c := client(t, p.address)
	bytes := 0
	for _, text := range []string{"one", "", strings.Repeat("x", 1200), strings.Repeat("y", 20_000), "z"} {
		send(t, c, text)
		want(t, c, text)
		bytes += len(text)
	}
	all := p.Sessions()
	if len(all) != 1 || all[0].Client != c.LocalAddr().String() || all[0].Endpoint != s.address || all[0].State != listener.StateActive {
		t.Fatalf("%+v", all)
	}
	conntest.Eventually(t, "the bytes of the last answer are not counted", func() bool {
		st := p.Stats()
		return st.BytesIn == uint64(bytes) && st.BytesOut == uint64(bytes) && st.Accepted == 1
	})
}

// TestRefused: when an endpoint refuses the first datagrams of a client, another one gets all of them.
func TestRefused(t *testing.T) {
	s, dead := serve(t, "", false), refusing(t)
	set := before(dead, s.address)
	set.Ejection = upstream.Ejection{Failures: 2, Base: time.Hour, Max: time.Hour}
	p := run(t, "127.0.0.1:0", set, nil)
	for i := range 40 {
		c := client(t, p.address)
		send(t, c, fmt.Sprint(i))
		want(t, c, fmt.Sprint(i))
	}
	var out upstream.EndpointStatus
	for _, e := range p.upstream.Status().Endpoints {
		if e.Address == dead {
			out = e
		}
	}
	if !out.Ejected {
		t.Errorf("the endpoint that refuses is in: %+v", out)
	}
}

// TestEveryEndpointRefuses: if every endpoint refuses, the session ends, and is counted.
func TestEveryEndpointRefuses(t *testing.T) {
	p := run(t, "127.0.0.1:0", before(refusing(t)), nil)
	c := client(t, p.address)
	send(t, c, "anybody?")
	conntest.Eventually(t, "nothing is counted", func() bool { return p.Stats().Errors[listener.ReasonBackendGone] == 1 })
	p.eventually(t, 0)
	nothingCame(t, c)
	if e := p.upstream.Status().Endpoints[0]; e.Failures != 1 || e.Pool.Acquired != 1 {
		t.Errorf("%d failures in %d sockets: the only endpoint was tried again", e.Failures, e.Pool.Acquired)
	}
}

// TestEndpointDies: sessions of an endpoint that begins to refuse datagrams, and goes on with it, end, and the next datagram goes elsewhere.
func TestEndpointDies(t *testing.T) {
	first, second := serve(t, "first ", false), serve(t, "second ", false)
	set := before(first.address)
	p := run(t, "127.0.0.1:0", set, nil)
	c := client(t, p.address)
	send(t, c, "a")
	want(t, c, "first a")
	set.Endpoints = upstream.Endpoints(first.address, second.address)
	set.Ejection = upstream.Ejection{Failures: 1, Base: time.Hour, Max: time.Hour}
	if err := p.upstream.Update(set); err != nil {
		t.Fatal(err)
	}
	first.kill()
	conntest.Eventually(t, "another endpoint answers", func() bool {
		send(t, c, "b") // refused, until the session ends
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		b := make([]byte, 100)
		n, err := c.Read(b)
		return err == nil && string(b[:n]) == "second b"
	})
	conntest.Eventually(t, "the refusal is counted", func() bool { return p.Stats().Errors[listener.ReasonBackendGone] > 0 })
	if e := p.Stats().Errors; e[listener.ReasonBackendGone] != 1 || len(e) != 1 {
		t.Errorf("errors: %v, want one backend_gone", e)
	}
}

// TestIdle: a silent session ends, and the next datagram begins another. On a busy machine a session may end before its answer comes; then the
// client asks again.
func TestIdle(t *testing.T) {
	s := serve(t, "", false)
	p := run(t, "127.0.0.1:0", before(s.address), func(c *udpproxy.Config) { c.IdleTimeout = 20 * time.Millisecond })
	c := client(t, p.address)
	asked := 0
	for range 3 {
		sessions := p.Stats().Accepted
		conntest.Eventually(t, "a datagram is answered", func() bool {
			asked++
			send(t, c, strconv.Itoa(asked))
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			for b := make([]byte, 100); ; {
				n, err := c.Read(b)
				if err != nil || string(b[:n]) == strconv.Itoa(asked) {
					return err == nil
				}
			}
		})
		p.eventually(t, 0)
		if n := p.Stats().Accepted; n == sessions {
			t.Fatalf("%d sessions, want another one", n)
		}
	}
	if st := p.Stats(); len(st.Errors) != 0 {
		t.Errorf("silence is counted as an error: %v", st.Errors)
	}
}

// TestUnanswered: a session without any answer ends soon. If answers are expected, that is a failure of the endpoint.
func TestUnanswered(t *testing.T) {
	for answers, failures := range []uint64{0, 1} {
		s := serve(t, "", true)
		p := run(t, "127.0.0.1:0", before(s.address), func(c *udpproxy.Config) {
			c.UnansweredTimeout, c.Answers = 20*time.Millisecond, answers
		})
		send(t, client(t, p.address), "hello?")
		conntest.Eventually(t, "there was no session", func() bool { return p.upstream.Status().Endpoints[0].Pool.Discarded == 1 })
		p.eventually(t, 0)
		if n := p.Stats().Errors[listener.ReasonTimeout]; n != failures {
			t.Errorf("%d answers expected: %d time-outs are counted, want %d", answers, n, failures)
		}
		if e := p.upstream.Status().Endpoints[0]; uint64(e.Failures) != failures {
			t.Errorf("%d answers expected: %d failures of the endpoint, want %d", answers, e.Failures, failures)
		}
	}
}

// laterSource reports its endpoints once told is closed.
type laterSource struct {
	told chan struct{}
	set  []upstream.Endpoint
}

func (s *laterSource) String() string { return "later" }

func (s *laterSource) Watch(ctx context.Context, report func([]upstream.Endpoint, error) error) {
	select {
	case <-s.told:
		_ = report(s.set, nil)
	case <-ctx.Done():
	}
	<-ctx.Done()
}

// TestFirstDatagramsAreHeld: what a client sends before its session has an endpoint is held, in order and up to a bound.
func TestFirstDatagramsAreHeld(t *testing.T) {
	s := serve(t, "", false)
	source := &laterSource{told: make(chan struct{}), set: upstream.Endpoints(s.address)}
	p := run(t, "127.0.0.1:0", upstream.Settings{Source: source}, nil)
	c := client(t, p.address)
	for i := range udpproxy.MaxHeld + 8 {
		send(t, c, fmt.Sprint(i))
	}
	conntest.Eventually(t, "what is too much is not dropped", func() bool {
		d := p.Datagrams()
		return d.Received == udpproxy.MaxHeld+8 && d.Unsent == 8
	})
	conntest.Eventually(t, "no session waits", func() bool {
		all := p.Sessions()
		return len(all) == 1 && all[0].State == listener.StateWaiting
	})
	close(source.told)
	for i := range udpproxy.MaxHeld {
		want(t, c, fmt.Sprint(i))
	}
	send(t, c, "more")
	want(t, c, "more")
	if n := p.listener.Held(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// TestKill: a session that is killed ends; its client begins another. A session that waits can be killed, too.
func TestKill(t *testing.T) {
	s := serve(t, "", false)
	source := &laterSource{told: make(chan struct{}), set: upstream.Endpoints(s.address)}
	p := run(t, "127.0.0.1:0", upstream.Settings{Source: source}, nil)
	c := client(t, p.address)
	kill := func() {
		t.Helper()
		id, _, _ := listener.ParseID(p.Sessions()[0].ID)
		if !p.Kill(id, 0) {
			t.Error("there was nothing to kill")
		}
		p.eventually(t, 0)
	}
	send(t, c, "a")
	conntest.Eventually(t, "no session waits", func() bool {
		all := p.Sessions()
		return len(all) == 1 && all[0].State == listener.StateWaiting
	})
	kill()
	close(source.told)
	send(t, c, "b")
	want(t, c, "b")
	kill()
	send(t, c, "c")
	want(t, c, "c")
	if n := p.Stats().Errors[listener.ReasonKilled]; n != 2 {
		t.Errorf("%d sessions are counted as killed, want 2", n)
	}
}

// TestDrain: sessions that run go on while a listener drains, until they are silent; other clients get nothing.
func TestDrain(t *testing.T) {
	s := serve(t, "", false)
	p := run(t, "127.0.0.1:0", before(s.address), nil)
	c, late := client(t, p.address), client(t, p.address)
	send(t, c, "a")
	want(t, c, "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- p.Drain(ctx) }()
	conntest.Eventually(t, "it accepts", func() bool {
		_, err := p.listener.Accept()
		return errors.Is(err, net.ErrClosed)
	})
	send(t, late, "x")
	conntest.Eventually(t, "the datagram is not dropped", func() bool { return p.Datagrams().Unserved == 1 })
	send(t, c, "b")
	want(t, c, "b")
	cancel()
	if err := <-drained; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "cut off: 1") {
		t.Errorf("Drain: %v", err)
	}
	nothingCame(t, late)
	if n := p.Stats().Errors[listener.ReasonDrained]; n != 1 {
		t.Errorf("%d sessions are counted as drained, want 1", n)
	}
}

// TestDrainOfSilentSessions: a session that is silent ends soon after the beginning of a drain.
func TestDrainOfSilentSessions(t *testing.T) {
	s := serve(t, "", false)
	p := run(t, "127.0.0.1:0", before(s.address), func(c *udpproxy.Config) { c.DrainIdle = time.Millisecond })
	for range 5 {
		c := client(t, p.address)
		send(t, c, "a")
		want(t, c, "a")
	}
	ctx, cancel := context.WithTimeout(t.Context(), conntest.Patience)
	defer cancel()
	if err := p.Drain(ctx); err != nil {
		t.Error(err)
	}
	if st := p.Stats(); st.Active != 0 || len(st.Errors) != 0 {
		t.Errorf("%d sessions, errors %v", st.Active, st.Errors)
	}
}

// TestDuplicate: another proxy takes the socket over; sessions of the first go on.
func TestDuplicate(t *testing.T) {
	s1, s2 := serve(t, "old ", false), serve(t, "new ", false)
	first := run(t, "127.0.0.1:0", before(s1.address), nil)
	c1, c2 := client(t, first.address), client(t, first.address)
	send(t, c1, "a")
	want(t, c1, "old a")
	l, err := first.listener.Duplicate()
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { drained <- first.Drain(ctx) }()
	conntest.Eventually(t, "the first proxy accepts", func() bool {
		_, err := first.listener.Accept()
		return errors.Is(err, net.ErrClosed)
	})
	second := run(t, "127.0.0.1:0", before(s2.address), nil)
	conntest.Run(t, l, second.Serve, second.Close)
	send(t, c2, "b")
	want(t, c2, "new b")
	send(t, c1, "c")
	want(t, c1, "old c")
	if _, err := first.listener.Duplicate(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Duplicate after Close: %v", err)
	}
	cancel()
	if err := <-drained; err == nil {
		t.Error("the session has ended by itself")
	}
}

// TestLimits: the limits of listeners hold for sessions.
func TestLimits(t *testing.T) {
	s := serve(t, "", false)
	for reason, change := range map[string]func(*listener.Config){
		listener.ReasonRejected:   func(c *listener.Config) { c.MaxConns, c.MaxQueue = 1, -1 },
		listener.ReasonSourceFull: func(c *listener.Config) { c.MaxConnsPerSource = 1 },
		listener.ReasonSourceRate: func(c *listener.Config) { c.ConnectionRate = listener.Rate{Connections: 1, Per: time.Hour} },
	} {
		p := run(t, "127.0.0.1:0", before(s.address), func(c *udpproxy.Config) { change(&c.Listener) })
		first, second := client(t, p.address), client(t, p.address)
		send(t, first, "a")
		want(t, first, "a")
		send(t, second, "x")
		conntest.Eventually(t, "it is not counted: "+reason, func() bool { return p.Stats().Errors[reason] == 1 })
		send(t, first, "b")
		want(t, first, "b")
		nothingCame(t, second)
	}
}

// TestDenied: a client whose address may not connect gets nothing and costs no socket.
func TestDenied(t *testing.T) {
	s := serve(t, "", false)
	p := run(t, "127.0.0.1:0", before(s.address), func(c *udpproxy.Config) {
		c.Listener.Deny = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	c := client(t, p.address)
	send(t, c, "x")
	conntest.Eventually(t, "it is not counted", func() bool { return p.Stats().Errors[listener.ReasonDenied] == 1 })
	if nothingCame(t, c); p.upstream.Status().Endpoints[0].Pool.Acquired != 0 {
		t.Error("it costs a socket")
	}
}

// TestRemoved: sessions of an endpoint that is removed are closed where the settings say so.
func TestRemoved(t *testing.T) {
	first, second := serve(t, "first ", false), serve(t, "second ", false)
	p := run(t, "127.0.0.1:0", before(first.address), nil)
	c := client(t, p.address)
	send(t, c, "a")
	want(t, c, "first a")
	set := before(second.address)
	set.OnRemoved = upstream.CloseRemoved
	if err := p.upstream.Update(set); err != nil {
		t.Fatal(err)
	}
	p.eventually(t, 0)
	send(t, c, "b")
	want(t, c, "second b")
	if n := p.Stats().Errors[listener.ReasonEndpointOut]; n != 1 {
		t.Errorf("%d sessions are counted, want 1", n)
	}
}

// TestUpdate: new settings are for new sessions.
func TestUpdate(t *testing.T) {
	s1, s2 := serve(t, "old ", false), serve(t, "new ", false)
	p := run(t, "127.0.0.1:0", before(s1.address), nil)
	c := client(t, p.address)
	send(t, c, "a")
	want(t, c, "old a")
	other := run(t, "127.0.0.1:0", before(s2.address), nil)
	if err := p.Update(udpproxy.Config{Listener: listener.Config{Name: "test", Logger: quiet}, Upstream: other.upstream}); err != nil {
		t.Fatal(err)
	}
	next := client(t, p.address)
	send(t, next, "b")
	want(t, next, "new b")
	send(t, c, "c")
	want(t, c, "old c")
	p.Close() // its session has a socket of the other's upstream
}

// TestConfig: what cannot be is refused.
func TestConfig(t *testing.T) {
	up, err := udpproxy.NewUpstream("u", udpproxy.UpstreamOptions{Settings: before("127.0.0.1:9"), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	for wanted, cfg := range map[string]udpproxy.Config{
		"Upstream is missing":  {},
		"must not be negative": {Upstream: up, IdleTimeout: -1},
		"Answers is -1":        {Upstream: up, Answers: -1},
		"AcceptProxy":          {Upstream: up, Listener: listener.Config{AcceptProxy: true}},
	} {
		if _, err := udpproxy.New(cfg); !errors.Is(err, udpproxy.ErrConfig) || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v; want %q", err, wanted)
		}
	}
	p, err := udpproxy.New(udpproxy.Config{Upstream: up})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Serve(conntest.Listen(t)); !errors.Is(err, udpproxy.ErrConfig) {
		t.Errorf("a TCP listener: %v", err)
	}
}

package tcpproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// TestStall ends the session of a client that gets no answer, with an idle time-out beside it and without, and not that
// of a client that has sent nothing.
func TestStall(t *testing.T) {
	for _, idle := range []time.Duration{0, -1} {
		backend := conntest.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
		p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
			c.IdleTimeout, c.StallTimeout = idle, 50*time.Millisecond
		})
		conntest.Dial(t, addr) // asks nothing
		asking := conntest.Dial(t, addr)
		if _, err := io.WriteString(asking, "hello?"); err != nil {
			t.Fatal(err)
		}
		if err := conntest.WantGone(t, asking); err == nil {
			t.Error("the stream ended in good order")
		}
		for p.Stats().Active != 1 { // the other one
		}
		if n := p.Stats().Errors[listener.ReasonTimeout]; n != 1 {
			t.Errorf("errors: %v, want one timeout", p.Stats().Errors)
		}
		p.Close()
	}
}

// TestStallTimes checks a client once a second, with a limit of ten seconds.
func TestStallTimes(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces string // one a second: > is the client's, < the server's, - none, = one of each, a an acknowledgement of the client
		over   int    // the look that ends the session; 0: none
	}{
		{"it asks nothing", strings.Repeat("-", 50), 0},
		{"it asks once", ">" + strings.Repeat("-", 50), 11},
		{"it keeps asking", strings.Repeat(">", 50), 11},
		{"it is answered", strings.Repeat(">-----<", 10), 0},
		{"it is answered at once, and then it is not", strings.Repeat("=", 20) + ">" + strings.Repeat("-", 50), 31},
		{"its system acknowledges the answer", ">" + strings.Repeat("-----a", 10), 0},
		{"its system acknowledges no more", ">" + strings.Repeat("-----a", 3) + strings.Repeat("-", 50), 29},
		{"it gets data without asking", strings.Repeat("<", 50), 0},
		{"it is answered and asks between two looks", strings.Repeat("~", 40), 0},
	} {
		s, now, out := tcpproxy.NewStall(10*time.Second), time.Unix(0, 0), uint64(0)
		over := 0
		for i, piece := range c.pieces {
			if piece == 'a' {
				out++
			}
			for _, p := range map[rune]string{'>': ">", '<': "<", '=': "><", '~': "<>"}[piece] {
				s.Moved(p == '>')
				if p == '<' {
					out++
				}
			}
			if now = now.Add(time.Second); s.Look(out, now) {
				over = i + 1
				break
			}
		}
		if over != c.over {
			t.Errorf("%s: over at look %d, want %d", c.name, over, c.over)
		}
	}
}

// TestStaggeredDrain cuts sessions off before the end of the drain, not all at once, and says how many.
func TestStaggeredDrain(t *testing.T) {
	for limit := 4 * time.Second; !staggers(t, limit); limit *= 4 { // a machine that is busy for all of the time cuts them off at once
		if limit > time.Minute {
			t.Fatal("all sessions were cut off at once")
		}
	}
}

// staggers drains 30 sessions within the limit and reports whether one ended while another had not.
func staggers(t *testing.T, limit time.Duration) (staggered bool) {
	const sessions = 30
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.DrainStagger = 90 * time.Minute })
	ends := make(chan error)
	for range sessions {
		c := conntest.Dial(t, addr)
		conntest.Exchange(t, c, "hello")
		go func() {
			_, err := c.Read(make([]byte, 1))
			ends <- err
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit) // half of it is the stagger
	defer cancel()
	drained := make(chan error)
	go func() { drained <- p.Drain(ctx) }()
	for range sessions {
		if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a stream ended with %v, want a reset", err)
		}
		staggered = staggered || p.Stats().Active > 0
	}
	err := <-drained
	if !staggered {
		return false
	}
	if err == nil || !strings.Contains(err.Error(), "sessions cut off shortly before the end of the drain: ") {
		t.Errorf("drain: %v", err)
	}
	if e := p.Stats().Errors; e[listener.ReasonDrained] != sessions || len(e) != 1 {
		t.Errorf("errors: %v, want %d drained", e, sessions)
	}
	return true
}

package tcpproxy_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// receiver acknowledges what a test says.
type receiver struct {
	fiber.Stream
	acked uint64
	all   bool
	asked int
}

func (r *receiver) Acked() (n uint64, all bool) {
	r.asked++
	return r.acked, r.all
}

// TestTimesOfDirections checks a relay once a second, with a limit of ten seconds.
func TestTimesOfDirections(t *testing.T) {
	silence := strings.Repeat("-", 30)
	for _, c := range []struct {
		name                           string
		pieces                         string // one a second: > is the client's, < the server's, ) and ( their ends, + what the client takes of earlier data, - nothing
		idle, client, server, afterFIN int    // the look that ends the session; 0: none
	}{
		{"silence", silence, 10, 10, 10, 0},
		{"both speak", strings.Repeat("><", 20), 0, 0, 0, 0},
		{"the client speaks", strings.Repeat(">", 40), 0, 0, 10, 0},
		{"the server speaks", strings.Repeat("<", 40), 0, 10, 0, 0},
		{"each in time", strings.Repeat(">----<----", 8), 0, 0, 0, 0},
		{"the server only at first", "<<<<<" + strings.Repeat(">", 40), 0, 0, 15, 0},
		{"the client ends and waits", ">)" + silence, 11, 0, 10, 12},
		{"the client ends and is answered slowly", ">)" + strings.Repeat("-----<", 5), 0, 0, 0, 0},
		{"the client ends and the answer stops", ">)<<<" + silence, 15, 0, 15, 15},
		{"the server ends and the client sends", "(" + strings.Repeat(">", 30), 0, 0, 0, 0},
		{"the server ends and the client stops", "(>>" + silence, 13, 13, 0, 0},
		{"the client takes earlier data slowly", "<" + strings.Repeat("--------+", 5), 0, 10, 0, 0},
		{"the client stops taking it", "<++++" + silence, 15, 10, 15, 0},
		{"the client has ended, and takes the answer slowly", ">)<" + strings.Repeat("--------+", 5), 0, 0, 0, 0},
		{"it stops taking the answer", ">)<++++" + silence, 17, 0, 17, 17},
	} {
		for what, want := range map[tcpproxy.Traffic]int{
			tcpproxy.AnyByte: c.idle, tcpproxy.FromClient: c.client, tcpproxy.FromServer: c.server, tcpproxy.AfterFIN: c.afterFIN,
		} {
			client, server := &receiver{all: true}, &receiver{all: true}
			p, now := tcpproxy.NewProgress(what, 10*time.Second, client, server), time.Unix(0, 0)
			p.Over(now)
			over := 0
			for i, piece := range c.pieces {
				in, out := int64(0), int64(0)
				switch piece {
				case '>':
					in = 1
				case '<':
					out = 1
				case '+':
					client.acked++
				}
				client.all = !strings.Contains(c.pieces[i:], "+") // there is more to take
				p.Move(in, out, piece == ')', piece == '(')
				if now = now.Add(time.Second); p.Over(now) {
					over = i + 1
					break
				}
			}
			if over != want {
				t.Errorf("%s, traffic %d: over at look %d, want %d", c.name, what, over, want)
			}
		}
	}
}

// TestTimeoutsOfDirections ends sessions in which only the other direction moves, and those of clients that have closed their sending
// side and are not answered.
func TestTimeoutsOfDirections(t *testing.T) {
	talk := func(c net.Conn) error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := io.WriteString(c, "on and on"); err != nil {
				return err
			}
		}
		return nil
	}
	for _, c := range []struct {
		name   string
		server func(c *net.TCPConn, release chan struct{})
		client func(*net.TCPConn)
		set    func(*tcpproxy.Config)
		log    string
	}{
		{
			"the client is silent", func(c *net.TCPConn, _ chan struct{}) { _ = talk(c) }, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) },
			func(c *tcpproxy.Config) { c.ClientIdleTimeout = 50 * time.Millisecond }, "no byte from the client for its idle time-out (50ms)",
		},
		{
			"the server is silent", func(c *net.TCPConn, _ chan struct{}) { _, _ = io.Copy(io.Discard, c) }, func(c *net.TCPConn) { _ = talk(c) },
			func(c *tcpproxy.Config) { c.ServerIdleTimeout = 50 * time.Millisecond }, "no byte from the server for its idle time-out (50ms)",
		},
		{
			"the client has given up", func(_ *net.TCPConn, release chan struct{}) { <-release },
			func(c *net.TCPConn) {
				_, _ = io.WriteString(c, "hello?")
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, c)
			},
			func(c *tcpproxy.Config) { c.ClientFINTimeout = 50 * time.Millisecond }, "the client has closed its sending side",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			release := make(chan struct{})
			defer close(release)
			var log conntest.Log
			p, addr := start(t, []string{conntest.Serve(t, func(conn *net.TCPConn) { c.server(conn, release) })}, tcpproxy.UpstreamOptions{}, func(cfg *tcpproxy.Config) {
				cfg.IdleTimeout, cfg.Listener.Logger = -1, log.Logger()
				c.set(cfg)
			})
			if conn, ok := connect(t, addr); ok {
				c.client(conn)
			}
			conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
			if e := p.Stats().Errors; e[listener.ReasonTimeout] != 1 || len(e) != 1 {
				t.Errorf("errors: %v, want one timeout", e)
			}
			if line := log.Line("session broke off"); !strings.Contains(line, c.log) {
				t.Errorf("the log lacks %q: %s", c.log, line)
			}
		})
	}
}

// TestSilentSessionIsAskedOnce: asking takes a trip to a loop, too much for each look at thousands of idle sessions.
func TestSilentSessionIsAskedOnce(t *testing.T) {
	client, server := &receiver{all: true}, &receiver{all: true}
	p, now := tcpproxy.NewProgress(tcpproxy.AnyByte, time.Hour, client, server), time.Unix(0, 0)
	for move := range 3 {
		p.Move(1, 1, false, false)
		for range 20 {
			p.Over(now)
		}
		if client.asked != move+1 || server.asked != move+1 {
			t.Errorf("asked %d and %d times after %d moves", client.asked, server.asked, move+1)
		}
	}
}

package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// TestSoak keeps every protocol busy, with and without TLS and through a tunnel, and looks for leaked resources.
// Meanwhile backends are killed and restarted, the tunnel's socket is cut, clients vanish, read slowly or not at all,
// and the configuration changes. It takes one round of all this, or HEADPOND_SOAK (`make soak`). A soak then runs as long again
// with the released binary, because the race detector's own memory grows.
func TestSoak(t *testing.T) {
	length, long := conntest.SoakLength(t, time.Second) // one round, in which everything happens
	t.Run("race", func(t *testing.T) { soakFor(t, length) })
	if long {
		t.Run("plain", func(t *testing.T) { checkFlat(t, soakFor(t, length, plain)) })
	}
}

// soakFor returns the gateway's resident memory after each round.
func soakFor(t *testing.T, length time.Duration, opts ...option) (resident []int64) {
	t.Helper()
	s := newSoak(t)
	s.g = startGateway(t, s.config(true), opts...)
	warm := startLoad(t, 4, s.lite()) // opens the files that SQLite keeps open
	warm.awaitMore(t, 50)
	warm.end()
	if err := echoSum(s.listen["traw"], 1); err != nil { // opens the tunnel's session
		t.Fatal(err)
	}
	var before footprint
	eventually(t, "these clients are gone", func() error {
		if before = s.g.footprint(); before.sessions > 0 {
			return fmt.Errorf("%v sessions", before.sessions)
		}
		return nil
	})
	s.start(t)
	for start := time.Now(); time.Since(start) < length; {
		s.round(t, len(resident) == 0)
		resident = append(resident, residentMemory(t, s.g))
	}
	for name, l := range s.loads {
		l.end()
		t.Logf("%s: %d operations, %d failed, last error %v", name, l.ok.Load(), l.failed.Load(), l.lastError())
		if s.steady[name] && l.failed.Load() > 0 {
			t.Errorf("%s: %d failed, though nothing happened to their backend: %s", name, l.failed.Load(), s.g.out.Line("session failed"))
		}
	}
	for _, end := range s.ends {
		end()
	}
	s.g.awaitFootprint(before)
	m := s.g.scrape()
	if n := m.sum("headpond_engine_fiber_panics_total") + m.sum("headpond_listener_errors_total", `reason="internal"`); n > 0 {
		t.Errorf("%v sessions panicked", n)
	}
	t.Logf("loops were held %v times in %v ticks: %s", m.sum("headpond_engine_loop_held_total"), m.sum("headpond_engine_ticks_total"),
		s.g.out.Line("holds its loop"))
	if code, body := s.g.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	return resident
}

// checkFlat fails the test if the gateway's memory has grown from the second quarter of a long run to the last.
func checkFlat(t *testing.T, resident []int64) {
	t.Helper()
	n := len(resident)
	if n < 40 {
		return // too short to see growth
	}
	median := func(of []int64) int64 { return slices.Sorted(slices.Values(of))[len(of)/2] }
	early, late := median(resident[n/4:n/2]), median(resident[3*n/4:])
	t.Logf("resident memory: %d MiB in the second quarter, %d MiB in the last", early>>20, late>>20)
	if late > early+early/10+8<<20 {
		t.Errorf("resident memory grew from %d MiB to %d MiB", early>>20, late>>20)
	}
}

// echoOnce sends a line through the tcp listener and reads it back.
func echoOnce(addr string) error {
	c, err := net.DialTimeout("tcp", addr, opTimeout)
	if err != nil {
		return err
	}
	return echoLine(c)
}

// echoLine sends a line and reads it back on a connection, which it closes.
func echoLine(c net.Conn) error {
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(opTimeout)); err != nil {
		return err
	}
	const line = "soak\n"
	if _, err := io.WriteString(c, line); err != nil {
		return err
	}
	buf := make([]byte, len(line))
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) != line {
		return fmt.Errorf("echo %q", buf)
	}
	return nil
}

// vanishOnce requests a large body and resets the connection.
func vanishOnce(addr string) error {
	c, err := net.DialTimeout("tcp", addr, opTimeout)
	if err != nil {
		return err
	}
	_, err = io.WriteString(c, "GET /bytes/10000000 HTTP/1.1\r\nHost: x\r\n\r\n")
	return errors.Join(err, c.(*net.TCPConn).SetLinger(0), c.Close())
}

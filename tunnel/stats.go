package tunnel

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/mux"
)

// Stats is one end of a tunnel at one moment. Counters count since the start.
type Stats struct {
	Name      string
	Connected []string // names of the peers that have a session, in order
	Sessions  int      // there are, Suspended among them
	Suspended int      // without a socket now, waiting for another
	Streams   int      // open, whichever side asked

	Made uint64 // sessions begun
	// TurnedAway counts sessions that a server refused because there
	// were MaxSessions already, or MaxSessionsPerPeer of that peer.
	TurnedAway uint64
	Lost       uint64 // sessions lost to a failure of their connection, or of the process at the other end
	Broken     uint64 // sockets that sessions have lost
	Resumed    uint64 // times a session continued on another socket

	Opened   uint64 // streams this side asked for
	Accepted uint64 // streams the other side asked for
	Refused  uint64 // of Accepted, by policy or limit
	Failed   uint64 // of Accepted, because the target could not be reached

	BytesIn, BytesOut uint64 // payload, from and to the other side

	// LastError is the error of the last attempt while a Client lacks a session, or a session its socket; nil: none is
	// lacking. It is always nil in a Server, which waits for its peers: see Server.Absent. FailingSince is the time of
	// the first failed attempt since the last success.
	LastError    error
	FailingSince time.Time
}

// failure is the last error of attempts that all fail, and when they began to.
type failure struct {
	err   error
	since time.Time
}

// note records the result of an attempt.
func (t *failure) note(err error) {
	switch {
	case err == nil:
		*t = failure{}
		return
	case t.err == nil:
		t.since = time.Now()
	}
	t.err = err
}

// traffic is the sum of the counters of sessions that are over.
type traffic struct{ in, out, broken, resumed uint64 }

func (t *traffic) add(s mux.Stats) {
	t.in += s.BytesReceived
	t.out += s.BytesSent
	t.broken += s.Losses
	t.resumed += s.Resumed
}

// stats adds everything up.
func (t *sessions) stats() Stats {
	s := Stats{
		Name: t.name, Opened: t.counts.opened.Load(), Accepted: t.counts.accepted.Load(),
		Refused: t.counts.refused.Load(), Failed: t.counts.failed.Load(),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.past
	for name, p := range t.peers {
		s.Connected = append(s.Connected, name)
		for _, session := range p.sessions {
			st := session.Stats()
			s.Sessions++
			s.Streams += st.Channels
			if st.Suspended {
				s.Suspended++
			}
			sum.add(st)
		}
	}
	slices.Sort(s.Connected)
	s.Made, s.Lost = t.made, t.lost
	s.Broken, s.Resumed, s.BytesIn, s.BytesOut = sum.broken, sum.resumed, sum.in, sum.out
	return s
}

// linesPerSecond bounds the lines of a logLimit: a peer whose streams are refused, a thousand a second, must not fill the log.
const linesPerSecond = 10

// logLimit bounds the lines of one kind; the first after a gap says how many are
// missing.
type logLimit struct {
	mu      sync.Mutex
	began   time.Time
	lines   int
	skipped int
}

func (l *logLimit) warn(log *slog.Logger, msg string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.began) >= time.Second {
		l.began, l.lines = now, 0
	}
	if l.lines >= linesPerSecond {
		l.skipped++
		return
	}
	l.lines++
	if l.skipped > 0 {
		args = append(args, "unlogged_before", l.skipped)
		l.skipped = 0
	}
	log.Warn(msg, args...)
}

// Package watchtest looks at what runs in a test as operators do: it lists the sessions, reads the counters, and ends
// streams that there are none of, again and again, beside all that the test does. The race detector then sees what they
// read while a session changes it. Without the detector it does nothing: other tests measure.
package watchtest

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/listener"
)

// Register is what has sessions: a proxy, or a node of peers.
type Register interface {
	Sessions() []listener.Info
	Kill(id listener.ID, stream uint64) bool
}

// counted is a Register with counters.
type counted interface{ Stats() listener.Stats }

// Between two looks there is a pause of shortest, or of share times what a look takes.
const (
	shortest = time.Millisecond
	share    = 50
)

// Watch looks at r, and calls the other functions, until the end of the test. It must be called before what r does is arranged
// to end, so that it also looks at the end.
func Watch(t testing.TB, r Register, also ...func()) {
	t.Helper()
	w := &watch{t: t, known: map[string]client{}}
	Repeat(t, func() {
		w.look(r)
		for _, look := range also {
			look()
		}
	})
}

// Repeat calls look until the end of the test, with pauses.
func Repeat(t testing.TB, look func()) {
	t.Helper()
	if !raceEnabled {
		return
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	go repeat(look, stop, stopped)
}

func repeat(look func(), stop <-chan struct{}, stopped chan<- struct{}) {
	defer close(stopped)
	timer := time.NewTimer(shortest)
	defer timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-timer.C:
		}
		began := time.Now()
		look()
		timer.Reset(max(shortest, share*time.Since(began)))
	}
}

// watch is one Register.
type watch struct {
	t     testing.TB
	known map[string]client // by ID
	last  listener.Stats
}

// client is what stays the same for as long as a session or stream lasts.
type client struct{ address, listener, user, database, method, path string }

func (w *watch) look(r Register) {
	for _, s := range r.Sessions() {
		w.row(s)
		if id, stream, ok := listener.ParseID(s.ID); !ok {
			w.t.Errorf("the ID of a session is %q", s.ID)
		} else if stream == 0 && r.Kill(id, math.MaxUint32-1) {
			w.t.Errorf("session %s has a stream that no client can begin", s.ID)
		}
	}
	if c, ok := r.(counted); ok {
		w.counters(c.Stats())
	}
}

// row checks that an ID is one client's at all times. Before a session has begun, the client's address may be that of a proxy.
func (w *watch) row(s listener.Info) {
	if s.State == listener.StateQueued || s.State == listener.StateStarting {
		return
	}
	c := client{s.Client, s.Listener, s.User, s.Database, "", ""}
	if strings.Contains(s.ID, ".") { // a request of its own
		c.method, c.path = s.Method, s.Path
	}
	switch was, again := w.known[s.ID]; {
	case !again:
		w.known[s.ID] = c
	case was != c:
		w.t.Errorf("session %s was %+v, and is %+v", s.ID, was, c)
	}
}

// counters checks that gauges are not negative, and that counters do not fall.
func (w *watch) counters(s listener.Stats) {
	if s.Active < 0 || s.Queued < 0 || s.Pinned < 0 || s.Listening < 0 || s.Buffered < 0 {
		w.t.Errorf("a gauge is negative: %+v", s)
	}
	if s.Accepted < w.last.Accepted || s.Rejected < w.last.Rejected || s.Gone < w.last.Gone {
		w.t.Errorf("a counter has fallen: %+v, before %+v", s, w.last)
	}
	for reason, n := range w.last.Errors {
		if s.Errors[reason] < n {
			w.t.Errorf("%d errors %q were counted, and then %d", n, reason, s.Errors[reason])
		}
	}
	w.last = s
}
